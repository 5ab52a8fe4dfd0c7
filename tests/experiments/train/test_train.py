"""`libra train` and `libra evaluate`: what a run keeps, its recipes, other algorithms, and photos."""

import csv
import inspect
import json
import re
import signal
import sys
from dataclasses import replace

import pytest
from banks import make_bank
from safetensors.torch import load_file, save_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from train_helpers import BACKBONE, SMALL, begin, libra, progress, same_weights, write_backbone, write_photos

from agents.libra_dqn import LibraDQN
from agents.libra_dqn.learner import Learner
from agents.registry import ALGORITHMS, find_algorithm, parse_changes
from experiments.runs.checkpoint import Checkpoint
from experiments.runs.config import fit_quantizer, plan
from libra_gym import LibraError, Quantizer
from libra_gym.counter import Counter as PhotoCounter
from libra_gym.kind import Kind
from libra_gym.metrics import Score
from libra_gym.weigher import Weigher

# ---------------------------------------------------------------------------------------------------- what a run keeps


def test_the_range_of_a_models_photos_is_that_of_what_it_learnt_from(tmp_path):
    bank = make_bank()
    photos = {image.name: (100 + number, 50, number) for number, image in enumerate(bank.images)}
    known = replace(bank, meta={"photos": photos})
    known.save(tmp_path / "bank.safetensors")
    about = plan(str(tmp_path / "bank.safetensors"), epochs=1).about
    assert Kind.read(about) == Kind(103, 100, 0, 3)  # four of six images are to learn from
    for other in (replace(bank, meta={"longest_side": 77}), known.join(replace(bank, name="other"))):
        other.save(tmp_path / "other.safetensors")
        about = plan(str(tmp_path / "other.safetensors"), epochs=1).about
        assert Kind.read(about) == Kind(longest_side=other.meta.get("longest_side"))


def test_a_run_directory_holds_all_that_is_needed_to_repeat_it(bank, tmp_path, pictures):
    run = tmp_path / "run"
    libra(*begin(bank, run, "--sb3-zip", "--seed", "3", epochs=2))
    config = json.loads((run / "config.json").read_text())
    assert (config["algo"], config["preset"], config["seed"], config["epochs"]) == ("libra_dqn", "default", 3, 2)
    assert config["bank"] == str(bank)
    arguments = inspect.signature(LibraDQN).parameters.keys()
    given = {"policy", "env", "seed", "device", "verbose", "tensorboard_log", "_init_setup_model"}
    assert config["settings"].keys() == arguments - given
    assert config["settings"]["policy_kwargs"]["network"]["hidden"] == [16]
    assert {"torch", "python", "stable-baselines3"} <= json.loads((run / "versions.json").read_text()).keys()
    assert LibraDQN.load(run / "best.zip", device="cpu").q_net is not None
    last = Weigher.load(run / "last.safetensors")
    assert last.quantizer == Quantizer.from_dict(config["quantizer"])
    rows = progress(run)
    assert last.about["validation"]["mae"] == float(rows[-1]["validation/mae"])
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    curve = [point.value for point in events.Scalars("validation/mae")]
    assert curve == pytest.approx([float(row["validation/mae"]) for row in rows])
    assert set(events.Tags()["images"]) == {"pictures/count_map", "pictures/weighing"}


def test_the_best_model_is_chosen_on_validation_and_evaluates_to_the_same_figures(bank, whole, tmp_path):
    run = whole
    best = min(progress(run), key=lambda row: float(row["validation/mae"]))
    shown = libra("evaluate", run, "--bank", bank, "--json", tmp_path / "figures.json")
    assert "validation: " in shown.splitlines()[0]
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["mae"] == pytest.approx(float(best["validation/mae"]))
    assert Weigher.load(run / "best.safetensors").about["validation"]["epoch"] == int(best["rollout/epoch"])
    libra("evaluate", run / "best.safetensors", "--bank", bank, "--split", "test", "--readout", "middle")


