"""Pre-training of a backbone as a one-step counter, whose features LibraNet then weighs (docs/pretraining.md)."""

from agents.pretraining.network import METHODS, PatchCounter
from agents.pretraining.settings import PretrainSettings, pretrain_settings
from agents.pretraining.trainer import Pretrainer

__all__ = ["METHODS", "PatchCounter", "PretrainSettings", "Pretrainer", "pretrain_settings"]
