"""libra-gym: crowd counting as weighing.

Importing the package registers `LibraWeighing-v0` and `LibraWeighingContinuous-v0` with Gymnasium, and little else: the
names below, and the package's modules, are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

import gymnasium as gym

if TYPE_CHECKING:
    from libra_gym.bank import FeatureBank
    from libra_gym.banks import bank_names, load_bank, register_bank
    from libra_gym.counter import Counted, Counter, count
    from libra_gym.errors import LibraError
    from libra_gym.quantizer import Quantizer
    from libra_gym.task import Rewards, WeighingTask

__version__ = "0.1.0"

_HOMES = {
    "Counted": "counter",
    "Counter": "counter",
    "FeatureBank": "bank",
    "LibraError": "errors",
    "Quantizer": "quantizer",
    "Rewards": "task",
    "WeighingTask": "task",
    "bank_names": "banks",
    "count": "counter",
    "load_bank": "banks",
    "register_bank": "banks",
}

__all__ = [
    "Counted",
    "Counter",
    "FeatureBank",
    "LibraError",
    "Quantizer",
    "Rewards",
    "WeighingTask",
    "bank_names",
    "count",
    "load_bank",
    "register_bank",
    "register_envs",
]

_MODULES = frozenset(each.name for each in iter_modules(__path__))


def register_envs() -> None:
    """Register the environments with Gymnasium; calling it again changes nothing."""
    for env_id, name in (("LibraWeighing-v0", "Weighing"), ("LibraWeighingContinuous-v0", "WeighingContinuous")):
        if env_id not in gym.registry:
            gym.register(
                env_id,
                entry_point=f"libra_gym.envs:{name}Env",
                vector_entry_point=f"libra_gym.envs:{name}VectorEnv",
            )


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"libra_gym.{_HOMES[name]}"), name)
    if name in _MODULES:
        return import_module(f"libra_gym.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})


register_envs()
