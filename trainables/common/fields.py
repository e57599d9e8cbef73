"""Constructor arguments declared as fields: name, type, default and check of each in one line."""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import partial
from typing import Any, Literal, dataclass_transform

from trainables.common.checks import check_choice, check_count, check_number


def checked(
    *, check: Callable[[str, Any], Any], default: Any = MISSING, kw_only: Any = MISSING
) -> Any:
    """Declare an argument that is kept as ``check(name, value)`` returns it.

    A default of None needs no check.
    """
    return field(default=default, kw_only=kw_only, metadata={"check": check})


def number(*, default: Any = MISSING, kw_only: Any = MISSING, **limits: Any) -> Any:
    """Declare a number within the limits that ``check_number`` takes."""
    return checked(default=default, kw_only=kw_only, check=partial(check_number, **limits))


def count(*, default: Any = MISSING, low: int = 1, kw_only: Any = MISSING) -> Any:
    """Declare a whole number of at least ``low``."""
    return checked(default=default, kw_only=kw_only, check=partial(check_count, low=low))


def choice(*, choices: Sequence[Any], default: Any = MISSING, kw_only: Any = MISSING) -> Any:
    """Declare an argument that is one of ``choices``."""
    return checked(default=default, kw_only=kw_only, check=partial(check_choice, choices=choices))


def flag(*, default: Any = MISSING) -> Any:
    """Declare an argument that is True or False."""
    return choice(default=default, choices=(False, True))


def fitted(*, init: Literal[False] = False) -> Any:
    """Declare a tensor that is no argument: the fit sets it."""
    return field(init=init, metadata={"fitted": True})


@dataclass_transform(
    eq_default=False, field_specifiers=(checked, number, count, choice, flag, fitted, field)
)
class CheckedFields:
    """A class whose constructor follows from the fields that it declares with the functions above.

    A subclass with a constructor of its own, or without fields, is left as it is. What stands
    beside the base in its class statement goes to ``dataclass``.
    """

    def __init_subclass__(cls, **options: bool) -> None:
        super().__init_subclass__()
        declares = any(isinstance(value, Field) for value in vars(cls).values())
        if declares and "__init__" not in vars(cls):
            dataclass(**{"eq": False, "repr": False, **options})(cls)

    def __post_init__(self) -> None:
        for item in fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name, None)
            if "check" in item.metadata and not (value is None and item.default is None):
                # Not setattr, which a frozen class refuses.
                object.__setattr__(self, item.name, item.metadata["check"](item.name, value))
