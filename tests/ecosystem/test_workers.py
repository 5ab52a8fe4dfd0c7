"""Environments in worker processes: a worker finds the bank by its name or its file."""

import gymnasium as gym
import numpy as np
import pytest
from banks import make_bank

import libra_gym  # noqa: F401 (registers the environments)


@pytest.mark.parametrize(("bank", "context"), [("demo", "fork"), ("demo", "spawn"), ("file", "spawn")])
def test_workers_play_what_one_process_plays(bank, context, tmp_path):
    if bank == "file":
        bank = str(tmp_path / "bank.safetensors")
        make_bank().save(bank)
    settings = {"num_envs": 2, "bank": bank, "split": "test"}
    asynchronous = gym.make_vec(
        "LibraWeighing-v0", vectorization_mode="async", vector_kwargs={"context": context}, **settings
    )
    native = gym.make_vec("LibraWeighing-v0", **settings)
    try:
        np.testing.assert_array_equal(asynchronous.reset(seed=7)[0], native.reset(seed=7)[0])
        rng = np.random.default_rng(0)
        for _ in range(40):
            actions = rng.integers(9, size=2)
            for theirs, ours in zip(asynchronous.step(actions)[:4], native.step(actions)[:4], strict=True):
                np.testing.assert_array_equal(theirs, ours)
    finally:
        asynchronous.close()