def test_files_of_an_evaluation_are_written_though_nobody_reads_its_table(bank, whole, tmp_path, monkeypatch):
    def stop_reading(_):
        raise RuntimeError("nobody reads on")

    monkeypatch.setattr(Score, "table", stop_reading)
    files = {"--csv": tmp_path / "counts.csv", "--json": tmp_path / "figures.json"}
    with pytest.raises(RuntimeError, match="nobody"):
        libra("evaluate", whole, "--bank", bank, *(word for option in files.items() for word in option))
    assert all(path.stat().st_size for path in files.values())


def test_nothing_of_the_validation_photos_shows_in_the_intervals(tmp_path):
    bank = make_bank(images=10, rows=6, cols=6)
    crowded = bank.counts.clone()
    crowded[bank.patches_of(8)] *= 1000  # the validation image
    path = tmp_path / "bank.safetensors"
    replace(bank, counts=crowded, quantizer=None).save(path)
    libra(*begin(path, tmp_path / "run", epochs=1))
    fitted = Weigher.load(tmp_path / "run" / "best.safetensors").quantizer
    assert fitted == Quantizer.fit_log(bank.split("train").counts.numpy(), readout="mean")


def test_a_bank_with_intervals_of_its_own_keeps_them():
    bank = make_bank().with_quantizer(Quantizer.integer(9))
    fitted = fit_quantizer(bank.split("train"))
    assert fitted.edges == Quantizer.integer(9).edges
    assert fitted.values != Quantizer.integer(9).values


# -------------------------------------------------------------------------------------------------------- the recipes


def test_the_preset_paper_is_the_constructor_with_plain_sgd():
    preset = ALGORITHMS["libra_dqn"].preset("paper")
    policy = preset.pop("policy_kwargs")
    defaults = {name: p.default for name, p in inspect.signature(LibraDQN).parameters.items()}
    assert (preset.pop("epochs"), preset.pop("num_envs")) == (100, 256)
    assert {key: defaults[key] for key in preset} == preset
    assert policy["optimizer_class"] == "torch.optim:SGD"
    assert policy["network"] == {"hidden": [1024, 1024], "q_scale": 100.0, "init_std": 0.01} | {
        "dueling": False,
        "dropout": 0.0,
    }


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_preset_fits_its_algorithm(name):
    for preset in find_algorithm(name).presets():
        assert ALGORITHMS[name].preset(preset)["epochs"] > 0


@pytest.mark.parametrize(("weighings", "epochs"), [(100, 2), (288 * 5, 5), (None, 2)])
def test_a_small_bank_is_gone_through_more_often(bank, weighings, epochs):
    """288 training patches, and a preset of two epochs."""
    assert plan(str(bank), changes={"epochs": 2, "weighings": weighings}).epochs == epochs
    assert plan(str(bank), changes={"weighings": weighings}, epochs=3).epochs == 3


