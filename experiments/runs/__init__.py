"""A run: one training, and a directory with all that is needed to repeat it or go on with it (docs/training.md)."""

from experiments.runs.config import RunConfig, plan
from experiments.runs.directory import RunDirectory
from experiments.runs.training import Trained, train

__all__ = ["RunConfig", "RunDirectory", "Trained", "plan", "train"]
