"""The scale as the head of a backbone that learns with it: what it learns from, what it reads, what it refuses."""

from dataclasses import replace

import pytest
import torch

from agents.pretraining.network import BlockClassifier
from agents.pretraining.weighing import Weighing
from libra_gym.errors import LibraError
from libra_gym.network import NetworkSettings, ScaleNetwork
from libra_gym.quantizer import Quantizer
from libra_gym.tables import TaskTables
from libra_gym.task import Rewards, WeighingTask
from libra_gym.weigher import Weigher

QUANTIZER = Quantizer.log(30)
TASK = WeighingTask.intervals(30, rewards=Rewards(shape="error"), people=QUANTIZER.values)
CHANNELS = 6


def scale(task: WeighingTask = TASK, quantizer: Quantizer | None = QUANTIZER) -> Weigher:
    torch.manual_seed(0)
    network = ScaleNetwork(NetworkSettings(channels=CHANNELS, hidden=(32, 32), q_scale=1.0, init_std=None))
    return Weigher(network, task, quantizer)


def features(rows: int = 4, cols: int = 5) -> torch.Tensor:
    return torch.randn(2, CHANNELS, rows, cols, generator=torch.Generator().manual_seed(1))


def test_it_reads_what_the_weigher_weighs():
    head, maps = Weighing(scale()), features()
    people = head.read(head(maps), "weighed")
    assert people.shape == (2, 4, 5)
    value, _ = scale().weigh_features(maps[1, :, 2, 3][None])
    assert people[1, 2, 3] == pytest.approx(QUANTIZER.values[int(value)])


def test_the_one_step_head_reads_the_same_features():
    one_step, maps = BlockClassifier(CHANNELS, QUANTIZER), features()
    assert Weighing(scale()).readouts == ("weighed",)
    head = Weighing(scale(), one_step)
    assert head.readouts == ("weighed", "expectation", "argmax")
    for readout in one_step.readouts:
        torch.testing.assert_close(head.read(head(maps), readout), one_step.read(one_step(maps), readout))


def test_situations_are_those_of_legal_weighings():
    head = Weighing(scale(), epsilon=0.5)
    rows = features(8, 8).movedim(1, -1).flatten(0, 2)
    met = head._weigh(rows, TaskTables(TASK, "cpu"))
    assert set(met.patch.tolist()) == set(range(len(rows)))
    assert met.step.max() < TASK.max_steps
    assert ((met.history > 0).sum(1) == met.step).all()
    value = torch.zeros_like(met.value)
    for step in range(TASK.max_steps):  # the weights placed so far add up to the value, and none was illegal
        taken = met.history[:, step].long() - 1
        placed = taken >= 0
        legal = TASK.legal(value)[torch.arange(len(value)), taken.clamp_min(0)]
        assert legal[placed].all()
        value = torch.where(placed, TASK.place(value, taken.clamp_min(0)), value)
    assert torch.equal(value, met.value)


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_epsilon_is_the_share_of_random_actions(epsilon):
    head = Weighing(scale(), epsilon=epsilon)
    rows = features(8, 8).movedim(1, -1).flatten(0, 2)
    _, greedy = scale().weigh_features(rows)
    met = head._weigh(rows, TaskTables(TASK, "cpu"))
    second = met.step == 1
    same = met.history[second, 0] == greedy[met.patch[second], 0]
    assert same.all() if epsilon == 0.0 else not same.all()


def test_the_loss_reaches_features_scale_and_one_step_head():
    one_step = BlockClassifier(CHANNELS, QUANTIZER)
    maps, counts, valid = features().requires_grad_(), torch.rand(2, 4, 5) * 3, torch.ones(2, 4, 5, dtype=torch.bool)
    valid[:, :, -1] = False
    head = Weighing(scale(), one_step)
    head.loss(head(maps), counts, valid, 0.5).backward()
    assert (maps.grad[..., -1] == 0).all()  # padding has no say
    assert (maps.grad[..., :-1] != 0).any(1).all()
    assert all(parameter.grad is not None for parameter in head.parameters())
    alone, beside = Weighing(scale()), Weighing(scale(), one_step)
    losses = []
    for each in (alone, beside):
        torch.manual_seed(3)
        losses.append(each.loss(maps, counts, valid, 0.5))
    expected = one_step.loss(one_step(maps), counts, valid, 0.5)
    torch.testing.assert_close(losses[1] - losses[0], expected)


@pytest.mark.parametrize("reach", [0.0, 0.25])
def test_a_share_of_the_gradient_reaches_the_features_and_all_of_it_the_scale(reach):
    counts, valid = torch.rand(2, 4, 5) * 3, torch.ones(2, 4, 5, dtype=torch.bool)
    gradients = []
    for share in (1.0, reach):
        torch.manual_seed(0)
        head, maps = Weighing(scale(), reach=share), features().requires_grad_()
        head.loss(head(maps), counts, valid, 0.0).backward()
        gradients.append((maps.grad, head.network.out.weight.grad))
    (whole, own), (part, same) = gradients
    torch.testing.assert_close(part, reach * whole)
    torch.testing.assert_close(same, own)


def test_it_learns_to_weigh():
    """Counts that the features tell plainly are weighed better and better."""
    torch.manual_seed(0)
    head = Weighing(scale())
    counts = torch.rand(4, 8, 8) * 2
    maps = torch.randn(4, CHANNELS, 8, 8)
    maps[:, 0] = (counts - 1) * 2
    valid = torch.ones_like(counts, dtype=torch.bool)

    def error() -> float:
        return float((head.read(maps, "weighed") - counts).abs().mean())

    before = error()
    optimizer = torch.optim.AdamW(head.parameters(), 3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        head.loss(maps, counts, valid, 0.0).backward()
        optimizer.step()
    assert error() < 0.3 * before


def test_scales_of_another_kind_are_refused():
    with pytest.raises(LibraError, match="shape 'error'"):
        Weighing(scale(replace(TASK, rewards=Rewards())))
    with pytest.raises(LibraError, match="intervals"):
        Weighing(scale(quantizer=None))