def test_a_setting_is_read_as_it_is_meant():
    texts = ["a=1e-3", "b=null", "c.d=[64, 64]", "e=true", "f=l1", "g=torch.optim:SGD"]
    expected = {"a": 1e-3, "b": None, "c.d": [64, 64], "e": True, "f": "l1", "g": "torch.optim:SGD"}
    assert parse_changes(texts) == expected


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--set", "batchsize=3"), "no setting 'batchsize'"),
        (("--set", "batch_size"), "key=value"),
        (("--set", "gamma.x=3"), "not a group"),
        (("--set", "policy_kwargs.network.depth=3"), "network knows only"),
        (("--set", "env.weights=3"), "environment cannot be made"),
        (("--preset", "best"), "no preset 'best'"),
        (("--algo", "sarsa"), "no algorithm 'sarsa'"),
        (("--algo", "no.such:Thing"), "cannot be imported"),
        (("--algo", "os:getcwd"), "'os:getcwd' is no class"),
        (("--set", "gradient_steps=3"), "'gradient_steps' is of SB3's own loop"),
        (("--set", "gamma=2"), "gamma is 2, but it must be a number from 0 to 1"),
        (("--set", "policy_kwargs.network.hidden=[0]"), "hidden is"),
        (("--set", "env.rewards.guiding=maybe"), "guiding is 'maybe'"),
        (("--set", "env.max_steps=x"), "max_steps is 'x'"),
        (("--set", "env.rewards=x"), "rewards is 'x'"),
        (("--set", "env.env_id=LibraWeighing-v9"), "environment cannot be made"),
        (("--split", "train+validation"), "is learnt from and judged by"),
        (("--validation", "train:1/3"), "is learnt from and judged by"),
        (("--split", "train+trian"), "no split 'trian'"),
        (("--split", "all"), "no split 'all'"),
        (("--device", "abacus"), "no device 'abacus'"),
        (("--algo", "head_classification", "--sb3-zip"), "has no zip"),
        (("--epochs", "1", "--set", "epochs=2"), "say the same"),
        (("--set", "policy_kwargs.net_arch=[64]"), "on the scales the hidden layers are"),
        (("--set", "epsilon_start=0"), "at most epsilon_start, 0"),
        (("--init", "nowhere"), "nowhere"),
        (("--init", "dense"), "has channels 512, but this agent has 16"),
        (("--init", "dense", "--algo", "ppo"), "'ppo' cannot start from a finished counter"),
    ],
)
def test_a_mistake_is_told_before_anything_is_written(bank, tmp_path, arguments, said):
    with pytest.raises(LibraError, match=said):
        libra(*begin(bank, tmp_path / "run", *arguments, changes={}))
    assert not (tmp_path / "run").exists()


# -------------------------------------------------------------------------------------------------- other algorithms

OFF_POLICY = {"num_envs": 16, "learning_starts": 50, "buffer_size": 500, "batch_size": 16}
ON_POLICY = {"num_envs": 16, "batch_size": 64}
IMITATION = {key: value for key, value in SMALL.items() if key != "policy_kwargs.network.dropout"}
OTHERS = {
    "bc": IMITATION,
    "dagger": IMITATION,
    "dqn": OFF_POLICY,
    "double_dqn": OFF_POLICY,
    "dueling_dqn": OFF_POLICY,
    "qrdqn": OFF_POLICY,
    "ppo": ON_POLICY,
    "a2c": {"num_envs": 16},
    "maskable_ppo": ON_POLICY,
    "trpo": ON_POLICY,
    "head_classification": {"batch_size": 64},
    "head_regression": {"hidden": "[16]"},
}


@pytest.mark.parametrize("algo", OTHERS)
def test_the_same_command_trains_and_judges_other_algorithms(bank, tmp_path, algo):
    run = tmp_path / "run"
    libra(*begin(bank, run, "--algo", algo, epochs=1, changes=OTHERS[algo]))
    rows = progress(run)
    assert [row["rollout/epoch"] for row in rows] == ["1"]
    libra("evaluate", run, "--bank", bank, "--json", tmp_path / "figures.json")
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["mae"] == pytest.approx(float(rows[0]["validation/mae"]))


def test_dagger_goes_on_bit_for_bit_and_counts_the_time_of_all_sittings(bank, tmp_path, monkeypatch):
    changes = {**SMALL, "beta_step": 0.7}
    libra(*begin(bank, tmp_path / "whole", "--algo", "dagger", epochs=2, changes=changes))
    run, learn_block, calls = tmp_path / "stopped", Learner.learn_block, []

    def interrupted(learner):
        calls.append(learner)
        if len(calls) == 25:  # the seventh block of the second epoch
            signal.raise_signal(signal.SIGINT)
        return learn_block(learner)

    monkeypatch.setattr(Learner, "learn_block", interrupted)
    libra(*begin(bank, run, "--algo", "dagger", epochs=2, changes=changes), status=130)
    before = Checkpoint.load(run / "checkpoint" / "state.safetensors").numbers["seconds"]
    libra("train", "--resume", run)
    assert same_weights(run / "last.safetensors", tmp_path / "whole" / "last.safetensors")
    assert [float(row["rollout/expert_share"]) for row in progress(run)] == pytest.approx([1.0, 0.3])
    first, second = (float(row["time/seconds"]) for row in progress(run))
    assert 0 < first < before < second


