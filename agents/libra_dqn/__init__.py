"""LibraDQN: the paper's agent."""

from agents.libra_dqn.algorithm import LibraDQN
from agents.libra_dqn.learner import Learner, LearnerSettings
from agents.libra_dqn.policy import ScalePolicy, ScaleQNetwork
from agents.libra_dqn.replay import IndexReplay, Transitions

__all__ = ["IndexReplay", "Learner", "LearnerSettings", "LibraDQN", "ScalePolicy", "ScaleQNetwork", "Transitions"]
