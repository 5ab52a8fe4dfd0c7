"""The learning loop on a feature bank, in tensors on one device (Algorithm 1 of the paper).

Nothing in it knows of SB3 or numpy. A block of patches is weighed to the end with the network as it is, its transitions
go to the replay, and the updates that they pay for follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from agents.libra_dqn.replay import IndexReplay, Transitions
from agents.state import load_optimizer_tensors, optimizer_tensors, under
from libra_gym.bank import FeatureBank
from libra_gym.errors import LibraError
from libra_gym.network import NetworkSettings, ScaleNetwork, standard
from libra_gym.tables import TaskTables
from libra_gym.task import WeighingTask
from libra_gym.weigher import Weigher

LossFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class LearnerSettings:
    """How to learn; `LibraDQN` explains each setting."""

    block: int
    buffer_size: int
    learning_starts: int
    batch_size: int
    gamma: float
    update_every: int
    epsilon_start: float
    epsilon_end: float
    epsilon_step: float
    syncs: int
    easy_drop: float
    double: bool
    mask_target: bool
    backup: Literal["taken", "all"]
    average: float
    max_grad_norm: float
    quantile: float


class BlockReport(NamedTuple):
    """What a block of weighings gave."""

    weighings: int
    transitions: int
    epoch_done: bool


class EpochSummary(NamedTuple):
    """An epoch in numbers."""

    weighings: int
    epsilon: float
    loss: float
    mean_return: float
    mean_steps: float
    exact: float
    """Share of weighings that ended in balance."""


class Learner:
    """Weighs, stores and updates, epoch after epoch."""

    def __init__(
        self,
        bank: FeatureBank,
        task: WeighingTask,
        online: ScaleNetwork,
        target: ScaleNetwork,
        averaged: ScaleNetwork | None,
        optimizer: torch.optim.Optimizer,
        loss: LossFunction,
        settings: LearnerSettings,
        seed: int | None = None,
    ) -> None:
        self.device = next(online.parameters()).device
        self.bank = bank.to(self.device)
        self._fingerprint = bank.fingerprint()
        self.task = task
        self.rules = TaskTables(task, self.device) if task.tick == 1.0 else task
        self.truth = self.bank.intervals if task.tick == 1.0 else self.bank.counts.double() / task.tick
        self.online, self.target, self.averaged = online, target, averaged
        self.optimizer, self.loss, self.settings = optimizer, loss, settings
        self.replay = IndexReplay(settings.buffer_size, task.max_steps, self.device)
        self.seed = int(torch.randint(2**32, ())) if seed is None else seed
        self.generator = torch.Generator(self.device).manual_seed(self.seed)
        self.epoch = 0
        self.cursor = 0
        self.credit = 0
        self.updates = 0
        self.summary: EpochSummary = EpochSummary(0, self.epsilon, math.nan, math.nan, math.nan, math.nan)
        self._order: Tensor | None = None
        self._order_seed = self.seed
        """Of the present epoch's order: a new seed in its midst would weigh some patches twice and others never."""
        self._direction = torch.tensor([*task.pool, 0], device=self.device).sign()
        self._tally = torch.zeros(5, dtype=torch.float64, device=self.device)  # loss, updates, return, steps, exact

    @property
    def epsilon(self) -> float:
        """The share of random actions in the present epoch."""
        s = self.settings
        return max(s.epsilon_end, s.epsilon_start - s.epsilon_step * self.epoch)

    @property
    def loss_so_far(self) -> float:
        """The mean loss of the present epoch's updates; NaN before the first. Reading it waits for the device."""
        loss, updates = self._tally[:2].tolist()
        return loss / updates if updates else math.nan

    @property
    def judged(self) -> ScaleNetwork:
        """The network to count with: the average of the online one over its updates, if one is kept."""
        return self.online if self.averaged is None else self.averaged

    @property
    def origin(self) -> dict[str, Any]:
        """What stored transitions speak of, in plain JSON types: they hold for no other bank and no other weights."""
        task = self.task
        return {"bank": self._fingerprint, "pool": list(task.pool), "tick": task.tick, "ceiling": task.ceiling}

    def serves(self, bank: FeatureBank, task: WeighingTask) -> bool:
        """Whether this is a learner of that bank and task."""
        return task == self.task and bank.quantizer == self.bank.quantizer and bank.fingerprint() == self._fingerprint

    def normalise(self) -> None:
        """Standardise both networks' input over the bank."""
        mean, scale = standard(self.bank.features)
        for network in (self.online, self.target, self.averaged):
            if network is not None:
                network.normalise(mean, scale)

    def start_from(self, network: ScaleNetwork) -> None:
        """Take over the weights of a finished network, and how it standardises its input."""
        for own in (self.online, self.target, self.averaged):
            if own is not None:
                own.load_state_dict(network.state_dict())

    def reseed(self, seed: int) -> None:
        """Draw actions, batches and, from the next epoch on, the order of patches from this seed."""
        self.seed = seed
        self.generator.manual_seed(seed)
        if self.cursor == 0:
            self._order = None

    # ----------------------------------------------------------------------------------------------------- the loop

    def learn_block(self) -> BlockReport:
        """Weigh the next block of patches of the epoch, and make the updates that it pays for."""
        if self._sync_is_due():
            self.target.load_state_dict(self.online.state_dict())
        if self._order is None:
            if self.cursor == 0:
                self._order_seed = self.seed
            shuffle = torch.Generator().manual_seed(hash((self._order_seed, self.epoch)) % 2**63)
            self._order = torch.randperm(len(self.bank), generator=shuffle).to(self.device)
        patches = self._order[self.cursor : self.cursor + self.settings.block]
        stored, taken = self._weigh(patches)
        self.replay.add(stored)
        self.credit += len(stored.patch)
        if len(self.replay) >= min(self.settings.learning_starts, self.settings.buffer_size):
            updates, self.credit = divmod(self.credit, self.settings.update_every)
            for _ in range(updates):
                self._update()
        else:
            self.credit = 0
        self.cursor += len(patches)
        done = self.cursor >= len(self.bank)
        if done:
            self._finish_epoch()
        return BlockReport(len(patches), taken, done)

    def _sync_is_due(self) -> bool:
        """Whether the next block begins a part of the epoch; there are as many parts as syncs."""
        cursors = (self.cursor - self.settings.block, self.cursor)
        before, now = (cursor * self.settings.syncs // len(self.bank) for cursor in cursors)
        return now > before

    def _finish_epoch(self) -> None:
        _, _, total, steps, exact = self._tally.tolist()
        number = len(self.bank)
        self.summary = EpochSummary(
            number, self.epsilon, self.loss_so_far, total / number, steps / number, exact / number
        )
        self._tally.zero_()
        self.epoch += 1
        self.cursor = 0
        self._order = None

    # ---------------------------------------------------------------------------------------------------- weighing

    @torch.no_grad()
    def _weigh(self, patches: Tensor) -> tuple[Transitions, int]:
        """Weigh these patches with ε-greedy actions; the transitions to store, and how many were taken."""
        self.online.eval()
        embedded = self._embed(patches)
        history = torch.zeros(len(patches), self.task.max_steps, dtype=torch.uint8, device=self.device)
        value = torch.zeros_like(patches)
        rows: list[Transitions] = []
        taken = 0
        for step in range(self.task.max_steps):
            truth = self.truth[patches]
            action = self._act(embedded, history, truth, value)
            steps = torch.full_like(value, step)
            after, reward, ended = self.rules.outcome(truth, value, action, steps)
            keep = self._keep((truth - value).abs())
            now = Transitions(patches, history, value, steps, action)
            rows.append(now if keep is None else Transitions(*(column[keep] for column in now)))
            taken += len(patches)
            self._tally[2] += reward.sum()
            self._tally[4] += (ended & self.task.balanced(truth, after)).sum()
            history = history.clone()
            history[:, step] = (action + 1).to(torch.uint8)
            live = (~ended).nonzero().squeeze(1)
            patches, history, value, embedded = patches[live], history[live], after[live], embedded[live]
            if len(live) == 0:
                break
        self._tally[3] += taken
        self.online.train()
        return Transitions(*(torch.cat(columns) for columns in zip(*rows))), taken

    def _embed(self, patches: Tensor) -> Tensor:
        """What the actions of a whole weighing need to know of its patches, one row each."""
        return self.online.embed(self.bank.gather(patches))

    def _act(self, embedded: Tensor, history: Tensor, truth: Tensor, value: Tensor) -> Tensor:
        """The next action of each patch; the agent does not look at the truth."""
        legal = self.rules.legal(value)
        lot = torch.rand(legal.shape, generator=self.generator, device=self.device)
        action = lot.masked_fill(~legal, -1.0).argmax(1)
        coin = torch.rand(len(value), generator=self.generator, device=self.device)
        greedy = (coin >= self.epsilon).nonzero().squeeze(1)  # one coin per patch; only these ask the network
        if len(greedy):
            q = self.online.q(embedded[greedy], self.task.encode(history[greedy]))
            action[greedy] = q.masked_fill(~legal[greedy], -torch.inf).argmax(1)
        return action

    def _keep(self, error: Tensor) -> Tensor | None:
        """Which transitions to store: some of those that are nearly balanced already are dropped."""
        if self.settings.easy_drop == 0.0:
            return None
        lot = torch.rand(len(error), generator=self.generator, device=self.device)
        return (error > 1) | (lot >= self.settings.easy_drop)

    # ---------------------------------------------------------------------------------------------------- updating

    def _update(self) -> None:
        """One step of the optimiser on a batch of the replay."""
        batch = self.replay.sample(self.settings.batch_size, self.generator)
        loss = self._loss(batch, self.bank.gather(batch.patch))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if math.isfinite(self.settings.max_grad_norm):
            torch.nn.utils.clip_grad_norm_(self.online.parameters(), self.settings.max_grad_norm)
        self.optimizer.step()
        self.updates += 1
        if self.averaged is not None:
            # The first updates count more than an average over so many would let them.
            decay = min(self.settings.average, self.updates / (self.updates + 10))
            with torch.no_grad():  # else the average would remember every update as a function of the one before
                torch._foreach_lerp_(list(self.averaged.parameters()), list(self.online.parameters()), 1.0 - decay)
        self._tally[0] += loss.detach()
        self._tally[1] += 1

    def _loss(self, batch: Transitions, features: Tensor) -> Tensor:
        """How far the network is from the returns that follow the batch's situations (Eq. 16)."""
        backups = self._all_backups if self.settings.backup == "all" else self._taken_backups
        predicted, wanted, action = backups(batch, features)
        if self.settings.quantile == 0.5:
            return self.loss(predicted, wanted)
        # Of a weight that is put on, the reward grows with the truth; of one that is taken off, it falls.
        above = 0.5 + (self.settings.quantile - 0.5) * self._direction[action]
        difference = wanted - predicted
        return 2.0 * (torch.where(difference > 0, above, 1.0 - above) * difference.abs()).mean()

    def _taken_backups(self, batch: Transitions, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Predicted and wanted Q of the action that was taken, and that action."""
        after, reward, ended = self.rules.outcome(self.truth[batch.patch], batch.value, batch.action, batch.step)
        history = batch.history.clone()
        history.scatter_(1, batch.step[:, None], (batch.action + 1).to(torch.uint8)[:, None])
        following = self._best_next(features, history, after)
        wanted = torch.where(ended, reward, reward + self.settings.gamma * following)
        q = self.online(features, self.task.encode(batch.history))
        return q.gather(1, batch.action[:, None]).squeeze(1), wanted, batch.action

    def _all_backups(self, batch: Transitions, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Predicted and wanted Q of every legal action in the stored situations, and these actions."""
        actions = torch.arange(self.task.num_actions, device=self.device)
        legal = self.rules.legal(batch.value)
        row, action = legal.nonzero(as_tuple=True)
        step, truth = batch.step[row], self.truth[batch.patch[row]]
        after, reward, ended = self.rules.outcome(truth, batch.value[row], actions[action], step)
        history = batch.history[row]
        history.scatter_(1, step[:, None], (action + 1).to(torch.uint8)[:, None])
        wanted = reward.clone()
        if self.settings.gamma > 0:
            on = (~ended).nonzero().squeeze(1)
            wanted[on] += self.settings.gamma * self._best_next(features, history[on], after[on], row[on])
        q = self.online(features, self.task.encode(batch.history))
        return q[row, action], wanted, action

    @torch.no_grad()
    def _best_next(self, features: Tensor, history: Tensor, value: Tensor, row: Tensor | None = None) -> Tensor:
        """Max Q of the next situations by the target network; `row` tells whose features each one has."""
        weights = self.task.encode(history)
        q = _values(self.target, features, weights, row)
        chooser = q
        if self.settings.double:
            chooser = _values(self.online, features, weights, row)
        if self.settings.mask_target:
            chooser = chooser.masked_fill(~self.rules.legal(value), -torch.inf)
        return q.gather(1, chooser.argmax(1, keepdim=True)).squeeze(1)

    # ------------------------------------------------------------------------------------------------- checkpoints

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that is needed to go on bit for bit, between two blocks: tensors, and plain JSON types."""
        tensors = {f"replay.{name}": column.contiguous() for name, column in self.replay.state().items()}
        tensors |= {f"online.{name}": value for name, value in self.online.state_dict().items()}
        tensors |= {f"target.{name}": value for name, value in self.target.state_dict().items()}
        if self.averaged is not None:
            tensors |= {f"averaged.{name}": value for name, value in self.averaged.state_dict().items()}
        tensors |= {f"optimizer.{name}": value for name, value in optimizer_tensors(self.optimizer).items()}
        tensors["generator"] = self.generator.get_state()
        tensors["tally"] = self._tally
        numbers = {
            "seed": self.seed,
            "order_seed": self._order_seed,
            "epoch": self.epoch,
            "cursor": self.cursor,
            "credit": self.credit,
            "updates": self.updates,
            "position": self.replay.position,
            "summary": self.summary._asdict(),
        }
        return tensors, numbers

    def load_state(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self.online.load_state_dict(under("online.", tensors))
        self.target.load_state_dict(under("target.", tensors))
        if self.averaged is not None:
            self.averaged.load_state_dict(under("averaged.", tensors))
        self.replay.load_state(under("replay.", tensors), numbers["position"])
        load_optimizer_tensors(self.optimizer, under("optimizer.", tensors))
        self.generator.set_state(tensors["generator"].cpu())
        self._tally.copy_(tensors["tally"])
        self.seed = numbers["seed"]
        self._order_seed = numbers.get("order_seed", self.seed)
        self.epoch, self.cursor = numbers["epoch"], numbers["cursor"]
        self.credit, self.updates = numbers["credit"], numbers["updates"]
        self.summary = EpochSummary(**numbers["summary"])
        self._order = None


def _values(network: ScaleNetwork, features: Tensor, weights: Tensor, row: Tensor | None) -> Tensor:
    """Q values of situations, each of the patch of its own place, or of that which `row` names."""
    return network(features, weights) if row is None else network.q(network.embed(features)[row], weights)


def check_start(counter: Weigher, network: NetworkSettings, task: WeighingTask) -> None:
    """Refuse a counter that an agent with this network and task cannot start from, by the first thing that differs."""
    given, needed = counter.network.settings.to_dict(), network.to_dict()
    pairs = {name: (given[name], needed[name]) for name in needed if name not in ("init_std", "dropout")}
    pairs |= {"pool": (list(counter.task.pool), list(task.pool)), "tick": (counter.task.tick, task.tick)}
    pairs |= {"weight_encoding": (counter.task.weight_encoding, task.weight_encoding)}
    for name, (theirs, ours) in pairs.items():
        if theirs != ours:
            raise LibraError(f"The counter to start from has {name} {theirs}, but this agent has {ours}.")