def test_an_sb3_run_goes_on_from_its_last_zip(bank, tmp_path):
    run = tmp_path / "run"
    libra(*begin(bank, run, "--algo", "ppo", epochs=1, changes=ON_POLICY))
    assert "not bit for bit" in libra("train", "--resume", run, "--epochs", "2")
    steps = [int(row["time/total_timesteps"]) for row in progress(run)]
    assert steps == [1440, 2880]  # 5 a patch, 288 patches, in steps of 16


@pytest.mark.parametrize("epochs", [2, 3], ids=["at its end", "before it"])
def test_an_sb3_run_that_was_killed_before_its_checkpoint_loses_no_epoch(bank, tmp_path, epochs):
    run = tmp_path / "run"
    libra(*begin(bank, run, "--algo", "a2c", epochs=1, changes={"num_envs": 16}))
    before = (run / "checkpoint" / "state.safetensors").read_bytes()
    libra("train", "--resume", run, "--epochs", "2")
    judged = progress(run)
    (run / "checkpoint" / "state.safetensors").write_bytes(before)  # as if killed after last.zip was saved
    libra("train", "--resume", run, "--epochs", str(epochs))
    assert [row["rollout/epoch"] for row in progress(run)] == [str(epoch) for epoch in range(1, epochs + 1)]
    assert progress(run)[1]["validation/mae"] == judged[1]["validation/mae"]
    assert "is finished" in libra("train", "--resume", run)


