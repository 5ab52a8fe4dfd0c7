"""Small agents on small banks, for the tests of LibraDQN."""

import torch
from banks import make_bank

from agents.libra_dqn import LibraDQN
from agents.vec_env import WeighingVecEnv
from libra_gym.envs import WeighingVectorEnv

SMALL = {"hidden": [32, 32], "q_scale": 1.0, "init_std": None}


def scales(bank=None, num_envs=16, **kwargs):
    bank = make_bank() if bank is None else bank
    return WeighingVecEnv(WeighingVectorEnv(num_envs, bank, autoreset_mode="SameStep", **kwargs))


def agent(env=None, network=SMALL, **kwargs):
    settings = {"learning_rate": 1e-3, "buffer_size": 500, "learning_starts": 50, "update_every": 10, "seed": 0}
    policy = {"network": network, "optimizer_class": torch.optim.Adam}
    return LibraDQN("ScalePolicy", scales() if env is None else env, policy_kwargs=policy, **(settings | kwargs))
