"""Behaviour cloning and DAgger: whose states they learn on, and what they learn there."""

import gymnasium as gym
import pytest
import torch
from banks import make_bank
from torch.nn import functional as F

from agents import make_vec_env
from agents.imitation import BehaviourCloning, DAgger
from agents.libra_dqn import Transitions
from libra_gym.errors import LibraError
from libra_gym.oracle import expert
from libra_gym.weigher import Weigher

SMALL = {"hidden": [32, 32], "q_scale": 1.0, "init_std": None}


def scales(bank=None, num_envs=16, **kwargs):
    return make_vec_env(num_envs=num_envs, bank=make_bank() if bank is None else bank, split=None, **kwargs)


def imitator(cls=BehaviourCloning, env=None, **kwargs):
    settings = {"buffer_size": 2000, "learning_starts": 50, "batch_size": 32, "update_every": 10, "seed": 0}
    policy = {"network": SMALL, "optimizer_class": torch.optim.Adam}
    return cls("ScalePolicy", scales() if env is None else env, policy_kwargs=policy, **(settings | kwargs))


def stored(model):
    replay = model.learner.replay
    return Transitions(*(column[: len(replay)].long() for column in replay.rows))


def always_end(model):
    """Make the learner's own choice `end`, whatever it sees."""
    with torch.no_grad():
        model.learner.online.out.bias[model.learner.task.end] += 1e6


# ------------------------------------------------------------------------------------------------------- whose states


def test_behaviour_cloning_sees_the_experts_weighings_and_no_others():
    model = imitator()
    always_end(model)
    model.learn_epochs(1)
    rows, learner = stored(model), model.learner
    assert torch.equal(rows.action, learner.task.optimal(learner.truth[rows.patch], rows.value))
    weighings = expert(learner.task, learner.truth.numpy())
    assert len(rows.patch) == weighings.steps.sum()
    assert learner.summary.exact == weighings.balanced().mean()


def test_dagger_without_the_expert_sees_its_own_states():
    model = imitator(DAgger, beta_start=0.0)
    always_end(model)
    model.learner.learn_block()
    assert (stored(model).action == model.learner.task.end).all()


def test_a_coin_is_thrown_for_each_patch_and_step():
    model = imitator(DAgger, scales(make_bank(images=200), 4096), beta_start=0.5, beta_end=0.5, learning_starts=10**6)
    always_end(model)
    model.learner.learn_block()
    rows = stored(model)
    first = (rows.step == 0) & (model.learner.truth[rows.patch] > 0)  # where the expert would not end
    experts = (rows.action[first] != model.learner.task.end).float().mean()
    assert experts == pytest.approx(0.5, abs=0.06)


def test_beta_falls_in_a_line_from_epoch_to_epoch():
    model = imitator(DAgger, beta_step=0.4, beta_end=0.1)
    assert [model.learner.settings.beta(epoch) for epoch in range(4)] == pytest.approx([1.0, 0.6, 0.2, 0.1])
    cloning = imitator()
    assert [cloning.learner.settings.beta(epoch) for epoch in (0, 50)] == [1.0, 1.0]


# ------------------------------------------------------------------------------------------------------ what is learnt


def test_the_loss_is_the_cross_entropy_of_the_experts_action_among_the_legal_ones():
    learner = imitator().learner
    learner.learn_block()
    batch = learner.replay.sample(20, learner.generator)
    features = learner.bank.gather(batch.patch)
    logits = learner.online(features, learner.task.encode(batch.history)).detach()
    wanted = learner.task.optimal(learner.truth[batch.patch], batch.value)
    expected = []
    for row, action, value in zip(logits, wanted, batch.value):
        legal = learner.task.legal(value)
        expected.append(torch.logsumexp(row[legal], 0) - row[action])
    assert learner._loss(batch, features).item() == pytest.approx(torch.stack(expected).mean().item(), rel=1e-4)


def test_illegal_actions_get_no_gradient(monkeypatch):
    """On an empty pan the four negative weights are illegal."""
    learner = imitator().learner
    none = torch.zeros(4, dtype=torch.long)
    batch = Transitions(torch.arange(4), torch.zeros(4, 8, dtype=torch.uint8), none, none, none)
    learner._loss(batch, learner.bank.gather(batch.patch)).backward()
    gradient = learner.online.out.weight.grad
    assert (gradient[:4] == 0).all()
    assert gradient[4:].abs().sum(1).min() > 0
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("cls", [BehaviourCloning, DAgger])
def test_imitators_learn_what_the_features_tell(cls):
    bank = make_bank(images=60)
    model = imitator(cls, scales(bank, 64), learning_rate=1e-2, batch_size=64)
    before = model.weigher().evaluate(bank).mae
    model.learn_epochs(4)
    assert model.learner.summary.loss < F.cross_entropy(torch.zeros(1, 5), torch.zeros(1, dtype=torch.long))
    assert model.weigher().evaluate(bank).mae < 0.5 * before


def test_rewards_do_not_matter():
    models = [imitator(env=scales(rewards=rewards)) for rewards in ({}, {"shape": "error"}, {"guide": 0.0})]
    for model in models:
        model.learn_epochs(2)
    first, *others = (model.learner.online.state_dict() for model in models)
    assert all(torch.equal(first[key], other[key]) for other in others for key in first)


def test_real_valued_counts_are_imitated_too():
    bank = make_bank(images=60)
    model = imitator(DAgger, scales(bank, 64, env_id="LibraWeighingContinuous-v0"), learning_rate=1e-2, batch_size=64)
    before = model.weigher().evaluate(bank).mae
    model.learn_epochs(4)
    assert model.weigher().evaluate(bank).mae < 0.5 * before


# --------------------------------------------------------------------------------------------------------------- files


def test_an_imitator_is_saved_as_a_weigher_and_as_sb3s_zip(tmp_path):
    bank = make_bank()
    model = imitator(DAgger, scales(bank), beta_step=0.25)
    model.learn_epochs(1)
    model.weigher().save(tmp_path / "weigher.safetensors")
    assert Weigher.load(tmp_path / "weigher.safetensors").evaluate(bank).mae == model.weigher().evaluate(bank).mae
    model.save(tmp_path / "model.zip")
    again = DAgger.load(tmp_path / "model.zip", env=scales(bank), device="cpu")
    assert again.learner.settings == model.learner.settings
    assert again.weigher().evaluate(bank).mae == model.weigher().evaluate(bank).mae


def test_mistakes_are_named():
    with pytest.raises(LibraError, match="beta_start is 2"):
        imitator(DAgger, beta_start=2)
    with pytest.raises(LibraError, match=r"beta_end is 0\.5"):
        imitator(DAgger, beta_start=0.2, beta_end=0.5)
    with pytest.raises(LibraError, match="only they have an expert"):
        BehaviourCloning("MlpPolicy", gym.make("CartPole-v1"))


@pytest.mark.parametrize(
    ("change", "said"), [({"beta_end": 7.0}, "beta_end is 7"), ({"beta_step": "x"}, "beta_step is")]
)
def test_what_a_loaded_imitator_is_given_is_checked(tmp_path, change, said):
    imitator(DAgger).save(tmp_path / "model.zip")
    with pytest.raises(LibraError, match=said):
        DAgger.load(tmp_path / "model.zip", env=scales(), device="cpu", **change)