def test_ones_own_algorithm_needs_no_registration(bank, tmp_path, monkeypatch):
    (tmp_path / "my_algo.py").write_text(
        "from agents.libra_dqn import LibraDQN\n"
        "class MyDQN(LibraDQN):\n"
        "    def __init__(self, *args, courage=1.0, **kwargs):\n"
        "        self.courage = courage\n"
        "        super().__init__(*args, **kwargs)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    run = tmp_path / "run"
    libra(*begin(bank, run, "--algo", "my_algo:MyDQN", "--set", "courage=2", "--sb3-zip", epochs=1))
    assert json.loads((run / "config.json").read_text())["settings"]["courage"] == 2
    assert (run / "best.safetensors").exists()


# ------------------------------------------------------------------------------------------------------------- photos


@pytest.mark.parametrize("scale", [1.0, 1.5])
def test_photos_are_counted_straight_like_their_bank_and_only_with_the_models_own_weights(scale, tmp_path):
    photos, weights = write_photos(tmp_path / "photos"), tmp_path / "weights.safetensors"
    backbone = write_backbone(weights)
    data = ("--dataset", "folder", "--root", photos)
    bank = tmp_path / "bank"
    own = ("--backbone", BACKBONE, "--weights", weights, "--workers", 0, "--scale", scale, "--dtype", "fp32")
    libra("features", *data, "--split", "train+validation+test", *own, "--out", bank)
    run = tmp_path / "run"
    libra(*begin(bank, run, epochs=1))

    libra("evaluate", run, "--bank", bank, "--split", "test", "--json", tmp_path / "a.json")
    libra("evaluate", run, *data, "--split", "test", "--weights", weights, "--json", tmp_path / "b.json")
    a, b = (json.loads((tmp_path / f"{name}.json").read_text()) for name in "ab")
    assert a.pop("bank") == "bank test"
    assert b.pop("bank") == "folder test"
    assert a == b

    with pytest.raises(LibraError, match="no directory"):  # before anything is counted
        libra("evaluate", run, "--bank", bank, "--csv", tmp_path / "none" / "a.csv")
    with pytest.raises(LibraError, match="expectation is for one-step classifiers"):
        libra("evaluate", run, "--bank", bank, "--readout", "expectation")
    with pytest.raises(LibraError, match="--weights is for photos"):
        libra("evaluate", run, "--bank", bank, "--weights", weights)

    joined = tmp_path / "joined.safetensors"  # a model with its backbone needs no weights
    PhotoCounter(backbone, Weigher.load(run / "best.safetensors")).save(joined, "float32")
    libra("evaluate", joined, *data, "--split", "test", "--json", tmp_path / "c.json", "--csv", tmp_path / "c.csv")
    assert json.loads((tmp_path / "c.json").read_text()) == {**a, "bank": "folder test"}
    (record,) = a["records"]  # a photo of the user's own is counted in the same size
    assert PhotoCounter.load(joined).count(photos / "test/d.png").count == pytest.approx(record["count"], rel=1e-3)
    (header, *lines) = csv.reader((tmp_path / "c.csv").open())
    assert header[:4] == ["name", "split", "people", "count"]
    assert [float(line[3]) for line in lines] == pytest.approx([record["count"] for record in a["records"]], abs=0.01)
    text = libra("evaluate", run, "--bank", bank, "--split", "test", "--against", tmp_path / "c.csv")
    assert "against c.csv" in text
    assert "of 1 images" in text
    with pytest.raises(LibraError, match=r"none\.csv' cannot be read"):
        libra("evaluate", run, "--bank", bank, "--split", "test", "--against", tmp_path / "none.csv")
    with pytest.raises(LibraError, match="leave --weights out"):
        libra("evaluate", joined, *data, "--split", "test", "--weights", weights)

    half, seen = tmp_path / "half.safetensors", tmp_path / "seen"  # its backbone is rounded, and yet its own
    PhotoCounter(backbone, Weigher.load(run / "best.safetensors")).save(half, "float16")
    libra("features", *data, "--split", "test", *own[:2], "--weights", half, "--workers", 0, "--out", seen)
    libra("evaluate", half, "--bank", seen, "--split", "test")
    with pytest.raises(LibraError, match="make a bank with the model's own weights"):
        libra("evaluate", run, "--bank", seen, "--split", "test")

    with pytest.raises(LibraError, match="give --weights"):
        libra("evaluate", run, *data, "--split", "test")
    other = {key: value + 1 for key, value in load_file(weights).items()}
    save_file(other, tmp_path / "other.safetensors")
    with pytest.raises(LibraError, match="give the file it was trained with"):
        libra("evaluate", run, *data, "--split", "test", "--weights", tmp_path / "other.safetensors")
    with pytest.raises(LibraError, match="either --bank or --dataset"):
        libra("evaluate", run)


def test_epochs_that_are_set_are_not_made_more_for_a_small_bank(bank):
    assert plan(str(bank)).epochs > 2
    assert plan(str(bank), changes={"epochs": 2}).epochs == 2
    assert plan(str(bank), changes={"epochs": 2, "weighings": 2880}).epochs == 10


def test_classes_of_ones_own_module_are_found_in_settings(bank, tmp_path, monkeypatch):
    (tmp_path / "my_optim.py").write_text("from torch.optim import Adam\n\n\nclass MyAdam(Adam):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    own = ("--set", "policy_kwargs.optimizer_class=my_optim:MyAdam")
    libra(*begin(bank, tmp_path / "run", *own, epochs=1))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("--algo", "dqn", "--set", "train_freq=[1,episode]"), "give a number of steps"),
        (("--set", "policy_kwargs.optimizer_class=torch.optim:LBFGS"), "LBFGS needs the loss several times"),
        (("--set", "env.rewards.squeezing=false"), "which rewards of shape 'error' do not have"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_a_sentence(bank, tmp_path, changes, said):
    with pytest.raises(LibraError, match=re.escape(said)):
        libra("train", "--bank", bank, "--out", tmp_path / "run", *changes)
