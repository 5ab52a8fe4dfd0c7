"""A policy is judged by the counts of whole images, however it is asked for its actions."""

import json
from io import StringIO

import gymnasium as gym
import numpy as np
import pytest
import torch
from banks import hand_made_bank, telling_bank
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from libra_gym.envs import WeighingContinuousVectorEnv, WeighingEnv, WeighingVectorEnv
from libra_gym.errors import LibraError
from libra_gym.evaluation import evaluate, readout_values, weigh
from libra_gym.metrics import score
from libra_gym.oracle import expert, solve
from libra_gym.quantizer import Quantizer
from libra_gym.task import WeighingTask
from libra_gym.wrappers import ImageCounts, VectorDictView


def truth_and_value(observations, task):
    return observations[:, 0].astype(np.int64), (observations[:, 2:] * task.pool[-1]).sum(1).round().astype(np.int64)


def expert_on(task):
    """The greedy expert as a function of observations, for a bank whose first feature is the truth."""
    return lambda observations: task.optimal(*truth_and_value(observations, task))


class Predicting:
    """A function in the manner of Stable-Baselines3."""

    def __init__(self, function):
        self.function = function

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        assert deterministic
        return self.function(observation), state


class Weighing:
    """A policy with its own way through a bank."""

    def __init__(self, function):
        self.function = function

    def weigh(self, bank, task):
        return weigh(self.function, bank, task, batch=len(bank))


def scatter(observations):
    """A policy without sense that still gives the same answer to the same observation."""
    return (np.abs(observations @ np.arange(1, observations.shape[1] + 1)) * 7).astype(np.int64) % 9


# ----------------------------------------------------------------------------------------------------------- policies


@pytest.mark.parametrize("readout", ["mean", "middle"])
def test_the_expert_names_every_interval_and_errs_by_the_quantization_alone(readout):
    bank = telling_bank()
    task = WeighingTask.intervals(bank.num_intervals)
    result = evaluate(expert_on(task), bank, readout=readout)
    assert result.interval_accuracy == 1.0
    quantized = readout_values(bank, readout)[bank.intervals.numpy()]
    assert result.mae == pytest.approx(score(quantized, bank).mae)
    known = expert(task, bank.intervals.numpy())
    assert result.mean_steps == pytest.approx(known.steps.mean())
    assert result.forced == pytest.approx((known.actions != task.end).all(1).mean())
    assert result.mean_return == pytest.approx(known.returns.mean())
    optimum = solve(task).returns[bank.intervals.numpy()].mean()
    assert result.regret == pytest.approx(optimum - known.returns.mean())


def test_the_optimum_has_no_regret():
    bank = telling_bank()
    task = WeighingTask.intervals(bank.num_intervals)
    optimum = solve(task)

    def follow(observations):
        truth, value = truth_and_value(observations, task)
        step = (observations[:, 2:] != 0).sum(1)
        return optimum.q[step, truth, value].argmax(-1)

    assert evaluate(follow, bank).regret == pytest.approx(0.0, abs=1e-5)


def test_a_senseless_policy_is_worse_than_the_expert_in_every_way():
    bank = telling_bank()
    task = WeighingTask.intervals(bank.num_intervals)
    good, bad = evaluate(expert_on(task), bank), evaluate(scatter, bank)
    assert bad.interval_accuracy < good.interval_accuracy
    assert bad.game[3] > good.game[3]
    assert bad.regret > good.regret


def test_weighings_are_those_of_the_environment():
    bank = telling_bank()
    weighed = weigh(scatter, bank, WeighingTask.intervals(bank.num_intervals))
    env = WeighingEnv(bank, split=None)
    for patch in range(len(bank)):
        observation, info = env.reset(seed=0, options={"patch": patch})
        actions, ended = [], False
        while not ended:
            actions.append(int(scatter(observation[None])[0]))
            observation, _, ended, _, info = env.step(actions[-1])
        steps = len(actions)
        assert weighed.actions[patch].tolist() == actions + [-1] * (8 - steps)
        assert (weighed.steps[patch], weighed.value[patch]) == (steps, info["value"])
        assert weighed.forced[patch] == (actions[-1] != 8)


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 60))
def test_neither_the_kind_of_policy_nor_the_batch_changes_the_result(batch):
    bank = telling_bank()
    plain = evaluate(scatter, bank)
    for policy in (scatter, Predicting(scatter), Weighing(scatter)):
        assert evaluate(policy, bank, batch=batch) == plain


