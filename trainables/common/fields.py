"""Checks of constructor arguments, and fields that declare arguments with their checks."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import partial
from numbers import Real
from types import MappingProxyType
from typing import Any, Literal, TypeVar, dataclass_transform

from trainables.common.html import html_table

Choice = TypeVar("Choice")
NOTHING: Mapping[str, Any] = MappingProxyType({})


def check_number(
    name: str,
    value: float,
    low: float,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> float:
    """Return ``value`` as a float if it is between the limits.

    A finite limit is itself allowed, unless ``open_low`` or ``open_high`` excludes it.

    Raises:
        ValueError: If it is not a number between the limits, for example
            ``gamma=-1.0 is outside [0, inf)``.
    """
    left = "(" if open_low or math.isinf(low) else "["
    right = ")" if open_high or math.isinf(high) else "]"
    allowed = f"{left}{low:g}, {high:g}{right}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name}={value!r} is not a number in {allowed}")
    above = value > low if left == "(" else value >= low
    below = value < high if right == ")" else value <= high
    # An int can be too large for a float.
    if not (above and below and abs(value) <= sys.float_info.max):
        raise ValueError(f"{name}={value!r} is outside {allowed}")
    return float(value)


def check_count(name: str, value: int, low: int = 1, high: float = math.inf) -> int:
    """Return ``value`` as an int; raise ``ValueError`` unless it is whole and in [low, high]."""
    number = check_number(name, value, low, high)
    if number != int(number):
        end = ")" if math.isinf(high) else "]"
        raise ValueError(f"{name}={value!r} is not a whole number in [{low}, {high:g}{end}")
    return int(number)


def check_choice(name: str, value: Choice, choices: Sequence[Choice]) -> Choice:
    """Return the choice that equals ``value``, or raise ``ValueError``; 1 does not equal True."""
    for choice in choices:
        if choice == value and isinstance(choice, bool) == isinstance(value, bool):
            return choice
    raise ValueError(f"{name}={value!r} is not one of {', '.join(map(str, choices))}")


def checked(
    *, check: Callable[[str, Any], Any], default: Any = MISSING, kw_only: Any = MISSING
) -> Any:
    """Declare a constructor argument whose value is replaced by ``check(name, value)``.

    If the default is None, the value None is not checked.
    """
    return field(default=default, kw_only=kw_only, metadata={"check": check})


def number(*, default: Any = MISSING, kw_only: Any = MISSING, **limits: Any) -> Any:
    """Declare a number within limits; see ``check_number``."""
    return checked(default=default, kw_only=kw_only, check=partial(check_number, **limits))


def count(*, default: Any = MISSING, low: int = 1, kw_only: Any = MISSING) -> Any:
    """Declare a whole number of at least ``low``."""
    return checked(default=default, kw_only=kw_only, check=partial(check_count, low=low))


def choice(
    *,
    choices: Sequence[Any],
    default: Any = MISSING,
    variants: Mapping[str, Any] = NOTHING,
    kw_only: Any = MISSING,
) -> Any:
    """Declare an argument that is one of ``choices``.

    ``variants`` maps values of the argument ``variant`` to the default used with them.
    """
    check = partial(check_choice, choices=choices)
    if not variants:
        return checked(default=default, kw_only=kw_only, check=check)
    metadata = {"check": check, "default": default, "variants": variants}
    return field(default=None, kw_only=kw_only, metadata=metadata)


def flag(*, default: Any = MISSING) -> Any:
    """Declare an argument that is True or False."""
    return choice(default=default, choices=(False, True))


def fitted(*, init: Literal[False] = False) -> Any:
    """Declare a tensor that the fit sets; it is not a constructor argument."""
    return field(init=init, metadata={"fitted": True})


@dataclass_transform(
    eq_default=False, field_specifiers=(checked, number, count, choice, flag, fitted, field)
)
class CheckedFields:
    """Base class whose constructor is generated from fields such as ``number()`` and ``choice()``.

    A subclass without own fields, or with an own ``__init__``, keeps its constructor.
    """

    def __init_subclass__(cls, **options: bool) -> None:
        super().__init_subclass__()
        declares = any(isinstance(value, Field) for value in vars(cls).values())
        if declares and "__init__" not in vars(cls):
            dataclass(**{"eq": False, "repr": False, **options})(cls)

    def _arguments(self) -> dict[str, Any]:
        """Return the values of the declared arguments; empty for a class that declares none."""
        if not is_dataclass(self):
            return {}
        return {item.name: getattr(self, item.name) for item in fields(self) if item.init}

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._arguments().items())
        return f"{type(self).__name__}({shown})"

    def _repr_html_(self) -> str:
        return html_table((type(self).__name__, "value"), self._arguments().items())

    def __post_init__(self) -> None:
        for item in fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name, None)
            if value is None and "variants" in item.metadata:
                variants, default = item.metadata["variants"], item.metadata["default"]
                value = variants.get(getattr(self, "variant", None), default)
            if "check" in item.metadata and not (value is None and item.default is None):
                # A frozen class refuses setattr.
                object.__setattr__(self, item.name, item.metadata["check"](item.name, value))
