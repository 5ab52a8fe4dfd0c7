"""The algorithm table: which class a name stands for, and the recipes it is trained by.

A recipe is a YAML file of presets in `agents/recipes`. A preset's `epochs`, `weighings`, `num_envs` and `env` belong to
the run; the rest are arguments of the algorithm, so that whatever its constructor takes can be set. An algorithm that
is not in the table is named as `package.module:Class` and needs no registration.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module, resources
from typing import Any, Literal, TypeAlias

import yaml

from libra_gym.errors import LibraError

Kind: TypeAlias = Literal["libra", "sb3", "head"]
"""`libra` has its own loop on the bank, `sb3` learns by SB3's `learn`, and `head` is a one-step counter, no agent."""

RUN_SETTINGS = ("epochs", "weighings", "num_envs", "env")
"""The keys of a preset that are not arguments of the algorithm."""

_GIVEN = {"self", "policy", "env", "seed", "device", "verbose", "tensorboard_log", "_init_setup_model"}
_PLAIN = (type(None), bool, int, float, str, list, tuple, dict)


@dataclass(frozen=True)
class Algorithm:
    """One line of the table."""

    name: str
    path: str
    """Where the class is, `module:Class`."""
    kind: Kind
    recipe: str
    """The YAML file of its presets, without the suffix."""
    policy: str = "MlpPolicy"

    def load(self) -> type[Any]:
        """The class itself; nothing of it is imported before."""
        loaded: type[Any] = locate(self.path)
        return loaded

    def presets(self) -> dict[str, dict[str, Any]]:
        """All presets of its recipe."""
        text = resources.files("agents").joinpath("recipes", f"{self.recipe}.yaml").read_text(encoding="utf-8")
        presets: dict[str, dict[str, Any]] = yaml.safe_load(text)
        return presets

    def preset(self, name: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """A preset with these dotted keys changed, and every argument that it leaves out at the class's default."""
        presets = self.presets()
        if name not in presets:
            raise LibraError(f"{self.name!r} has no preset {name!r}; it has: {', '.join(presets)}.")
        settings = deepcopy(presets[name])
        for key, value in (changes or {}).items():
            _change(settings, key, value)
        defaults = self._defaults()
        allowed = defaults.keys() | ({"epochs"} if self.kind == "head" else set(RUN_SETTINGS))
        if unknown := settings.keys() - allowed:
            raise LibraError(
                f"{self.name!r} has no setting {min(unknown)!r}; its settings are: {', '.join(sorted(allowed))}."
            )
        return {**{key: value for key, value in defaults.items() if isinstance(value, _PLAIN)}, **settings}

    def _defaults(self) -> dict[str, Any]:
        """The arguments of the class (and, where it passes `**kwargs` on, of its bases) with their defaults."""
        found: dict[str, Any] = {}
        cls = locate("agents.heads:HeadSettings") if self.kind == "head" else self.load()
        for base in inspect.getmro(cls):
            if "__init__" not in vars(base):
                continue
            parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
            for parameter in parameters:
                if parameter.name not in _GIVEN and parameter.kind not in (
                    parameter.VAR_KEYWORD,
                    parameter.VAR_POSITIONAL,
                ):
                    found.setdefault(parameter.name, parameter.default)
            if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
                break
        return found


ALGORITHMS: dict[str, Algorithm] = {
    line.name: line
    for line in (
        Algorithm("libra_dqn", "agents.libra_dqn:LibraDQN", "libra", "libra_dqn", "ScalePolicy"),
        Algorithm("bc", "agents.imitation:BehaviourCloning", "libra", "bc", "ScalePolicy"),
        Algorithm("dagger", "agents.imitation:DAgger", "libra", "dagger", "ScalePolicy"),
        Algorithm("dqn", "stable_baselines3:DQN", "sb3", "dqn"),
        Algorithm("double_dqn", "agents.dqn_variants:DoubleDQN", "sb3", "dqn"),
        Algorithm("dueling_dqn", "agents.dqn_variants:DuelingDQN", "sb3", "dqn"),
        Algorithm("qrdqn", "sb3_contrib:QRDQN", "sb3", "qrdqn"),
        Algorithm("ppo", "stable_baselines3:PPO", "sb3", "ppo"),
        Algorithm("a2c", "stable_baselines3:A2C", "sb3", "a2c"),
        Algorithm("maskable_ppo", "sb3_contrib:MaskablePPO", "sb3", "maskable_ppo"),
        Algorithm("trpo", "sb3_contrib:TRPO", "sb3", "trpo"),
        Algorithm("head_classification", "agents.heads:HeadTrainer", "head", "head_classification"),
        Algorithm("head_regression", "agents.heads:HeadTrainer", "head", "head_regression"),
    )
}


def find_algorithm(name: str) -> Algorithm:
    """The algorithm of this name, or a user's own as `package.module:Class`.

    One's own class takes the recipe of the known algorithm that it extends, if it does.
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if ":" not in name:
        known = ", ".join(ALGORITHMS)
        raise LibraError(f"There is no algorithm {name!r}; take one of {known}, or your own as 'package.module:Class'.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # one's own module is looked for here, as `python -m` would
    found = locate(name)
    if not isinstance(found, type):
        raise LibraError(f"{name!r} is no class; name an algorithm as 'package.module:Class'.")
    mro = inspect.getmro(found)
    homes = {
        (line.load().__module__, line.load().__name__): line for line in ALGORITHMS.values() if line.kind != "head"
    }
    for base in mro:
        if line := homes.get((base.__module__, base.__name__)):
            return Algorithm(name, name, line.kind, line.recipe, line.policy)
    return Algorithm(name, name, "sb3", "custom")


def locate(path: str) -> Any:
    """What `module:Name` names."""
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError, SyntaxError) as error:
        raise LibraError(f"{path!r} cannot be imported ({error}); name it as 'package.module:Class'.") from None


def with_references(settings: Any) -> Any:
    """Nested settings with every string `module:Name` replaced by what it names, such as `torch.optim:SGD`."""
    if isinstance(settings, dict):
        return {key: with_references(value) for key, value in settings.items()}
    if isinstance(settings, str) and settings.count(":") == 1 and "." in settings.partition(":")[0]:
        return locate(settings)
    return settings


def parse_changes(texts: Iterable[str]) -> dict[str, Any]:
    """`key=value` texts as settings; values are YAML, so that `1e-3`, `true` and `[64, 64]` are what they say."""
    changes = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise LibraError(f"{text!r} changes nothing; write it as key=value, for instance batch_size=256.")
        try:
            changes[key.strip()] = _number(yaml.safe_load(value))
        except yaml.YAMLError as error:
            raise LibraError(f"The value in {text!r} is not readable YAML ({error}).") from None
    return changes


def _number(value: Any) -> Any:
    """YAML 1.1 reads `1e-3`, which has no dot, as text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _change(settings: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        if settings.get(part) is None:
            settings[part] = {}
        settings = settings[part]
        if not isinstance(settings, dict):
            raise LibraError(f"{key!r} cannot be set, because {part!r} is {settings!r} and not a group of settings.")
    settings[last] = value
