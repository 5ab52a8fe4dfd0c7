"""`libra train` survives what may happen to a run, and goes on as if it had not."""

import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from banks import make_bank
from stable_baselines3 import PPO
from train_helpers import SMALL, begin, libra, progress, same_weights

from agents import make_vec_env
from agents.callbacks import EvaluationCallback
from agents.libra_dqn import LibraDQN
from agents.libra_dqn.learner import Learner
from experiments.runs.checkpoint import Checkpoint
from experiments.runs.config import RunConfig, fit_quantizer, plan
from libra_gym import LibraError, Quantizer, load_bank
from libra_gym.weigher import Weigher

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_a_run_killed_in_an_epoch_ends_bit_for_bit_like_one_that_was_not(bank, whole, tmp_path):
    run = tmp_path / "killed"
    arguments = begin(bank, run, "--checkpoint-minutes", "0")  # a checkpoint after each block
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", "experiments.cli", *arguments], env=environment, cwd=ROOT)
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        checkpoint = Checkpoint.load(run / "checkpoint" / "state.safetensors")
        place = {"epoch": 0, "cursor": 0} if checkpoint is None else checkpoint.numbers["learner"]
        if place["epoch"] >= 1 and place["cursor"] > 0:
            break
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert shlex.split((run / "command.txt").read_text()) == ["libra", *arguments]

    libra("train", "--resume", run)
    assert same_weights(run / "last.safetensors", whole / "last.safetensors")
    assert same_weights(run / "best.safetensors", whole / "best.safetensors")
    assert [row["rollout/epoch"] for row in progress(run)] == ["1", "2", "3"]
    for a, b in zip(progress(run), progress(whole)):
        assert {key: a[key] for key in a if "time/" not in key} == {key: b[key] for key in b if "time/" not in key}


@pytest.mark.parametrize("block", [7, 18], ids=["within an epoch", "at an epoch's end"])
def test_ctrl_c_saves_and_says_how_to_go_on(bank, whole, tmp_path, monkeypatch, block):
    """18 blocks of 16 weigh the 288 training patches."""
    run = tmp_path / "stopped"
    learn_block, calls = Learner.learn_block, []

    def interrupted(learner):
        calls.append(learner)
        if len(calls) == block:
            signal.raise_signal(signal.SIGINT)
        return learn_block(learner)

    monkeypatch.setattr(Learner, "learn_block", interrupted)
    said = libra(*begin(bank, run), status=130)
    assert len(calls) == block
    assert said.splitlines()[-1] == f"libra train --resume {run}"
    assert len(progress(run) if block == 18 else []) == block // 18
    libra(*shlex.split(said.splitlines()[-1])[1:])
    assert same_weights(run / "last.safetensors", whole / "last.safetensors")


def test_a_finished_run_can_be_given_more_epochs(bank, tmp_path):
    constant = {**SMALL, "final_learning_rate": "null"}  # a falling one would fall more slowly
    libra(*begin(bank, tmp_path / "short", epochs=1, changes=constant))
    assert "is finished" in libra("train", "--resume", tmp_path / "short")
    libra("train", "--resume", tmp_path / "short", "--epochs", "2")
    libra(*begin(bank, tmp_path / "long", epochs=2, changes=constant))
    assert same_weights(tmp_path / "short" / "last.safetensors", tmp_path / "long" / "last.safetensors")


def test_a_run_is_never_overwritten_and_goes_on_only_as_it_began(bank, tmp_path):
    run = tmp_path / "run"
    libra(*begin(bank, run, epochs=1))
    with pytest.raises(LibraError, match=f"--resume {run}"):
        libra(*begin(bank, run))
    with pytest.raises(LibraError, match="leave out --seed"):
        libra("train", "--resume", run, "--seed", "1")
    with pytest.raises(LibraError, match="not an empty directory"):
        libra(*begin(bank, tmp_path))
    with pytest.raises(LibraError, match="is no run"):
        libra("train", "--resume", tmp_path / "nothing")
    with pytest.raises(LibraError, match="is a run of `libra train`, not a run of `libra pretrain`"):
        libra("pretrain", "--resume", run)


