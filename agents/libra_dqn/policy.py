"""The SB3 policy around the scale's Q network."""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import Tensor, nn

from libra_gym.errors import LibraError
from libra_gym.network import NetworkSettings, ScaleNetwork
from libra_gym.task import WeighingTask


class ScaleQNetwork(QNetwork):
    """SB3's `QNetwork` on the flat observation of a scale; the network itself knows nothing of SB3.

    What lies on the pan can be read off the weight vector, so the greedy action is always a legal one.
    """

    def __init__(self, task: WeighingTask, network: NetworkSettings, **net_args: Any) -> None:
        super().__init__(**net_args)
        self.task = task
        self.channels = network.channels
        self.q_net = ScaleNetwork(network)  # type: ignore[assignment]  # in place of SB3's Sequential

    def forward(self, obs: PyTorchObs) -> Tensor:
        """Q values of all actions."""
        assert isinstance(obs, Tensor)
        return self.q_values(obs, self.q_net)  # type: ignore[arg-type]

    def q_values(self, obs: Tensor, network: ScaleNetwork) -> Tensor:
        """What a network of this form says of these observations."""
        obs = obs.float()
        q: Tensor = network(obs[:, : self.channels], obs[:, self.channels :])
        return q

    def legal(self, obs: Tensor) -> Tensor:
        """Which actions keep the value in range, from what the weight vector shows."""
        weights = obs[:, self.channels :]
        codes = self.task.encode(torch.arange(self.task.num_actions + 1, device=obs.device))  # 0 is empty
        taken = (weights[..., None] - codes).abs().argmin(-1) - 1  # (rows, steps)
        value = torch.zeros_like(taken[:, 0])
        for action in torch.where(taken < 0, self.task.end, taken).unbind(1):  # in their order: the pan cuts off
            value = self.task.place(value, action)
        return self.task.legal(value)

    def _predict(self, observation: PyTorchObs, deterministic: bool = True) -> Tensor:
        assert isinstance(observation, Tensor)
        return self(observation).masked_fill(~self.legal(observation), -torch.inf).argmax(1)


class ScalePolicy(DQNPolicy):
    """SB3's DQN policy; when a task is given, with a `ScaleQNetwork` and, unless told otherwise, SGD.

    Args:
        task: the settings of the weighing task (`WeighingTask.to_dict`); `LibraDQN` fills them in from its environment.
        network: changes to `NetworkSettings`, for instance `{"dueling": True}`.
        average: keep a running average of the network's weights as the module `average`, and act with it.
    """

    average: ScaleNetwork | None

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        net_arch: list[int] | None = None,
        activation_fn: type[nn.Module] = nn.ReLU,
        task: dict[str, Any] | None = None,
        network: dict[str, Any] | None = None,
        average: bool = False,
        **kwargs: Any,
    ) -> None:
        self.task = None if task is None else WeighingTask.from_dict(task)
        self.network = network or {}
        self.averaging = average
        if self.task is not None:
            if net_arch or activation_fn is not nn.ReLU:
                raise LibraError(
                    "net_arch and activation_fn are of SB3's own network; on the scales the hidden layers are "
                    "policy_kwargs={'network': {'hidden': [1024, 1024]}}, with ReLU between them."
                )
            net_arch = []  # SB3's own layers are not used
            kwargs.setdefault("optimizer_class", torch.optim.SGD)  # the paper's
        super().__init__(observation_space, action_space, lr_schedule, net_arch, activation_fn, **kwargs)

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        self.average = None
        if self.averaging and isinstance(self.q_net.q_net, ScaleNetwork):
            self.average = copy.deepcopy(self.q_net.q_net).requires_grad_(False).eval()

    def _predict(self, obs: PyTorchObs, deterministic: bool = True) -> Tensor:
        if self.average is None:
            return super()._predict(obs, deterministic)
        assert isinstance(obs, Tensor)
        assert isinstance(self.q_net, ScaleQNetwork)
        q = self.q_net.q_values(obs, self.average)
        return q.masked_fill(~self.q_net.legal(obs), -torch.inf).argmax(1)

    def make_q_net(self) -> QNetwork:
        """The Q network, or SB3's own without a task."""
        if self.task is None:
            return super().make_q_net()
        assert self.observation_space.shape is not None
        known = {field.name for field in fields(NetworkSettings)} - {"channels", "steps", "actions"}
        for name in self.network:
            if name not in known:
                raise LibraError(f"policy_kwargs['network'] has no {name!r}; it has: {', '.join(sorted(known))}.")
        settings = NetworkSettings(
            channels=self.observation_space.shape[0] - self.task.max_steps,
            steps=self.task.max_steps,
            actions=self.task.num_actions,
            **self.network,
        )
        net_args = self._update_features_extractor(self.net_args, features_extractor=None)
        return ScaleQNetwork(self.task, settings, **net_args).to(self.device)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        task = None if self.task is None else self.task.to_dict()
        own = {"task": task, "network": self.network, "average": self.averaging}
        return {**super()._get_constructor_parameters(), **own}
