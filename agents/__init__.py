"""Who learns to weigh: Stable-Baselines3 algorithms on the scales of libra-gym."""

from agents.vec_env import WeighingVecEnv, make_vec_env

__all__ = ["WeighingVecEnv", "make_vec_env"]
