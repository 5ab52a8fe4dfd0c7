"""A bank as a trained counter sees it: people in each patch, and how a weighing agent came to them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from experiments.runs.config import RunConfig, is_pretraining
from experiments.runs.counter import Counter, HeadCounter, SB3Counter
from experiments.runs.directory import RunDirectory
from libra_gym.bank import FeatureBank
from libra_gym.errors import LibraError
from libra_gym.evaluation import Policy, Weighed, counts_of, weigh
from libra_gym.metrics import Floats
from libra_gym.task import WeighingTask
from libra_gym.trajectories import Needle
from libra_gym.weigher import Weigher


@dataclass(frozen=True)
class Weighing:
    """How the patches of a bank were weighed."""

    task: WeighingTask
    weighed: Weighed
    needle: Needle | None
    """None of an agent that has no value for each action."""
    masked: bool
    """Whether the agent passes illegal actions over."""


@dataclass(frozen=True)
class CountedBank:
    """People in each patch of a bank."""

    bank: FeatureBank
    """With the counter's own intervals."""
    people: Floats
    """`(patches,)`."""
    intervals: npt.NDArray[np.int64]
    """As the counter named them, or those that its counts fall in: `(patches,)`."""
    weighing: Weighing | None
    """None of a one-step head."""

    @property
    def totals(self) -> Floats:
        """People counted in each image."""
        return self.bank.image_totals(torch.from_numpy(self.people)).numpy()


def count_bank(counter: Counter, bank: FeatureBank) -> CountedBank:
    """Count every patch of a bank with an opened counter."""
    if isinstance(counter, HeadCounter):
        bank = bank.with_quantizer(counter.head.quantizer)
        counts, named = counter.head.count(bank)
        people = counts.double().numpy()
        return CountedBank(bank, people, bank.quantizer.quantize(people) if named is None else named.numpy(), None)
    if isinstance(counter, Weigher):
        return weigh_bank(counter, bank, counter.task)
    if isinstance(counter, SB3Counter):
        return weigh_bank(counter.model, bank.with_quantizer(counter.quantizer), counter.task)
    raise LibraError(f"A {type(counter).__name__} does not tell how it counts each patch.")


def weigh_bank(policy: Policy, bank: FeatureBank, task: WeighingTask) -> CountedBank:
    """Weigh every patch of a bank."""
    if isinstance(policy, Weigher) and policy.quantizer is not None:
        bank = bank.with_quantizer(policy.quantizer)
    weighed = weigh(policy, bank, task)
    people = counts_of(weighed.value, task, bank)
    intervals = weighed.value if task.tick == 1.0 else bank.quantizer.quantize(people)
    return CountedBank(bank, people, intervals, Weighing(task, weighed, needle_of(policy), isinstance(policy, Weigher)))


def needle_of(policy: Any) -> Needle | None:
    """The Q values of a `Weigher` or of one of SB3's DQNs; None of an agent without any."""
    if isinstance(policy, Weigher):
        network = policy.network.eval()
        return lambda features, weights: network(features.to(policy.device), weights.to(policy.device))
    q_net, quantile_net = getattr(policy, "q_net", None), getattr(policy, "quantile_net", None)

    def ask(features: Tensor, weights: Tensor) -> Tensor:
        observations = torch.cat([features, weights], dim=1).to(policy.device)
        if q_net is not None:
            answer: Tensor = q_net(observations)
            return answer
        assert quantile_net is not None
        quantiles: Tensor = quantile_net(observations)  # (patches, quantiles, actions)
        return quantiles.mean(1)

    return None if q_net is None and quantile_net is None else ask


def discount_of(run: Path) -> float | None:
    """The γ that a run's Q values were learnt with; None of an imitator, and where only a model file is given."""
    if not run.is_dir():
        return None
    config = RunDirectory(run).config_path
    if is_pretraining(config):  # with --method weighing, which learns the loss of each action alone
        return 0.0
    gamma = RunConfig.load(config).settings.get("gamma")
    return None if gamma is None else float(gamma)
