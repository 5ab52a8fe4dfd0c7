"""What users of Stable-Baselines3 rely on, kept by LibraDQN: seeds, saved policies, progress bars, masks, refusals."""

import numpy as np
import pytest
import torch
from banks import make_bank
from dqn_helpers import agent, scales
from stable_baselines3 import A2C
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.vec_env import VecMonitor

from agents import make_vec_env
from agents.callbacks import EvaluationCallback
from agents.imitation import BehaviourCloning, DAgger
from agents.libra_dqn import LibraDQN
from agents.libra_dqn.policy import ScalePolicy
from libra_gym.errors import LibraError
from libra_gym.evaluation import evaluate
from libra_gym.network import standard


@pytest.fixture
def averaging():
    model = agent(average=0.99)
    model.learn_epochs(2)
    return model


def test_the_average_keeps_no_memory_of_its_updates(averaging):
    for weights in averaging.policy.average.parameters():
        assert weights.is_leaf
        assert weights.grad_fn is None
        assert not weights.requires_grad


def test_predict_acts_with_the_network_that_is_judged(averaging, tmp_path):
    env, bank = averaging.get_env(), make_bank()
    judged = averaging.weigher().evaluate(bank)
    raw = agent(env)
    raw.policy.q_net.load_state_dict(averaging.q_net.state_dict())
    assert evaluate(raw, bank, task=env.task).mae != judged.mae  # the last weights are not their average
    assert evaluate(averaging, bank, task=env.task).mae == pytest.approx(judged.mae)
    averaging.save(tmp_path / "agent.zip")
    loaded = LibraDQN.load(tmp_path / "agent.zip")
    assert evaluate(loaded, bank, task=env.task).mae == pytest.approx(judged.mae)


@pytest.mark.parametrize("average", [0.0, 0.99])
def test_a_policy_by_itself_is_saved_and_loaded(average, tmp_path):
    model = agent(average=average)
    model.learn_epochs(1)
    model.policy.save(tmp_path / "policy.pth")
    loaded = ScalePolicy.load(tmp_path / "policy.pth")
    observations = model.get_env().reset()
    ours, theirs = (policy.predict(observations, deterministic=True)[0] for policy in (model.policy, loaded))
    assert ours.tolist() == theirs.tolist()


def test_other_environments_are_refused_by_an_agent_of_the_scales(tmp_path):
    model = agent()
    model.save(tmp_path / "agent.zip")
    wrapped = VecMonitor(scales())
    with pytest.raises(LibraError, match=r"cannot go on with a VecMonitor.*without a wrapper"):
        model.set_env(wrapped)
    with pytest.raises(LibraError, match="cannot go on with a VecMonitor"):
        LibraDQN.load(tmp_path / "agent.zip", env=wrapped)
    cloning = BehaviourCloning(env=scales(), policy_kwargs={"network": {"hidden": [8]}})
    with pytest.raises(LibraError, match="only they have an expert"):
        cloning.set_env(wrapped)


def test_an_agent_of_wrapped_scales_has_sb3s_own_loop():
    model = LibraDQN("MlpPolicy", VecMonitor(scales()), buffer_size=1000, learning_starts=10)
    model.learn(200)
    model.set_env(scales())
    assert model.learner is None
    model.learn(200)


def test_seeds_that_are_set_later_are_kept_too():
    weights = []
    for _ in range(2):
        model = agent(seed=None)
        model.set_random_seed(3)
        for layer in (model.q_net, model.q_net_target):
            torch.manual_seed(0)
            for parameter in layer.parameters():
                torch.nn.init.normal_(parameter, 0.0, 0.1)
        model.learn(600)
        weights.append(next(model.q_net.parameters()).detach().clone())
    assert torch.equal(*weights)


def test_exploring_predictions_are_legal_and_thrown_row_by_row():
    model = agent(scales(num_envs=400), epsilon_start=0.5)
    model.exploration_rate = 0.5
    env = model.get_env()
    observations = env.reset()
    greedy, _ = model.predict(observations, deterministic=True)
    drawn, _ = model.predict(observations, deterministic=False)
    assert drawn.shape == greedy.shape
    assert env.action_masks()[np.arange(400), drawn].all()
    assert 0.25 < (drawn != greedy).mean() < 0.55  # half of the rows, some of them by chance the same
    one, _ = model.predict(observations[0], deterministic=False)
    assert np.shape(one) == ()


