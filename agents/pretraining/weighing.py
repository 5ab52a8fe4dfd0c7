"""LibraNet end to end: the scale as the head of a backbone that learns with it.

The paper freezes the backbone and weighs one look at each photo. Here a trained scale goes on learning from every crop,
mirrored, scaled and coloured as in the pre-training, and its loss reaches the backbone. Where the backbone still has
the one-step head of its pre-training, that one learns beside the scale and keeps the features what they were for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from agents.pretraining.network import BlockClassifier, PatchHead, fill_head
from agents.pretraining.settings import Readout
from agents.state import under
from libra_gym.backbones import read_weights
from libra_gym.counter import Counter
from libra_gym.errors import LibraError
from libra_gym.tables import TaskTables
from libra_gym.weigher import Weigher

NEEDS_MODEL = "The method 'weighing' goes on with a model that counts; give it as --init."


class Situations(NamedTuple):
    """What a weighing has met, one per row."""

    patch: Tensor
    history: Tensor
    """(rows, max_steps) uint8: actions taken before, plus one; 0 is empty."""
    value: Tensor
    step: Tensor


class Weighing(PatchHead):
    """A Q network over the patches' features, and perhaps a one-step head that learns beside it.

    Args:
        weigher: the scale to go on with; it must weigh intervals and be rewarded by the error that an action takes
            away, so that a reward is all there is to learn of an action.
        one_step: a classifier on the same features.
        epsilon: the share of random actions in the weighings that are learnt from.
        reach: what share of its gradient the scale's loss passes on to the features. That gradient is some ten times as
            large as the one-step head's, with models that were trained one after the other.
    """

    def __init__(
        self, weigher: Weigher, one_step: BlockClassifier | None = None, epsilon: float = 0.3, reach: float = 0.1
    ) -> None:
        if weigher.quantizer is None or weigher.task.rewards.shape != "error":
            raise LibraError("Only a scale of intervals with rewards of shape 'error' can learn with its backbone.")
        super().__init__(weigher.network.settings.channels, weigher.quantizer)
        self.network = weigher.network.requires_grad_(True)
        self.task = weigher.task
        self.one_step = one_step
        self.epsilon = epsilon
        self.reach = reach

    @classmethod
    def load(cls, scale: Path, one_step: Path | None, epsilon: float, reach: float, *, channels: int) -> Weighing:
        """The scale of a model file, and the one-step head that another file, or else this one, may hold."""
        weigher = Counter.load(scale).weigher
        if (expected := weigher.network.settings.channels) != channels:
            raise LibraError(
                f"The scale of {scale} weighs {expected} features a patch, but the backbone gives {channels}; give "
                "--backbone as the model has it."
            )
        given: dict[str, Tensor] = {}
        origin = scale
        for path in (one_step, scale):
            if path is not None and not given:
                given, origin = under("head.", read_weights(path)), path
        if not given or weigher.quantizer is None:
            return cls(weigher, None, epsilon, reach)
        head = BlockClassifier(weigher.network.settings.channels, weigher.quantizer)
        fill_head(head, given, str(origin))
        return cls(weigher, head, epsilon, reach)

    def forward(self, features: Tensor) -> Tensor:
        """The features as they are: how they are weighed depends on what lies on the pans."""
        return features

    def loss(self, out: Tensor, counts: Tensor, valid: Tensor, count_loss: float) -> Tensor:
        """Huber's loss of the rewards of all legal actions in situations of a weighing, and the one-step loss."""
        features, people = out.movedim(1, -1)[valid], counts[valid]  # (patches, channels)
        rules = TaskTables(self.task, features.device)
        met = self._weigh(features.detach(), rules)
        picked = torch.randperm(len(met.patch), device=features.device)[: len(features)]  # one a patch is enough
        met = Situations(*(column[picked] for column in met))
        reached = features.detach().lerp(features, self.reach)
        q = self.network(reached[met.patch], self.task.encode(met.history))
        wanted = rules.all_rewards(self.quantizer.quantize(people)[met.patch], met.value, met.step)
        legal = rules.legal(met.value)
        loss = F.smooth_l1_loss(q[legal], wanted[legal])
        if self.one_step is not None:
            loss = loss + self.one_step.loss(self.one_step(out), counts, valid, count_loss)
        return loss

    @torch.no_grad()
    def _weigh(self, features: Tensor, rules: TaskTables) -> Situations:
        """Weigh patches to their ends; now and then an action is random."""
        learning = self.network.training
        self.network.eval()
        embedded = self.network.embed(features)
        patch = torch.arange(len(features), device=features.device)
        value = torch.zeros_like(patch)
        history = torch.zeros(len(patch), self.task.max_steps, dtype=torch.uint8, device=features.device)
        met = []
        for step in range(self.task.max_steps):
            met.append(Situations(patch, history.clone(), value, torch.full_like(value, step)))
            legal = rules.legal(value)
            q = self.network.q(embedded, self.task.encode(history))
            at_random = torch.rand(len(value), 1, device=value.device) < self.epsilon
            action = torch.where(at_random, torch.rand_like(q), q).masked_fill(~legal, -torch.inf).argmax(1)
            history[:, step] = (action + 1).to(torch.uint8)
            value = self.task.place(value, action)
            live = (action != self.task.end).nonzero().squeeze(1)
            patch, history, value, embedded = patch[live], history[live], value[live], embedded[live]
            if len(live) == 0:
                break
        self.network.train(learning)
        return Situations(*(torch.cat(columns) for columns in zip(*met)))

    @property
    def readouts(self) -> tuple[Readout, ...]:
        """Weighed, and as the one-step head reads the same features."""
        return ("weighed", *(() if self.one_step is None else self.one_step.readouts))

    def read(self, out: Tensor, readout: Readout) -> Tensor:
        """People in each patch, weighed greedily or read by the one-step head."""
        if readout != "weighed" and self.one_step is not None:
            return self.one_step.read(self.one_step(out), readout)
        batch, _, rows, cols = out.shape
        value, _ = self.weigher({}).weigh_features(out.movedim(1, -1).flatten(0, 2))
        return self.values[value].reshape(batch, rows, cols)

    def weigher(self, about: Mapping[str, Any]) -> Weigher:
        """The scale as it is now."""
        return Weigher(self.network, self.task, self.quantizer, about)
