"""Who learns to weigh: Stable-Baselines3 algorithms on the scales of libra-gym."""

from agents.libra_dqn import LibraDQN
from agents.vec_env import WeighingVecEnv, make_vec_env

__all__ = ["LibraDQN", "WeighingVecEnv", "make_vec_env"]
