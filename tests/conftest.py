"""How all tests run, and what they begin with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from banks import make_bank
from hypothesis import settings

from libra_gym.bank import FeatureBank

# Tests run side by side: threads that wait for each other's cores, here or in a subprocess, cost more than they give.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

# The same examples each time, so that tests fail only for what has changed; `--hypothesis-profile=default` searches on.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture
def small_bank() -> FeatureBank:
    return make_bank()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The real data and weights beside the checkout; tests that need them skip where they are missing."""
    if not (SHARED / "weights").is_dir():
        pytest.skip("the real data and weights are not at hand")
    return SHARED


@pytest.fixture(scope="session")
def bf16() -> None:
    """Skip where the CPU cannot compute in bf16; some die of it, so it is tried in another process."""
    trial = (
        "import torch; x = torch.ones(1, 64, 32, 32, requires_grad=True)\n"
        "with torch.autocast('cpu', torch.bfloat16):\n"
        "    y = torch.nn.Linear(64, 64)(torch.nn.Conv2d(64, 64, 3)(x).mean((2, 3)))\n"
        "y.float().sum().backward()"
    )
    if subprocess.run([sys.executable, "-c", trial], capture_output=True, check=False).returncode:
        pytest.skip("this CPU does not compute in bf16")
