"""What users of Stable-Baselines3 rely on, kept by LibraDQN: seeds, saved policies, progress bars, masks, refusals."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
from banks import make_bank
from dqn_helpers import agent, scales
from sb3_contrib import RecurrentPPO
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import CallbackList, ProgressBarCallback, StopTrainingOnMaxEpisodes
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.vec_env import VecFrameStack, VecMonitor, VecNormalize

from agents import make_vec_env
from agents.callbacks import EvaluationCallback
from agents.imitation import BehaviourCloning, DAgger
from agents.libra_dqn import LibraDQN
from agents.libra_dqn.policy import ScalePolicy
from agents.libra_dqn.progress import BlockBar
from libra_gym.errors import LibraError
from libra_gym.evaluation import evaluate, weigh
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


def test_scales_that_a_wrapper_hides_are_refused():
    with pytest.raises(LibraError, match=r"a VecMonitor round them would leave SB3's own loop"):
        LibraDQN("MlpPolicy", VecMonitor(scales()))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"quantile": 0.7}, "quantile"),
        ({"normalise": True}, "normalise"),
        ({"policy_kwargs": {"network": {"hidden": [8]}}}, "network"),
    ],
)
def test_what_only_the_scales_have_is_refused_elsewhere(settings, named):
    with pytest.raises(LibraError, match=rf"{named}.* is for the scales of agents.make_vec_env"):
        LibraDQN("MlpPolicy", "CartPole-v1", **settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"policy": "CnnPolicy"}, "CnnPolicy cannot weigh"),
        ({"policy_kwargs": {"network": {"hiden": [8]}}}, "has no 'hiden'; it has: dropout, dueling, hidden"),
        ({"policy_kwargs": {"network": {"channels": 8}}}, "has no 'channels'"),
        ({"env": None}, "needs an environment"),
        ({"buffer_size": 100, "batch_size": 128}, "batch_size is 128, but the buffer holds 100"),
    ],
)
def test_what_cannot_be_made_is_said_in_a_sentence(settings, said):
    with pytest.raises(LibraError, match=said):
        LibraDQN(**({"policy": "ScalePolicy", "env": scales()} | settings))


def test_the_optimiser_is_the_papers_unless_told_otherwise():
    assert type(LibraDQN(env=scales()).policy.optimizer) is torch.optim.SGD
    assert type(agent().policy.optimizer) is torch.optim.Adam


def test_evaluate_weighs_as_the_agent_does_or_refuses():
    env = scales(weight_encoding="index")
    model = agent(env)
    model.learn_epochs(1)
    bank = make_bank()
    assert evaluate(model, bank, task=env.task).mae == model.weigher().evaluate(bank).mae
    with pytest.raises(LibraError, match="weight_encoding is 'index', but it is asked to weigh with 'value'"):
        evaluate(model, bank)


def test_loading_takes_the_constructors_arguments(tmp_path):
    given = {"network": {"hidden": [8]}}
    LibraDQN(env=scales(), policy_kwargs=given).save(tmp_path / "agent.zip")

    def load(**arguments):
        return LibraDQN.load(tmp_path / "agent.zip", env=scales(), **arguments)

    assert load(epsilon_start=0.3, epsilon_end=0.2).learner.settings.epsilon_start == 0.3
    assert load(learning_rate=1e-2, final_learning_rate=0.0).lr_schedule(0.5) == 5e-3
    assert load(learning_starts=None, buffer_size=500).learner.settings.learning_starts == 500
    assert load(max_grad_norm=None, policy_kwargs=given).learner.settings.max_grad_norm == np.inf
    for arguments, said in (
        ({"gamma": 7.0}, "gamma is 7.0"),
        ({"loss": "l2"}, "loss is 'l2'"),
        ({"final_learning_rate": 0.0}, "goes with a learning_rate"),
        ({"epsilon_start": 0.05}, "epsilon_end is 0.1"),
    ):
        with pytest.raises(LibraError, match=said):
            load(**arguments)


def test_a_seed_in_mid_epoch_leaves_each_patch_its_turn():
    model = agent()
    weighed, weigh = [], model.learner._weigh
    model.learner._weigh = lambda patches: weighed.extend(patches.tolist()) or weigh(patches)
    model.learn(1)  # a block
    assert 0 < model.learner.cursor < len(model.learner.bank)
    model.set_random_seed(5)
    model.learn_epochs(1)
    assert sorted(weighed) == list(range(len(model.learner.bank)))


def test_callbacks_that_read_sb3s_loop_find_what_they_read():
    stop = StopTrainingOnMaxEpisodes(max_episodes=2)
    callbacks = CallbackList([stop, ProgressBarCallback()])
    model = agent()
    model.learn(100_000, callbacks)
    assert stop.n_episodes == 32  # two for each of the scales
    bar = callbacks.callbacks[1]
    assert isinstance(bar, BlockBar)
    assert bar.pbar.n == model.num_timesteps


def test_many_scales_give_no_warning_about_a_loop_that_is_not_used():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent(scales(num_envs=12_000))


def test_what_cannot_be_judged_or_saved_is_named_before_anything_is_learnt():
    def callback(**settings):
        return EvaluationCallback(make_bank(channels=512), **{"epoch_steps": 100, **settings})

    stacked = PPO("MlpPolicy", VecFrameStack(make_vec_env(num_envs=8), 2), n_steps=8, batch_size=16)
    with pytest.raises(LibraError, match="cannot be judged on a bank through a VecFrameStack"):
        stacked.learn(8, callback())
    model = PPO("MlpPolicy", make_vec_env(num_envs=8), n_steps=8, batch_size=16)
    with pytest.raises(LibraError, match=r"PPO has no safetensors form.*'b.safetensors'"):
        model.learn(8, callback(best_path="b.safetensors"))
    recurrent = RecurrentPPO("MlpLstmPolicy", make_vec_env(num_envs=8), n_steps=8, batch_size=16)
    with pytest.raises(LibraError, match="returned a state"):
        recurrent.learn(8, callback())
    assert stacked.num_timesteps == model.num_timesteps == recurrent.num_timesteps == 0
    with pytest.raises(LibraError, match="epoch_steps is 0"):
        callback(epoch_steps=0)


@pytest.mark.parametrize("norm_obs", [True, False])
def test_an_agent_is_judged_by_what_its_own_normalisation_shows_it(norm_obs):
    """The same policy, once behind `VecNormalize` and once behind the same sums by hand."""
    envs = VecNormalize(make_vec_env(num_envs=8, seed=0), norm_obs=norm_obs)
    bank = make_bank(channels=512).with_quantizer(envs.venv.bank.quantizer)
    model = PPO("MlpPolicy", envs, n_steps=8, batch_size=16, seed=0)
    model.learn(64, EvaluationCallback(bank, epoch_steps=64))

    def by_hand(observations):
        return model.policy.predict(envs.normalize_obs(observations), deterministic=True)[0]

    weighed = [weigh(policy, bank, envs.venv.task).actions.tolist() for policy in (model, by_hand)]
    assert weighed[0] == weighed[1]


def test_other_environments_are_no_scales():
    with pytest.raises(LibraError, match="'CartPole-v1' is not a weighing environment"):
        make_vec_env("CartPole-v1")
    with pytest.raises(TypeError, match="flavour"):
        make_vec_env(flavour="sweet")
    assert make_vec_env(num_envs=2).get_attr("action_space") == [gym.spaces.Discrete(9)] * 2


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
    second = model.num_timesteps
    model.learn_epochs(model.learner.epoch + 1, Bar(), reset_num_timesteps=False)
    assert bars[:2] == [(first, 300), (second - first, 300)]
    assert bars[2] == (model.num_timesteps - second, None)  # nobody knows how many an epoch will have


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