def test_a_banks_hash_stays_what_it_was():
    """Runs of an earlier version go on only if it does."""
    known = "fd16e12eefb93b7a97368b14edf1f73802c30236fb7d1c77b1359949571d3167"
    assert make_bank().fingerprint() == known
    renamed = replace(make_bank().images[0], source="street #1")
    assert replace(make_bank(), images=(renamed, *make_bank().images[1:])).fingerprint() != known


@pytest.mark.parametrize("content", ["null", "3", "[]", '{"algo": "libra_dqn"}'])
def test_a_configuration_that_is_none_is_named(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(LibraError, match="not the configuration of a run"):
        libra("train", "--resume", tmp_path)


def test_a_run_does_not_go_on_with_another_bank(tmp_path):
    bank, run = tmp_path / "bank.safetensors", tmp_path / "run"
    make_bank().save(bank)
    libra(*begin(bank, run, epochs=1))
    bank.unlink()  # it is mapped; overwritten, it would change under the first one's feet
    make_bank(seed=1).save(bank)
    with pytest.raises(LibraError, match="has changed since the run began"):
        libra("train", "--resume", run, "--epochs", "2")


def test_a_run_can_learn_from_further_banks(bank, tmp_path):
    """From their training images alone; it is judged on the first bank's validation images, and goes on with all."""
    more, run = tmp_path / "more.safetensors", tmp_path / "run"
    crowds = make_bank(images=10, rows=6, cols=6, seed=1)
    crowds = replace(crowds, counts=crowds.counts * 3, quantizer=None)
    crowds.save(more)
    libra(*begin(bank, run, "--also", str(more), epochs=1))
    config = RunConfig.load(run / "config.json")
    assert config.about["also"] == [crowds.name]
    training, validation = config.open_bank()
    first = load_bank(str(bank))
    assert len(training) == 2 * len(first.split("train"))
    assert validation.images == first.split("validation").images
    assert training.quantizer == validation.quantizer
    counts = torch.cat([first.split("train").counts, crowds.split("train").counts])
    assert training.quantizer == Quantizer.fit_log(counts.numpy(), readout="mean")
    libra("train", "--resume", run, "--epochs", "2")
    assert len(progress(run)) == 2
    more.unlink()
    make_bank(images=10, rows=6, cols=6, seed=2).save(more)
    with pytest.raises(LibraError, match=r"more\.safetensors' has changed"):
        libra("train", "--resume", run, "--epochs", "3")


def test_further_banks_give_the_split_of_the_run_or_their_training_images(tmp_path):
    """Beside a fold, a whole set gives all that it has to learn from; a bank without either is refused."""

    def stored(name, *splits):
        bank = make_bank(seed=len(name))
        parts = itertools.cycle(splits)
        bank = replace(bank, images=tuple(replace(image, split=next(parts)) for image in bank.images))
        bank.save(tmp_path / name)
        return str(tmp_path / name), bank

    folds, first = stored("folds.safetensors", "fold1-train", "fold1-validation")
    again, second = stored("again.safetensors", "fold1-train", "train")
    whole, third = stored("whole.safetensors", "train", "validation")
    other, _ = stored("other.safetensors", "test")
    splits = {"train_split": "fold1-train", "validation_split": "fold1-validation"}
    training, _ = plan(folds, also=[again, whole], **splits).open_bank()
    expected = first.split("fold1-train").join(second.split("fold1-train"), third.split("train"))
    assert training.images == expected.images
    with pytest.raises(LibraError, match="has no split 'train'; it has: test"):
        plan(folds, also=[other], **splits)


def test_no_photo_of_further_banks_is_judged_by(tmp_path):
    """Two folders of photos may have the same names; a photo under two names is still one."""
    bank = make_bank()
    names = [image.name for image in bank.images]
    judged = bank.split("validation").images[0].name
    places = {}
    for name, prefix, split in (("first", "a", None), ("other", "b", "train"), ("same", "a", "train")):
        images = tuple(replace(image, split=split or image.split) for image in bank.images)
        meta = {"dataset": "folder", "files": {each: prefix + each for each in names}}
        replace(bank, name=name, images=images, meta=meta).save(tmp_path / name)
        places[name] = str(tmp_path / name)
    training, _ = plan(places["first"], also=[places["other"]]).open_bank()
    assert judged in {image.name for image in training.images}
    with pytest.raises(LibraError, match=f"'{judged}' of bank 'same' is learnt from and judged by"):
        plan(places["first"], also=[places["same"]])


def test_photos_are_left_out_of_further_banks_of_the_same_data_set(tmp_path):
    banks = {}
    for name, dataset in (("first", "streets"), ("again", "streets"), ("lacking", "streets"), ("other", "crowds")):
        bank = replace(make_bank(seed=len(name)), meta={"dataset": dataset})
        names = [image.name for image in bank.split("train").images]
        if name == "lacking":
            bank = bank.select(i for i, image in enumerate(bank.images) if image.name != names[0])
        bank.save(tmp_path / name)
        banks[name] = str(tmp_path / name)
    first, *more = banks.values()
    training, _ = plan(first, also=more, train_split=f"train:-{names[0]},{names[1]}").open_bank()
    learnt = [image.name for image in training.images]
    assert learnt.count(names[0]) == learnt.count(names[1]) == 1  # of the other data set's, which are other photos
    assert learnt.count(names[2]) == len(banks)


def test_a_run_learns_from_all_but_a_share_and_is_judged_on_it():
    """Cross-validation: the intervals too are fitted to what the run learns from."""
    training, judged = plan("demo", train_split="train:-1/4", validation_split="train:1/4").open_bank()
    names = [{image.name for image in bank.images} for bank in (training, judged)]
    assert names[0] | names[1] == {image.name for image in load_bank("demo").split("train").images}
    assert not names[0] & names[1]
    assert training.quantizer == judged.quantizer == fit_quantizer(training)


def test_a_run_of_an_earlier_version_is_still_read(bank, whole):
    """Its configuration knows nothing of further banks."""
    config = whole / "config.json"
    text = config.read_text(encoding="utf-8")
    older = {key: value for key, value in json.loads(text).items() if key != "also"}
    config.write_text(json.dumps(older), encoding="utf-8")
    assert RunConfig.load(config).also == ()
    config.write_text(json.dumps({**older, "hue": 1}), encoding="utf-8")
    with pytest.raises(LibraError, match="not the configuration"):
        RunConfig.load(config)
    config.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(("minutes", "cursor"), [(0, 11 * 16), (60, 0)], ids=["each block", "each epoch"])
def test_at_most_one_checkpoint_interval_is_lost(bank, tmp_path, monkeypatch, minutes, cursor):
    """The program ends in the 30th block without a word, the twelfth of the second epoch."""
    learn_block, calls = Learner.learn_block, []

    def crashing(learner):
        calls.append(learner)
        if len(calls) == 30:
            raise MemoryError
        return learn_block(learner)

    monkeypatch.setattr(Learner, "learn_block", crashing)
    with pytest.raises(MemoryError):
        libra(*begin(bank, tmp_path / "run", "--checkpoint-minutes", minutes))
    place = Checkpoint.load(tmp_path / "run" / "checkpoint" / "state.safetensors").numbers["learner"]
    assert (place["epoch"], place["cursor"]) == (1, cursor)


def test_the_callback_works_by_itself(tmp_path):
    bank = make_bank(images=8)
    train, validation = bank.split("train"), bank.split("validation")
    env = make_vec_env(num_envs=8, bank=train, split=None)
    agent = LibraDQN(env=env, policy_kwargs={"network": {"hidden": [8]}}, seed=0, device="cpu")
    idle = EvaluationCallback(validation, best_path=tmp_path / "idle.safetensors")
    agent.learn_epochs(1, idle)  # fewer transitions than learning_starts
    assert (idle.epoch, idle.best_epoch) == (1, 0)
    assert not (tmp_path / "idle.safetensors").exists()  # however well it counts by chance
    agent = LibraDQN(env=env, policy_kwargs={"network": {"hidden": [8]}}, learning_starts=50, seed=0, device="cpu")
    callback = EvaluationCallback(validation, best_path=tmp_path / "best.safetensors")
    agent.learn_epochs(2, callback)
    assert callback.epoch == 2
    assert Weigher.load(tmp_path / "best.safetensors").evaluate(validation).mae == pytest.approx(callback.best_mae)

    stock = PPO("MlpPolicy", env, n_steps=8, batch_size=64, seed=0, device="cpu")
    callback = EvaluationCallback(validation, epoch_steps=5 * len(train), best_path=tmp_path / "best.zip")
    stock.learn(2 * 5 * len(train), callback)
    assert callback.epoch >= 2
    assert PPO.load(tmp_path / "best.zip", device="cpu").num_timesteps > 0
    with pytest.raises(LibraError, match="knows no epochs"):
        stock.learn(8, EvaluationCallback(validation))


def test_a_run_starts_from_a_finished_one(bank, whole, tmp_path):
    """Before it has learnt anything it counts like that one, whatever its own intervals and seed; then it goes on."""
    run = tmp_path / "run"
    still = {**SMALL, "learning_rate": 0.0}
    libra(*begin(bank, run, "--init", str(whole / "last.safetensors"), "--seed", "1", epochs=1, changes=still))
    assert same_weights(run / "last.safetensors", whole / "last.safetensors")
    config = RunConfig.load(run / "config.json")
    assert config.about["init"] == "last.safetensors"
    moved = tmp_path / "moved"
    libra(*begin(bank, moved, "--init", str(whole), "--split", "train:1/2", epochs=1))
    assert not same_weights(moved / "last.safetensors", whole / "last.safetensors")
    libra("train", "--resume", moved, "--epochs", "2")
    assert len(progress(moved)) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"policy_kwargs.network.hidden": "[8]"}, r"hidden \[16\], but this agent has \[8\]"),
        ({"env.max_steps": 6}, "steps 8, but this agent has 6"),
        ({"env.env_id": "LibraWeighingContinuous-v0"}, "pool|actions"),
    ],
)
def test_a_run_starts_only_from_what_it_could_become(bank, whole, tmp_path, changes, said):
    with pytest.raises(LibraError, match=said):
        libra(*begin(bank, tmp_path / "run", "--init", str(whole), changes={**SMALL, **changes}))
    assert not (tmp_path / "run").exists()