def test_only_patches_that_have_not_ended_are_asked_for():
    bank = telling_bank()
    task = WeighingTask.intervals(bank.num_intervals)
    asked = []

    def note(observations):
        asked.append(len(observations))
        return expert_on(task)(observations)

    steps = weigh(note, bank, task).steps
    assert asked == [int((steps > t).sum()) for t in range(steps.max())]


def test_policies_that_take_masks_are_told_the_legal_actions():
    bank = telling_bank()
    task = WeighingTask.intervals(bank.num_intervals)

    def last_weight(observations, action_masks):
        _, value = truth_and_value(observations, task)
        np.testing.assert_array_equal(action_masks, task.legal(value))
        return action_masks[:, :-1].shape[1] - 1 - action_masks[:, -2::-1].argmax(1)  # the heaviest legal weight

    class Maskable:
        def predict(self, observation, deterministic=False, action_masks=None):
            return last_weight(observation, action_masks), None

    result = evaluate(last_weight, bank)
    assert result.forced == 1.0
    assert evaluate(Maskable(), bank) == result


def test_counts_can_be_weighed_without_a_quantizer():
    bank = telling_bank()
    task = WeighingTask.counts(float(bank.counts.max()))

    def weigh_counts(observations):
        value = (observations[:, 2:].astype(np.float64) * 500).sum(1).round()
        return task.optimal(observations[:, 1].astype(np.float64) * 100, value)

    weighed = weigh(weigh_counts, bank, task)
    result = evaluate(weigh_counts, bank, task=task)
    assert [record.count for record in result.records] == pytest.approx(
        bank.image_totals(torch.from_numpy(weighed.value * 0.01)).tolist()
    )
    assert result.regret is None
    assert np.abs(weighed.value * 0.01 - bank.counts.numpy())[~weighed.forced].max() <= 0.005 + 1e-6


def test_stable_baselines_algorithms_can_be_evaluated():
    from sb3_contrib import MaskablePPO
    from stable_baselines3 import DQN

    bank = telling_bank()
    env = WeighingEnv(bank, split=None)
    dqn = DQN("MlpPolicy", env, buffer_size=10, seed=0)
    result = evaluate(dqn, bank)
    greedy = evaluate(lambda obs: dqn.q_net(torch.from_numpy(obs)).argmax(1).numpy(), bank)
    assert result == greedy == evaluate(dqn.policy, bank, batch=5)
    task = WeighingTask.intervals(bank.num_intervals)
    weighed = weigh(MaskablePPO("MlpPolicy", env, n_steps=8, batch_size=8, seed=0), bank, task)
    steps = np.where(weighed.actions < 0, 0, np.array([*task.pool, 0])[weighed.actions])
    np.testing.assert_array_equal(steps.sum(1), weighed.value)  # no weight was clipped, so all were legal


def test_mistakes_are_answered_with_what_would_be_right():
    bank = telling_bank()
    with pytest.raises(LibraError, match="cannot weigh"):
        evaluate("a policy", bank)
    with pytest.raises(LibraError, match="quantizer"):
        evaluate(scatter, bank, task=WeighingTask.intervals(bank.num_intervals + 1))
    with pytest.raises(LibraError, match="batch is 0"):
        evaluate(scatter, bank, batch=0)
    with pytest.raises(LibraError, match="'mean', 'middle'"):
        evaluate(scatter, bank, readout="median")
    with pytest.raises(LibraError, match="5 intervals"):
        readout_values(hand_made_bank(), [1.0, 2.0])
    with pytest.raises(LibraError, match="appendix"):
        readout_values(hand_made_bank(), "middle")
    with pytest.raises(LibraError, match="returned a state"):
        evaluate(type("Recurrent", (), {"predict": lambda self, o, deterministic: (scatter(o), o)})(), bank)


