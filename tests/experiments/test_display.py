"""What a run says of itself on the way: a live line in a terminal, a line now and then in a log."""

import io

import pytest
from rich.console import Console

from experiments.runs import display as module
from experiments.runs.display import Display
from experiments.tracking import readable


@pytest.fixture
def clock(monkeypatch):
    """Time that passes when it is told to."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def shown(clock, terminal: bool) -> list[str]:
    """An epoch of 100 steps and 110 seconds, its judgement, and half an epoch of 59 seconds."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=200)
    bars = Display(console, epochs=2)
    bars.begin(0.0, 0)
    for step in range(1, 101):
        clock[0] += 1.1
        bars.update(step / 100, step, None, 2.5)
    bars.epoch(1, 100, None, 2.5, 80.0, improved=True)
    clock[0] += 59.0
    bars.update(1.5, 150, None, 2.0)
    return file.getvalue().splitlines()


def test_a_log_has_a_line_a_minute(clock):
    lines = shown(clock, terminal=False)
    assert [line.partition("  ")[0] for line in lines] == ["epoch 1/2", "epoch 1/2"]
    assert lines[0].endswith("28% done")
    assert "loss 2.5" in lines[0]
    assert lines[1].endswith("validation MAE 80.00  best so far")


def test_a_terminal_has_a_live_line_instead(clock):
    assert [line for line in shown(clock, terminal=True) if "done" in line] == []


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.00021, "0.00021"), (1e-7, "1e-07"), (0.0, "0.000"), (0.51, "0.510"), (1234.5, "1,234.500"), (None, "–")],
)
def test_a_small_loss_is_not_shown_as_none_at_all(value, shown):
    assert readable(value, 3) == shown
