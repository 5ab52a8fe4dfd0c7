"""The replay of LibraDQN: a ring of transitions that hold indices instead of features."""

import torch

from agents.libra_dqn import IndexReplay, Transitions


def test_a_million_transitions_take_less_than_a_hundred_megabytes():
    assert IndexReplay(1_000_000, 8).nbytes < 100_000_000


def test_the_ring_keeps_the_last_ones():
    ring = IndexReplay(10, 8)
    for start in range(0, 35, 7):
        numbers = torch.arange(start, start + 7)
        ring.add(Transitions(numbers, torch.zeros(7, 8), numbers, torch.zeros(7), torch.zeros(7)))
    assert sorted(ring.rows.patch.tolist()) == list(range(25, 35))
    many = torch.arange(100, 130)
    ring.add(Transitions(many, torch.zeros(30, 8), many, torch.zeros(30), torch.zeros(30)))
    assert sorted(ring.rows.patch.tolist()) == list(range(120, 130))


def test_a_batch_has_no_transition_twice():
    ring = IndexReplay(200, 8)
    numbers = torch.arange(200)
    ring.add(Transitions(numbers, torch.zeros(200, 8), numbers, torch.zeros(200), torch.zeros(200)))
    batch = ring.sample(128, torch.Generator().manual_seed(0))
    assert len(set(batch.patch.tolist())) == 128