def test_a_head_is_nothing_to_start_from(bank, tmp_path):
    libra(*begin(bank, tmp_path / "head", "--algo", "head_classification", epochs=1, changes={"batch_size": 64}))
    with pytest.raises(LibraError, match="holds no scale"):
        libra(*begin(bank, tmp_path / "run", "--init", str(tmp_path / "head")))


def test_a_run_does_not_go_on_where_its_device_is_missing(bank, tmp_path):
    run = tmp_path / "run"
    libra(*begin(bank, run, epochs=1))
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    (run / "config.json").write_text(json.dumps({**config, "device": "cuda:99"}), encoding="utf-8")
    with pytest.raises(LibraError, match="no device 'cuda:99' here"):
        libra("train", "--resume", run, "--epochs", "2")


def test_matrices_are_multiplied_as_exactly_as_asked_and_only_in_the_run(bank, tmp_path, monkeypatch):
    seen = []
    learn = Learner.learn_block

    def watched(self):
        seen.append(torch.get_float32_matmul_precision())
        return learn(self)

    monkeypatch.setattr(Learner, "learn_block", watched)
    libra(*begin(bank, tmp_path / "run", "--matmul", "high", epochs=1))
    assert set(seen) == {"high"}
    seen.clear()
    libra("train", "--resume", tmp_path / "run", "--epochs", "2")  # goes on as it began
    assert set(seen) == {"high"}
    seen.clear()
    libra(*begin(bank, tmp_path / "exact", epochs=1))
    assert set(seen) == {"highest"}
    assert torch.get_float32_matmul_precision() == "highest"


