"""The algorithm table: which class a name stands for, and the recipes it is trained by.

A recipe is a YAML file of presets in `agents/recipes`. A preset's `epochs`, `weighings`, `num_envs` and `env` belong to
the run; the rest are arguments of the algorithm, so that whatever its constructor takes can be set. An algorithm that
is not in the table is named as `package.module:Class` and needs no registration.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import types
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module, resources
from typing import Annotated, Any, Literal, Optional, TypeAlias, Union, get_args, get_origin

import yaml

from libra_gym.errors import LibraError
from libra_gym.settings import AtLeastOne, Range, argument_hints, fit

Kind: TypeAlias = Literal["libra", "sb3", "head"]
"""`libra` has its own loop on the bank, `sb3` learns by SB3's `learn`, and `head` is a one-step counter, no agent."""

RUN_SETTINGS: dict[str, Any] = {
    "epochs": AtLeastOne,
    "weighings": AtLeastOne | None,
    "num_envs": AtLeastOne,
    "env": dict[str, Any] | None,
}
"""The keys of a preset that are not arguments of the algorithm, and what they may be."""

_RANGES = {
    **dict.fromkeys(("batch_size", "buffer_size", "n_steps", "n_epochs", "target_update_interval"), Range(1)),
    **dict.fromkeys(("gamma", "gae_lambda", "tau", "exploration_initial_eps", "exploration_final_eps"), Range(0, 1)),
    "exploration_fraction": Range(0, 1, low_out=True),
    "learning_rate": Range(0),
    "learning_starts": Range(0),
    "max_grad_norm": Range(0, low_out=True),
}
"""What SB3's algorithms have in common and do not check."""

_GOES_WITH = {"weighings": "epochs", "huber_delta": "loss"}
"""Settings of a preset that say more of another one, and so go where that one is changed."""

_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
"""`module:Name`, such as `torch.optim:SGD` or `my_module:MyClass`."""

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
        for name, other in _GOES_WITH.items():
            if other in (changes or {}) and name not in (changes or {}):
                settings.pop(name, None)
        arguments = self._arguments()
        run = {"epochs": RUN_SETTINGS["epochs"]} if self.kind == "head" else RUN_SETTINGS
        allowed = arguments.keys() | run.keys()
        if unknown := settings.keys() - allowed:
            raise LibraError(
                f"{self.name!r} has no setting {min(unknown)!r}; its settings are: {', '.join(sorted(allowed))}."
            )
        hints = {name: hint for name, (_, hint) in arguments.items()} | run
        fitted = {key: _as_given(fit(key, value, hints[key]), value) for key, value in settings.items()}
        defaults = {name: default for name, (default, _) in arguments.items() if isinstance(default, _PLAIN)}
        return {**defaults, **fitted}

    def _arguments(self) -> dict[str, tuple[Any, Any]]:
        """The arguments of the class (and, where it passes `**kwargs` on, of its bases): default and annotation."""
        found: dict[str, tuple[Any, Any]] = {}
        cls = locate("agents.heads:HeadSettings") if self.kind == "head" else self.load()
        for base in inspect.getmro(cls):
            if "__init__" not in vars(base):
                continue
            parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
            hints = argument_hints(vars(base)["__init__"])
            for parameter in parameters:
                if parameter.name not in _GIVEN and parameter.kind not in (
                    parameter.VAR_KEYWORD,
                    parameter.VAR_POSITIONAL,
                ):
                    hint = hints.get(parameter.name, Any)
                    if parameter.default is None:
                        hint = Optional[hint]  # noqa: UP045 (an annotation may be a text)
                    found.setdefault(parameter.name, (parameter.default, _with_range(parameter.name, hint)))
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


def _with_range(name: str, hint: Any) -> Any:
    """An annotation with the range that such settings have everywhere."""
    if get_origin(hint) in (Union, types.UnionType):
        return Union[tuple(_with_range(name, each) for each in get_args(hint))]  # noqa: UP007 (made here)
    return Annotated[hint, _RANGES[name]] if name in _RANGES and hint in (int, float) else hint


def _as_given(fitted: Any, value: Any) -> Any:
    """Lists stay lists, as they are in a run's JSON."""
    return list(fitted) if isinstance(value, list) and isinstance(fitted, tuple) else fitted


def locate(path: str) -> Any:
    """What `module:Name` names."""
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise LibraError(
            f"{path!r} cannot be imported ({error}); run this in the module's directory, or put that on PYTHONPATH."
        ) from None
    except (ImportError, AttributeError, ValueError, SyntaxError) as error:
        raise LibraError(f"{path!r} cannot be imported ({error}); name it as 'package.module:Class'.") from None


def with_references(settings: Any) -> Any:
    """Nested settings with every string `module:Name` replaced by what it names, such as `torch.optim:SGD`."""
    if isinstance(settings, dict):
        return {key: with_references(value) for key, value in settings.items()}
    if isinstance(settings, str) and _REFERENCE.fullmatch(settings):
        try:
            return locate(settings)
        except LibraError:
            if os.getcwd() in sys.path:
                raise
            sys.path.append(os.getcwd())  # only now: what lies here must not stand in for a package
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
    if isinstance(value, list):
        return [_number(each) for each in value]
    if isinstance(value, dict):
        return {key: _number(each) for key, each in value.items()}
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
