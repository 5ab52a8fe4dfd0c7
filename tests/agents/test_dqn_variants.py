"""Double and dueling DQN: SB3's DQN, and one idea more."""

import numpy as np
import pytest
import torch
from banks import make_bank
from stable_baselines3 import DQN
from stable_baselines3.common.logger import Logger
from torch.nn import functional as F

from agents import make_vec_env
from agents.dqn_variants import DoubleDQN, DuelingDQN, DuelingQNetwork, learn_differences
from agents.registry import find_algorithm


def model(cls, net_arch=(16, 16)):
    """An algorithm with a hundred transitions to learn from, and a target network of its own mind."""
    env = make_vec_env(num_envs=4, seed=0, bank=make_bank(), split=None)
    made = cls(
        "MlpPolicy",
        env,
        buffer_size=400,
        learning_starts=400,
        seed=0,
        gamma=0.9,
        device="cpu",
        policy_kwargs={"net_arch": list(net_arch)},
    )
    made.learn(100)
    made.set_logger(Logger(None, []))
    torch.manual_seed(1)
    for parameter in made.q_net_target.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return made


def batch(made, number=32):
    np.random.seed(0)  # noqa: NPY002 (what SB3's buffer draws from)
    data = made.replay_buffer.sample(number)
    np.random.seed(0)  # noqa: NPY002
    return data


def test_the_double_target_is_chosen_by_one_network_and_valued_by_the_other():
    made = model(DoubleDQN)
    data = batch(made)
    with torch.no_grad():
        chosen, values = made.q_net(data.next_observations).argmax(1), made.q_net_target(data.next_observations)
        assert (chosen != values.argmax(1)).any()  # or the test would tell nothing
        following = values[torch.arange(32), chosen]
        wanted = data.rewards[:, 0] + 0.9 * (1 - data.dones[:, 0]) * following
        q = made.q_net(data.observations)[torch.arange(32), data.actions[:, 0]]
        expected = F.smooth_l1_loss(q, wanted).item()
    made.train(1, 32)
    assert made.logger.name_to_value["train/loss"] == pytest.approx(expected, rel=1e-5)
    assert made._n_updates == 1


def test_without_the_double_target_an_update_is_sb3s_own():
    ours, theirs = model(DQN), model(DQN)
    batch(ours)
    learn_differences(ours, 3, 32, loss=F.smooth_l1_loss, double=False)
    batch(theirs)
    theirs.train(3, 32)
    assert ours.logger.name_to_value["train/loss"] == theirs.logger.name_to_value["train/loss"]
    for a, b in zip(ours.q_net.parameters(), theirs.q_net.parameters()):
        assert torch.equal(a, b)


@pytest.mark.parametrize("net_arch", [(16, 16), (16,), ()])
def test_dueling_q_values_have_the_value_as_their_mean(net_arch):
    made = model(DuelingDQN, net_arch)
    observations = batch(made).observations
    for network in (made.q_net, made.q_net_target):
        assert isinstance(network, DuelingQNetwork)
        q = network(observations)
        assert q.shape == (32, 9)
        value = network.value(network.q_net(observations)).squeeze(1)
        torch.testing.assert_close(q.mean(1), value)
        assert q.std(1).min() > 0


def test_a_dueling_network_learns_in_both_streams_and_survives_a_zip(tmp_path):
    made = model(DuelingDQN)
    before = {key: value.clone() for key, value in made.q_net.state_dict().items()}
    made.train(1, 32)
    changed = {
        key.split(".")[0] for key, value in made.q_net.state_dict().items() if not torch.equal(before[key], value)
    }
    assert changed == {"q_net", "value", "advantage"}
    made.save(tmp_path / "model.zip")
    again = DuelingDQN.load(tmp_path / "model.zip", device="cpu")
    observations = batch(made).observations
    assert torch.equal(again.q_net(observations), made.q_net(observations))


def test_ones_own_class_takes_the_recipe_of_what_it_extends(tmp_path, monkeypatch):
    (tmp_path / "my_variants.py").write_text(
        "from sb3_contrib import MaskablePPO\n"
        "from stable_baselines3 import SAC\n"
        "from agents.dqn_variants import DuelingDQN\n"
        "from agents.imitation import DAgger\n"
        "class MyDueling(DuelingDQN): ...\n"
        "class MyDAgger(DAgger): ...\n"
        "class MyPPO(MaskablePPO): ...\n"
        "class Other(SAC): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = {name: find_algorithm(f"my_variants:{name}") for name in ("MyDueling", "MyDAgger", "MyPPO", "Other")}
    assert {name: (line.kind, line.recipe) for name, line in found.items()} == {
        "MyDueling": ("sb3", "dqn"),
        "MyDAgger": ("libra", "dagger"),
        "MyPPO": ("sb3", "maskable_ppo"),
        "Other": ("sb3", "custom"),
    }
