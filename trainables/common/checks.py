"""Checks of constructor arguments, with messages that name argument, value and the allowed ones."""

import math
import sys
from collections.abc import Sequence
from numbers import Real
from typing import TypeVar

Choice = TypeVar("Choice")


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


def check_count(name: str, value: int, low: int = 1, high: float = math.inf) -> int:
    """Return ``value`` as an int if it is whole and in the limits; else raise ``ValueError``."""
    number = check_number(name, value, low, high)
    if number != int(number):
        end = ")" if math.isinf(high) else "]"
        raise ValueError(f"{name}={value!r} is not a whole number in [{low}, {high:g}{end}")
    return int(number)


def check_choice(name: str, value: Choice, choices: Sequence[Choice]) -> Choice:
    """Return the one of ``choices`` that ``value`` equals; else raise ``ValueError`` with all."""
    for choice in choices:
        if choice == value and isinstance(choice, bool) == isinstance(value, bool):
            return choice
    raise ValueError(f"{name}={value!r} is not one of {', '.join(map(str, choices))}")
