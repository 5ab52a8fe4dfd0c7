"""The weighing task as Gymnasium environments."""

from libra_gym.envs.single import WeighingContinuousEnv, WeighingEnv
from libra_gym.envs.vector import WeighingContinuousVectorEnv, WeighingVectorEnv

__all__ = ["WeighingContinuousEnv", "WeighingContinuousVectorEnv", "WeighingEnv", "WeighingVectorEnv"]
