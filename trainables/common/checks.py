"""Checks of constructor arguments, with messages that name argument, value and the allowed ones."""

import math
import sys
from collections.abc import Sequence
from numbers import Real
from typing import TypeVar

Choice = TypeVar("Choice", int, str)


def check_number(
    name: str,
    value: float,
    low: float,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> float:
    """Return ``value`` as a float if it lies between the limits; an infinite limit is open.

    Raises:
        ValueError: If it is not a number, not finite or outside, such as
            ``gamma=-1.0 is outside [0, inf)``.
    """
    left = "(" if open_low or math.isinf(low) else "["
    right = ")" if open_high or math.isinf(high) else "]"
    allowed = f"{left}{low:g}, {high:g}{right}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name}={value!r} is not a number in {allowed}")
    above = value > low if left == "(" else value >= low
    below = value < high if right == ")" else value <= high
    # Whole numbers may be finite and still more than a float can be.
    if not (above and below and abs(value) <= sys.float_info.max):
        raise ValueError(f"{name}={value!r} is outside {allowed}")
    return float(value)


def check_count(name: str, value: int, low: int = 1) -> int:
    """Return ``value`` as an int if it is whole and at least ``low``; else raise ``ValueError``."""
    number = check_number(name, value, low)
    if number != int(number):
        raise ValueError(f"{name}={value!r} is not a whole number in [{low}, inf)")
    return int(number)


def check_choice(name: str, value: Choice, choices: Sequence[Choice]) -> Choice:
    """Return ``value`` if it is one of ``choices``; else raise ``ValueError``, which lists them."""
    if isinstance(value, bool) or value not in choices:
        allowed = ", ".join(map(str, choices))
        raise ValueError(f"{name}={value!r} is not one of {allowed}")
    return value


def check_flag(name: str, value: bool) -> bool:
    """Return ``value`` if it is True or False; else raise ``ValueError``."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r} is not one of True, False")
    return value
