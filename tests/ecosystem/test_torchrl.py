"""TorchRL's `GymEnv`, unchanged."""

import pytest
import torch

pytest.importorskip("torchrl")

from torchrl.envs import GymEnv
from torchrl.envs.utils import check_env_specs

IDS = ("libra_gym:LibraWeighing-v0", "libra_gym:LibraWeighingContinuous-v0")


@pytest.mark.parametrize("env_id", IDS)
def test_specs_hold_and_a_rollout_steps(env_id):
    env = GymEnv(env_id, categorical_action_encoding=True)
    check_env_specs(env)
    env.set_seed(0)
    rollout = env.rollout(200, break_when_any_done=False)
    assert rollout["observation"].shape == (200, 520)
    assert rollout["observation"].dtype == torch.float32
    ends = rollout["next", "terminated"].squeeze(-1)
    assert 200 // 8 <= ends.sum() <= 200
    assert not rollout["next", "truncated"].any()
    assert set(rollout["next", "reward"].unique().tolist()) <= {-5.0, -3.0, -1.0, 1.0, 3.0, 5.0}
    after = rollout["observation"][1:, 512:][ends[:-1]]
    assert not after.any()  # after an end the pan is empty again


def test_a_policy_plays():
    env = GymEnv(IDS[0], categorical_action_encoding=True)
    rollout = env.rollout(50, policy=lambda observation: torch.tensor(8))
    assert rollout.shape == (1,)  # `end` at once ends the first episode
    assert rollout["next", "terminated"].all()


def test_arguments_arrive_and_unknown_ones_are_a_type_error():
    assert GymEnv(IDS[0], split="test", max_steps=3).reset()["observation"].shape == (515,)
    with pytest.raises(TypeError, match="colour"):
        GymEnv(IDS[0], colour="blue")


@pytest.mark.parametrize("env_id", IDS)
def test_numbers_of_the_info_can_be_read(env_id):
    env = GymEnv(env_id, categorical_action_encoding=True)
    env.auto_register_info_dict()
    rollout = env.rollout(5)
    assert rollout["next", "value"].shape[0] == len(rollout)
    assert rollout["next", "action_mask"].dtype == torch.int8