@pytest.mark.parametrize("encoding", ["value", "index"])
def test_what_is_legal_is_known_after_weights_that_the_pan_cut_off(encoding):
    env = scales(num_envs=64, weight_encoding=encoding)
    model = agent(env)
    observations = env.reset()
    rng = np.random.default_rng(0)
    for _ in range(6):  # no `end`, and no care for the range
        observations = env.step(rng.integers(0, env.task.end, 64))[0]
        legal = model.q_net.legal(torch.from_numpy(observations))
        assert legal.tolist() == env.action_masks().tolist()


def test_a_progress_bar_counts_transitions(monkeypatch):
    from agents.libra_dqn import progress

    bars = []

    class Bar(progress.BlockBar):
        def _on_training_end(self):
            bars.append((self.pbar.n, self.pbar.total))
            super()._on_training_end()

    monkeypatch.setattr(progress, "BlockBar", Bar)
    model = agent()
    model.learn(300, progress_bar=True)
    first = model.num_timesteps
    model.learn(300, reset_num_timesteps=False, progress_bar=True)
    assert bars == [(first, 300), (model.num_timesteps - first, 300)]


def test_a_callback_judges_every_training_from_its_beginning():
    env = make_vec_env(num_envs=25)
    judged = []

    class Judge(EvaluationCallback):
        def on_epoch(self, evaluation, improved):
            judged.append(self.num_timesteps)

    callback = Judge(make_bank(channels=512), epoch_steps=500)
    callback._judge = lambda epoch: (setattr(callback, "epoch", epoch), callback.on_epoch(None, False))
    for _ in range(2):
        A2C("MlpPolicy", env).learn(1500, callback)
    assert judged == [500, 1000, 1500] * 2


def test_optimisers_that_count_in_plain_numbers_go_on():
    def make():
        model = agent()
        model.policy.optimizer = RMSpropTFLike(model.q_net.parameters(), 1e-3)
        model.learner.optimizer = model.policy.optimizer
        return model

    model = make()
    model.learn_epochs(1)
    tensors, numbers = model.learner.state()
    assert any(key.endswith(":int") for key in tensors)
    again = make()
    again.learner.load_state({key: value.clone() for key, value in tensors.items()}, numbers)
    for each in (model, again):
        each.learn_epochs(2, reset_num_timesteps=False)
    assert torch.equal(next(model.q_net.parameters()), next(again.q_net.parameters()))


def test_one_patch_has_no_deviation():
    mean, factor = standard(torch.tensor([[1.0, 2.0]]))
    assert mean.tolist() == [1.0, 2.0]
    assert torch.isfinite(factor).all()


def test_a_counter_with_another_encoding_is_not_started_from():
    counter = agent(scales(weight_encoding="index")).weigher()
    with pytest.raises(LibraError, match="weight_encoding index, but this agent has value"):
        agent().start_from(counter)
    with pytest.raises(LibraError, match="weight_encoding is 'index'"):
        counter.weigh(make_bank(), scales().task)


def test_options_and_methods_that_scales_cannot_have_one_by_one():
    env = scales(num_envs=2)
    env.set_options({"patch": 1})
    with pytest.raises(LibraError, match="options are not supported"):
        env.reset()
    env.reset()  # the refusal is not for ever
    with pytest.raises(LibraError, match="reset together"):
        env.env_method("reset", indices=[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: agent(epsilon_start=0.0), r"epsilon_end is 0.1.*at most epsilon_start, 0.0"),
        (lambda: agent(learning_rate=lambda left: left, final_learning_rate=0.0), "goes with a number"),
        (lambda: DAgger(env=scales(), beta_start=0.2, beta_end=0.5), "beta_end is 0.5"),
        (lambda: LibraDQN(env=scales(), policy_kwargs={"net_arch": [64]}), "'hidden'"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(make, message):
    with pytest.raises(LibraError, match=message):
        make()