def test_products_of_many_sizes_are_not_kept_for_ever(bank, tmp_path, monkeypatch):
    caches = "LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    for cache in caches:
        monkeypatch.setenv(cache, "0")  # so that the test leaves none behind
        monkeypatch.delenv(cache)
    libra(*begin(bank, tmp_path / "run", "--matmul", "high", epochs=1))
    assert not any(cache in os.environ for cache in caches)
    monkeypatch.setenv(caches[0], "7")
    libra(*begin(bank, tmp_path / "fast", "--matmul", "medium", epochs=1))
    assert [os.environ[cache] for cache in caches] == ["7", "16"]  # what the user sets stays


def test_the_demo_replaces_its_own_run_and_no_other(bank, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "out" / "run")
    with pytest.raises(LibraError, match="holds a run already"):
        libra("demo", "--out", tmp_path / "out", "--epochs", "1")
    assert same_weights(tmp_path / "out" / "run" / "best.safetensors", whole / "best.safetensors")


def test_the_demo_replaces_no_run_that_only_looks_like_its_own(bank, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "out" / "run")
    config = tmp_path / "out" / "run" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "preset": "demo"}))
    with pytest.raises(LibraError, match="holds a run already"):
        libra("demo", "--out", tmp_path / "out", "--epochs", "1")