def test_an_interval_counts_for_what_the_readout_says():
    bank = telling_bank()
    values = np.arange(bank.num_intervals, dtype=float)
    result = evaluate(expert_on(WeighingTask.intervals(bank.num_intervals)), bank, readout=values)
    assert [r.count for r in result.records] == pytest.approx(bank.image_totals(bank.intervals).tolist())
    assert result.interval_accuracy == 1.0


# ------------------------------------------------------------------------------------------------------------ reports


def test_the_json_file_says_what_the_evaluation_says(tmp_path):
    bank = telling_bank()
    result = evaluate(scatter, bank)
    result.save_json(tmp_path / "result.json")
    read = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert read == result.to_dict()
    assert (read["mae"], read["rmse"], read["nae"]) == (result.mae, result.rmse, result.nae)
    assert read["game"] == list(result.game)
    assert len(read["game"]) == 4
    assert read["images"] == len(read["records"]) == len(bank.images)
    assert {"name", "people", "count"} <= read["records"][0].keys()
    with pytest.raises(LibraError, match="missing"):
        result.save_json(tmp_path / "missing" / "result.json")


def test_the_table_shows_every_figure():
    console = Console(record=True, width=80, file=StringIO())
    console.print(evaluate(scatter, telling_bank()).table())
    text = console.export_text()
    for figure in ("MAE", "RMSE", "NAE", "bias", "GAME 1", "GAME 3", "interval", "steps", "forced", "regret"):
        assert figure in text


# -------------------------------------------------------------------------------------------------------- ImageCounts


def told_counts(env, policy, photos):
    """Drive a wrapped environment until it has told this many photos: (image, count, people) in the order told."""
    told = []
    observations, _ = env.reset(seed=1)
    while len(told) < photos:
        observations, _, _, _, infos = env.step(policy(observations))
        if "image" in infos:
            np.testing.assert_array_equal(infos["_image"], infos["_image_count"])
            at = infos["_image"]
            told += zip(infos["image"][at], infos["image_count"][at], infos["image_people"][at])
    return told


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("num_envs", [1, 5, 35, 36, 37, 100])
def test_image_counts_are_those_of_evaluate_once_per_pass(mode, num_envs):
    bank = telling_bank()
    assert len(bank) == 36
    records = evaluate(scatter, bank).records
    env = ImageCounts(WeighingVectorEnv(num_envs, bank, split=None, order="sequential", autoreset_mode=mode))
    photos = len(records)
    told = told_counts(env, scatter, 5 * photos)
    assert {int(image) for image, _, _ in told} == set(range(photos))
    if num_envs == 1:
        assert [image for image, _, _ in told] == 5 * list(range(photos))
    for image, count, people in told:
        assert count == pytest.approx(records[image].count)
        assert people == records[image].people


