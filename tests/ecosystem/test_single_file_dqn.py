"""A plain DQN in one file, on nothing but Gymnasium's vector API, as CleanRL writes them."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import libra_gym  # noqa: F401 (registers the environments)

pytestmark = pytest.mark.filterwarnings("error")


def dqn(envs, *, steps, seed=1, gamma=0.9, learning_starts=20, updates=3, batch_size=128, target_every=25):
    """Returns the Q network, the losses and the returns of the finished episodes."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    number, inputs = envs.observation_space.shape
    actions = int(envs.single_action_space.n)

    def network():
        return nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, actions))

    q, target = network(), network()
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
    losses, returns = [], []

    observations, _ = envs.reset(seed=seed)
    room = steps * number
    memory = [  # observation, action, reward, observation after it, end
        np.zeros((room, *shape), dtype)
        for shape, dtype in [((inputs,), "f4"), ((), "i8"), ((), "f4"), ((inputs,), "f4"), ((), "?")]
    ]
    stored = 0
    running, fresh = np.zeros(number), np.ones(number, dtype=bool)
    for step in range(steps):
        with torch.no_grad():
            chosen = q(torch.from_numpy(observations)).argmax(1).numpy()
        explore = rng.random(number) < max(0.1, 1 - 2 * step / steps)
        chosen = np.where(explore, rng.integers(actions, size=number), chosen)
        after, rewards, terminated, truncated, _ = envs.step(chosen)
        assert not truncated.any()
        # An environment that ended takes its next patch in the next step, which is no transition.
        rows = slice(stored, stored := stored + fresh.sum())
        for column, data in zip(memory, (observations, chosen, rewards, after, terminated), strict=True):
            column[rows] = data[fresh]
        running += rewards
        returns.extend(running[terminated])
        running[terminated] = 0.0
        observations, fresh = after, ~terminated

        if step < learning_starts:
            continue
        for _ in range(updates):
            index = rng.integers(stored, size=batch_size)
            o, a, r, n, done = (torch.from_numpy(column[index]) for column in memory)
            with torch.no_grad():
                goal = r + gamma * target(n).max(1).values * ~done
            loss = F.smooth_l1_loss(q(o).gather(1, a[:, None]).squeeze(1), goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if step % target_every == 0:
            target.load_state_dict(q.state_dict())
    return q, np.array(losses), np.array(returns)


def test_it_learns_on_gymnasiums_batch_and_the_same_on_ours():
    """The native batch is the same game, to the last bit of the last weight."""
    runs = []
    for mode in ("sync", None):
        envs = gym.make_vec("LibraWeighing-v0", num_envs=32, vectorization_mode=mode)
        q, losses, returns = dqn(envs, steps=200)
        envs.close()
        assert np.isfinite(losses).all()
        quarter = len(returns) // 4
        assert returns[-quarter:].mean() > returns[:quarter].mean() + 3
        runs.append((nn.utils.parameters_to_vector(q.parameters()).detach(), losses, returns))
    for theirs, ours in zip(*runs, strict=True):
        np.testing.assert_array_equal(theirs, ours)
