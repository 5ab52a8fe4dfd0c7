"""The network with its first layer split, and trained counters as files."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from banks import make_bank
from safetensors import safe_open
from safetensors.torch import save_file

from libra_gym.bank import FeatureBank
from libra_gym.errors import LibraError
from libra_gym.network import NetworkSettings, ScaleNetwork, standard
from libra_gym.quantizer import Quantizer
from libra_gym.task import WeighingTask
from libra_gym.weigher import Weigher

SMALL = NetworkSettings(channels=16, hidden=(32, 32), q_scale=1.0, init_std=None)


def weigher(bank, seed=0, **about):
    torch.manual_seed(seed)
    return Weigher(ScaleNetwork(SMALL), WeighingTask.intervals(bank.num_intervals), bank.quantizer, about)


@pytest.mark.parametrize("dueling", [False, True])
def test_the_split_first_layer_is_the_whole_one(dueling):
    network = ScaleNetwork(replace(SMALL, dueling=dueling, hidden=(32, 16, 8))).eval()
    features, weights = torch.rand(20, 16), torch.rand(20, 8)
    network.normalise(*standard(torch.rand(100, 16) * 5))
    x = torch.cat([(features - network.mean) * network.scale, weights], 1)
    for layer in network.layers:
        x = torch.relu(layer(x))
    x = network.out(x)
    if dueling:
        x = x[:, :1] + x[:, 1:] - x[:, 1:].mean(1, keepdim=True)
    torch.testing.assert_close(network(features, weights), x)


def test_the_authors_start_is_small_and_without_bias():
    network = ScaleNetwork(NetworkSettings())
    assert network.layers[1].weight.std().item() == pytest.approx(0.01, rel=0.05)
    assert not network.out.bias.any()


def test_dropout_is_for_training_only():
    network = ScaleNetwork(replace(SMALL, dropout=0.5))
    features, weights = torch.rand(5, 16), torch.zeros(5, 8)
    assert not torch.equal(network(features, weights), network(features, weights))
    network.eval()
    assert torch.equal(network(features, weights), network(features, weights))


def test_batches_make_no_difference(small_bank):
    model = weigher(small_bank)
    one, many = model.weigh(small_bank), model.weigh(small_bank, batch=7)
    np.testing.assert_array_equal(one.value, many.value)
    np.testing.assert_array_equal(one.actions, many.actions)


def test_values_follow_from_the_actions(small_bank):
    model = weigher(small_bank)
    weighed = model.weigh(small_bank)
    weights = np.array([*model.task.pool, 0, 0])  # `end`, and −1: nothing
    np.testing.assert_array_equal(weights[weighed.actions].sum(1), weighed.value)
    assert ((weighed.actions >= 0).sum(1) == weighed.steps).all()


def test_saving_and_loading(small_bank, tmp_path):
    model = weigher(small_bank, backbone="vgg16", weights="abc")
    model.save(tmp_path / "model.safetensors")
    again = Weigher.load(tmp_path / "model.safetensors")
    assert again.task == model.task
    assert again.quantizer == model.quantizer
    assert again.about == {"backbone": "vgg16", "weights": "abc"}
    np.testing.assert_array_equal(again.weigh(small_bank).actions, model.weigh(small_bank).actions)
    with safe_open(str(tmp_path / "model.safetensors"), "pt") as file:
        header = json.loads(file.metadata()["libra_gym.weigher"])
    assert set(header) == {"network", "task", "quantizer", "about"}


def test_a_model_loads_without_stable_baselines(small_bank, tmp_path):
    weigher(small_bank).save(tmp_path / "model.safetensors")
    program = f"""
import sys
sys.modules["stable_baselines3"] = None
from libra_gym.weigher import Weigher
print(Weigher.load({str(tmp_path / "model.safetensors")!r}).task.max_steps)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "8"


def test_a_model_of_real_valued_counts_is_a_file_without_a_quantizer(small_bank, tmp_path):
    torch.manual_seed(0)
    task = WeighingTask.counts(float(small_bank.counts.max()))
    network = ScaleNetwork(replace(SMALL, actions=task.num_actions))
    model = Weigher(network, task, None)
    model.save(tmp_path / "model.safetensors")
    again = Weigher.load(tmp_path / "model.safetensors")
    assert again.quantizer is None
    assert again.task == task
    weighed = again.weigh(small_bank)
    assert len(set(weighed.actions.ravel().tolist())) > 2
    assert weighed.value.min() >= 0
    totals = small_bank.image_totals(torch.from_numpy(weighed.value * 0.01)).tolist()
    for bank in (small_bank, small_bank.with_quantizer(Quantizer.integer(3))):
        assert [record.count for record in again.evaluate(bank).records] == pytest.approx(totals)
    with pytest.raises(LibraError, match="no look-up table"):
        again.calibrate(small_bank)
    with pytest.raises(LibraError, match="real-valued"):
        again.evaluate(small_bank, "middle")


def test_calibration_makes_the_training_total_right(small_bank):
    model = weigher(small_bank)
    before, after = model.evaluate(small_bank), model.calibrate(small_bank, prior=0.01).evaluate(small_bank)
    assert abs(after.bias) < 0.05 * max(abs(before.bias), 1.0)
    assert (np.diff(model.calibrate(small_bank).quantizer.values) >= -1e-9).all()


def test_another_quantizer_is_no_obstacle(small_bank):
    """A model counts with its own intervals, whatever the bank's are."""
    model = weigher(small_bank)
    coarse = small_bank.with_quantizer(Quantizer.integer(3))
    assert model.evaluate(coarse).mae == pytest.approx(model.evaluate(small_bank).mae)


@pytest.mark.parametrize("content", ["nonsense", None])
def test_files_that_are_no_models_are_named(tmp_path, content):
    path = tmp_path / "thing.safetensors"
    if content:
        path.write_text(content)
    with pytest.raises(LibraError, match=r"thing\.safetensors"):
        Weigher.load(path)


def test_mismatches_are_named(small_bank):
    model = weigher(small_bank)
    with pytest.raises(LibraError, match="8 features"):
        model.weigh(make_bank(channels=8).with_quantizer(small_bank.quantizer))
    with pytest.raises(LibraError, match="4"):
        model.weigh(small_bank, WeighingTask.intervals(5))


def test_a_network_needs_a_hidden_layer():
    with pytest.raises(LibraError, match="hidden"):
        NetworkSettings(hidden=())


def test_a_file_whose_header_is_no_json_is_named(tmp_path):
    file = tmp_path / "model.safetensors"
    save_file({"x": torch.zeros(1)}, file, {"libra_gym.weigher": "{", "libra_gym.bank": "{"})
    for kind in (Weigher, FeatureBank):
        with pytest.raises(LibraError, match=r"model\.safetensors' is not a readable"):
            kind.load(file)


def test_a_table_cannot_be_fitted_without_a_prior(small_bank):
    with pytest.raises(LibraError, match="prior is 0, but"):
        weigher(small_bank).calibrate(small_bank, prior=0)
