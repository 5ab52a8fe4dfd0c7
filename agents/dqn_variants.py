"""Two well-known variants of SB3's DQN, on SB3's own loop and replay, for comparison with LibraDQN.

Stable-Baselines3 and sb3-contrib offer neither. Each differs from `stable_baselines3.DQN` in its one idea alone, so
that all three share a recipe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import create_mlp
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.common.utils import safe_mean
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import Tensor, nn
from torch.nn import functional as F


class DoubleDQN(DQN):
    """SB3's DQN whose target is chosen by the online and valued by the target network (van Hasselt et al., 2016)."""

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """SB3's update with a double Q target."""
        learn_differences(self, gradient_steps, batch_size, loss=F.smooth_l1_loss, double=True)


def learn_differences(
    model: DQN, gradient_steps: int, batch_size: int, *, loss: Callable[[Tensor, Tensor], Tensor], double: bool
) -> None:
    """`DQN.train` with the loss and the kind of target that are asked for."""
    model.policy.set_training_mode(True)
    model._update_learning_rate(model.policy.optimizer)
    assert isinstance(model.replay_buffer, ReplayBuffer)
    losses = []
    for _ in range(gradient_steps):
        data = model.replay_buffer.sample(batch_size, env=model._vec_normalize_env)
        own = getattr(data, "discounts", None)  # n-step returns bring their own; SB3 knows them since 2.7
        discounts = model.gamma if own is None else own
        with torch.no_grad():
            values = model.q_net_target(data.next_observations)
            chooser = model.q_net(data.next_observations) if double else values
            best = values.gather(1, chooser.argmax(1, keepdim=True))
            target = data.rewards + (1 - data.dones) * discounts * best
        error = loss(model.q_net(data.observations).gather(1, data.actions.long()), target)
        model.policy.optimizer.zero_grad()
        error.backward()
        torch.nn.utils.clip_grad_norm_(model.policy.parameters(), model.max_grad_norm)
        model.policy.optimizer.step()
        losses.append(error.item())
    model._n_updates += gradient_steps
    model.logger.record("train/n_updates", model._n_updates, exclude="tensorboard")
    model.logger.record("train/loss", safe_mean(np.array(losses)))


class DuelingQNetwork(QNetwork):
    """Q = value + advantage − mean advantage (Wang et al., 2016).

    The last layer of `net_arch` is there twice, once for the value and once for the advantages; those before it are
    shared.
    """

    def __init__(self, **net_args: Any) -> None:
        super().__init__(**net_args)
        shared, last = self.net_arch[:-1], self.net_arch[-1:]
        width = shared[-1] if shared else self.features_dim
        actions = int(self.action_space.n)
        self.q_net = nn.Sequential(*create_mlp(self.features_dim, -1, shared, self.activation_fn))
        self.value = nn.Sequential(*create_mlp(width, 1, last, self.activation_fn))
        self.advantage = nn.Sequential(*create_mlp(width, actions, last, self.activation_fn))

    def forward(self, obs: PyTorchObs) -> Tensor:
        """Q values of all actions."""
        x = super().forward(obs)
        advantage = self.advantage(x)
        q: Tensor = self.value(x) + advantage - advantage.mean(1, keepdim=True)
        return q


class DuelingPolicy(DQNPolicy):
    """SB3's DQN policy with a `DuelingQNetwork`."""

    def make_q_net(self) -> QNetwork:
        """The Q network, used for the online and the target one."""
        net_args = self._update_features_extractor(self.net_args, features_extractor=None)
        return DuelingQNetwork(**net_args).to(self.device)


class DuelingDQN(DQN):
    """SB3's DQN with a dueling network."""

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"MlpPolicy": DuelingPolicy}
