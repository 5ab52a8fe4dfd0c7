"""Settings that say what they may be: types and ranges, read off annotations and checked before anything begins.

A setting's annotation is all there is to write: `batch_size: AtLeastOne = 256`, `dropout: Fraction = 0.0`, or
`Annotated[float, Range(0, 1)]` for a range without a name of its own. Values may come from YAML, so whole numbers may
be written `1e4` and tuples as lists.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from libra_gym.errors import LibraError

_PLAIN = (type(None), bool, int, float, str, list, tuple, dict)


@dataclass(frozen=True)
class Range:
    """From `low` to `high`, each of them allowed unless it is said to be out."""

    low: float = -math.inf
    high: float = math.inf
    low_out: bool = False
    high_out: bool = False

    def __contains__(self, number: float) -> bool:
        above = number > self.low if self.low_out else number >= self.low
        return above and (number < self.high if self.high_out else number <= self.high)

    def __str__(self) -> str:
        if math.isfinite(self.low) and math.isfinite(self.high) and self.low_out == self.high_out:
            words = "between {:g} and {:g}" if self.low_out else "from {:g} to {:g}"
            return words.format(self.low, self.high)
        lower = f"{'greater than' if self.low_out else 'of at least'} {self.low:g}" if self.low > -math.inf else ""
        upper = f"{'below' if self.high_out else 'at most'} {self.high:g}" if self.high < math.inf else ""
        return " and ".join(filter(None, (lower, upper)))


AtLeastZero: TypeAlias = Annotated[int, Range(0)]
AtLeastOne: TypeAlias = Annotated[int, Range(1)]
NotNegative: TypeAlias = Annotated[float, Range(0)]
Positive: TypeAlias = Annotated[float, Range(0, low_out=True)]
Share: TypeAlias = Annotated[float, Range(0, 1)]
Fraction: TypeAlias = Annotated[float, Range(0, 1, high_out=True)]
"""A share that is never all, as of dropout, or of what a running average keeps."""
Quantile: TypeAlias = Annotated[float, Range(0, 1, low_out=True, high_out=True)]


class _Misfit(Exception):
    """A value is not of its kind."""


def fit(name: str, value: Any, hint: Any) -> Any:
    """The value as the annotation has it, such as `1e4` as a whole number; an error that says what it must be."""
    try:
        return _fit(value, hint)
    except _Misfit:
        raise LibraError(f"{name} is {value!r}, but it must be {describe(hint)}.") from None


def check_fields(settings: Any) -> None:
    """Fit every field of a frozen dataclass in place."""
    hints = get_type_hints(type(settings), include_extras=True)
    for field in fields(settings):
        object.__setattr__(settings, field.name, fit(field.name, getattr(settings, field.name), hints[field.name]))


def check_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Check the arguments that a function was called with, as it finds them in `locals()`."""
    for name, hint in argument_hints(function).items():
        if name not in arguments:
            continue
        value = arguments[name]
        if isinstance(fit(name, value, hint), int) and isinstance(value, float):  # which nobody makes whole here
            raise LibraError(f"{name} is {value!r}, but it must be {describe(hint)}.")


def argument_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function's arguments, each by itself: some have names that only a type checker sees."""
    hints: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        holder = type("Holder", (), {"__annotations__": {name: parameter.annotation}})
        with suppress(NameError, TypeError, AttributeError):
            hints |= get_type_hints(holder, getattr(function, "__globals__", {}), include_extras=True)
    return {name: hint for name, hint in hints.items() if hint is not inspect.Parameter.empty}


def describe(hint: Any) -> str:
    """An annotation in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        ranges = [str(each) for each in arguments[1:] if isinstance(each, Range)]
        return " ".join([describe(arguments[0]), *ranges])
    if origin is Literal:
        return "one of " + ", ".join(str(choice) for choice in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(describe(each) for each in arguments))
    if origin in (tuple, list):
        if not arguments:
            return "a list"
        if len(arguments) == 1 or arguments[1:] == (Ellipsis,):
            return f"a list, each {describe(arguments[0])}"
        return f"a list of {len(arguments)}: " + ", ".join(describe(each) for each in arguments)
    if (origin or hint) in (dict, Mapping):
        return "a group of settings"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}
    return words.get(hint, "a reference such as package.module:Name")


def _fit(value: Any, hint: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        fitted = _fit(value, arguments[0])
        if any(isinstance(each, Range) and fitted not in each for each in arguments[1:]):
            raise _Misfit
        return fitted
    if origin is Literal:
        return _if(value in arguments and not (isinstance(value, bool) and True not in arguments), value)
    if origin in (Union, types.UnionType):
        return _fit_any(value, arguments)
    if origin in (tuple, list):
        return _fit_list(value, arguments)
    if (origin or hint) in (dict, Mapping):
        return _if(isinstance(value, Mapping), value)
    if hint is int:
        whole = isinstance(value, Integral) or (isinstance(value, Real) and float(value).is_integer())
        return int(_if(whole and not isinstance(value, bool), value))
    if hint is float:
        number = isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)
        return _if(number, float(value) if number else value)  # numpy's numbers are none that JSON knows
    if hint is type(None):
        return _if(value is None, value)
    if hint in (bool, str):
        return _if(isinstance(value, hint), value)
    if hint is Any:
        return value
    if isinstance(value, str):
        return _if(":" in value, value)  # what a reference names is seen when it is looked up
    own = isinstance(hint, type) and isinstance(value, hint)
    return _if(own or not isinstance(value, _PLAIN), value)


def _fit_any(value: Any, hints: tuple[Any, ...]) -> Any:
    for hint in hints:
        try:
            return _fit(value, hint)
        except _Misfit:
            pass
    raise _Misfit


def _fit_list(value: Any, hints: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _Misfit
    if not hints:
        return tuple(value)
    if len(hints) == 1 or hints[1:] == (Ellipsis,):
        return tuple(_fit(each, hints[0]) for each in value)
    if len(value) != len(hints):
        raise _Misfit
    return tuple(_fit(each, hint) for each, hint in zip(value, hints, strict=True))


def _if(fits: bool, value: Any) -> Any:
    if not fits:
        raise _Misfit
    return value