def test_a_run_does_not_go_back(bank, tmp_path):
    run = tmp_path / "run"
    libra(*begin(bank, run, epochs=2))
    with pytest.raises(LibraError, match="has finished 2 epochs; --epochs 1 would be fewer"):
        libra("train", "--resume", run, "--epochs", "1")
    assert RunConfig.load(run / "config.json").epochs == 2


@pytest.mark.parametrize("wrong", ["loss=foo", "batch_size=abc", "learning_rate=-1"])
def test_a_mistaken_setting_does_not_block_its_correction(bank, tmp_path, wrong):
    run = tmp_path / "run"
    with pytest.raises(Exception, match=r".+"):
        libra(*begin(bank, run, "--set", wrong, epochs=1))
    libra(*begin(bank, run, epochs=1))


def test_a_release_leaves_the_run_as_it_is(bank, whole):
    with pytest.raises(LibraError, match="among the files of the run itself"):
        libra("release", whole, "--weights", "dense", "--out", whole / "best.safetensors")


def test_an_sb3_run_that_goes_on_sees_other_patches_than_at_its_beginning(bank, tmp_path, monkeypatch):
    """SB3 keeps no generators in its zip, so that a run's own seed would begin the same stream anew."""
    began = []
    own = PPO.learn

    def learn(self, *arguments, **settings):
        began.append((self.get_env().reset().copy(), torch.rand(3)))
        return own(self, *arguments, **settings)

    monkeypatch.setattr(PPO, "learn", learn)
    small = ("--set", "n_steps=8", "--set", "batch_size=16", "--set", "num_envs=16")
    libra("train", "--bank", bank, "--algo", "ppo", "--out", tmp_path / "run", "--epochs", 1, *small)
    libra("train", "--resume", tmp_path / "run", "--epochs", 2)
    assert not (began[0][0] == began[1][0]).all()
    assert not torch.equal(began[0][1], began[1][1])


def test_a_run_of_an_earlier_version_goes_on_with_settings_that_did_nothing(bank, tmp_path):
    run = tmp_path / "run"
    libra(*begin(bank, run, epochs=1))
    config = json.loads((run / "config.json").read_text())
    config["env"]["rewards"]["squeezing"] = False
    config["settings"]["double"] = True
    (run / "config.json").write_text(json.dumps(config))
    libra("train", "--resume", run, "--epochs", 2)
    assert len(progress(run)) == 2