def test_overlapping_passes_are_kept_apart():
    """With more scales than patches a photo is weighed several times at once, each time as a whole."""
    bank = telling_bank(sizes=((32, 64), (64, 64)))
    env = ImageCounts(
        WeighingVectorEnv(9, bank, split=None, order="sequential", autoreset_mode="SameStep"),
        np.arange(bank.num_intervals),
    )
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    scales = env.unwrapped.scales
    drawn, on_scale = 9, np.arange(9)
    pans, counts = {}, {}
    for _ in range(200):
        _, _, ended, _, infos = env.step(rng.integers(0, 9, 9))
        for scale in np.flatnonzero(ended):
            counts[int(on_scale[scale])] = infos["final_info"]["value"][scale]
            on_scale[scale], drawn = drawn, drawn + 1
        np.testing.assert_array_equal(on_scale % 6, scales.patch)
        for scale in np.flatnonzero(infos.get("_image", [])):
            pans.setdefault(int(infos["image"][scale]), []).append(infos["image_count"][scale])
    for image, patches in ((0, range(2)), (1, range(2, 6))):
        numbers = [[6 * p + k for k in patches] for p in range(drawn // 6)]
        whole = [sum(counts[n] for n in ns) for ns in numbers if all(n in counts for n in ns)]
        assert sorted(pans[image]) == sorted(whole)


def test_a_reset_goes_back_to_the_first_photo():
    bank = telling_bank()
    env = ImageCounts(WeighingVectorEnv(4, bank, split=None, order="sequential"))
    first, _ = env.reset(seed=3)
    for _ in range(11):
        env.step(env.action_space.sample())
    again, _ = env.reset()
    np.testing.assert_array_equal(first, again)
    assert told_counts(env, scatter, 1) == told_counts(env, scatter, 1)


def test_image_counts_of_real_valued_counts_and_behind_other_wrappers():
    bank = telling_bank()
    task = WeighingTask.counts(float(bank.counts.max()))
    env = WeighingContinuousVectorEnv(7, bank, split=None, order="sequential")
    records = evaluate(scatter, bank, task=task).records
    counted = {int(i): c for i, c, _ in told_counts(ImageCounts(env), scatter, 4)}
    assert counted == pytest.approx({i: records[i].count for i in counted})
    viewed = ImageCounts(VectorDictView(env))
    flat = told_counts(viewed, lambda o: scatter(np.concatenate([o["features"], o["weights"]], 1)), 4)
    assert {int(i): c for i, c, _ in flat} == counted


def test_real_valued_counts_are_read_without_a_quantizer():
    """The greedy expert counts to half a hundredth per patch; figures that only intervals have are left out."""
    bank = telling_bank()
    steps = 14  # enough for the fullest patch
    task = WeighingTask.counts(float(bank.counts.max()), max_steps=steps)
    divisor = max(task.pool)

    def greedy(observations):
        value = np.rint(observations[:, -steps:].sum(1) * divisor).astype(np.int64)
        return task.optimal(observations[:, 1].astype(np.float64) / task.tick, value)

    coarse = bank.with_quantizer(Quantizer.integer(2))
    results = [evaluate(greedy, each, task=task) for each in (bank, coarse)]
    assert results[0] == results[1]
    result = results[0]
    for record, image in zip(result.records, bank.images):
        assert record.count == pytest.approx(record.people, abs=0.005 * image.patches + 1e-3)
    assert result.interval_accuracy is None
    assert result.regret is None
    assert result.mean_return == pytest.approx(expert(task, bank.counts.double().numpy() / task.tick).returns.mean())
    plain = result.to_dict()
    assert (plain["interval_accuracy"], plain["regret"]) == (None, None)
    console = Console(file=StringIO(), width=80)
    console.print(result.table())
    assert "nan" not in console.file.getvalue()


@pytest.mark.parametrize("readout", ["middle", "expectation", [0.0, 1.0]])
def test_a_readout_of_intervals_is_refused_for_real_valued_counts(readout):
    bank = telling_bank()
    task = WeighingTask.counts(float(bank.counts.max()))
    with pytest.raises(LibraError, match="real-valued"):
        evaluate(scatter, bank, task=task, readout=readout)
    with pytest.raises(LibraError, match="real-valued"):
        ImageCounts(WeighingContinuousVectorEnv(2, bank, split=None, order="sequential"), readout)


def test_image_counts_refuses_what_it_cannot_count():
    bank = telling_bank()
    with pytest.raises(LibraError, match="sequential"):
        ImageCounts(WeighingVectorEnv(2, bank, split=None))
    with pytest.raises(LibraError, match="DISABLED"):
        ImageCounts(WeighingVectorEnv(2, bank, split=None, order="sequential", autoreset_mode=AutoresetMode.DISABLED))
    with pytest.raises(LibraError, match="WeighingVectorEnv"):
        ImageCounts(gym.make_vec("CartPole-v1", 2))
    env = ImageCounts(WeighingVectorEnv(2, bank, split=None, order="sequential"))
    with pytest.raises(LibraError, match="patch"):
        env.reset(options={"patch": 3})
