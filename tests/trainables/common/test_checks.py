import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainables.common.fields import (
    CheckedFields,
    check_choice,
    check_count,
    check_number,
    choice,
    count,
    fitted,
    flag,
    number,
)


@given(
    value=st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0, math.inf, -math.inf, math.nan]),
    low=st.sampled_from([0.0, 1.0, -math.inf]),
    high=st.sampled_from([1.0, 2.0, math.inf]),
    open_low=st.booleans(),
    open_high=st.booleans(),
)
def test_a_number_is_between_its_limits(value, low, high, open_low, open_high):
    above = low < value or (low == value and not open_low)
    below = value < high or (value == high and not open_high)
    limits: dict[str, Any] = {"open_low": open_low, "open_high": open_high}
    if math.isfinite(value) and above and below:
        assert check_number("x", value, low, high, **limits) == value
        return
    left = "(" if open_low or low == -math.inf else "["
    right = ")" if open_high or high == math.inf else "]"
    with pytest.raises(ValueError, match="is outside") as caught:
        check_number("x", value, low, high, **limits)
    assert str(caught.value) == f"x={value} is outside {left}{low:g}, {high:g}{right}"


@pytest.mark.parametrize("value", ["1", True, None, 1j])
def test_values_that_are_not_numbers_are_refused(value):
    with pytest.raises(ValueError, match=r"is not a number in \[0, inf\)"):
        check_number("x", value, 0)


def test_a_number_that_no_float_can_hold_is_refused():
    assert check_number("x", sys.float_info.max, 0) == sys.float_info.max
    for value in (10**309, -(10**309)):
        with pytest.raises(ValueError, match=r"^x=-?10+ is outside \(-inf, inf\)$"):
            check_number("x", value, -math.inf)
        with pytest.raises(ValueError, match="is outside"):
            check_count("x", value)


def test_numbers_become_floats_and_counts_whole_numbers():
    assert type(check_number("x", 3, 0)) is float
    assert type(check_count("x", 3.0)) is int
    assert (check_count("x", 1), check_count("x", 0, 0), check_count("x", -2, -2)) == (1, 0, -2)
    for value, low in ((0, 1), (-1, 0), (2, 3)):
        with pytest.raises(ValueError, match=rf"x={value} is outside \[{low}, inf\)"):
            check_count("x", value, low)
    with pytest.raises(ValueError, match=r"x=1.5 is not a whole number in \[0, inf\)"):
        check_count("x", 1.5, 0)


def test_a_choice_or_a_flag_outside_the_allowed_values_is_refused():
    assert check_choice("x", "b", ("a", "b")) == "b"
    assert [check_choice("x", value, (False, True)) for value in (True, False)] == [True, False]
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: check_choice("x", "c", ("a", "b")), "x='c' is not one of a, b"),
        (lambda: check_choice("x", True, (1, 2)), "x=True is not one of 1, 2"),
        (lambda: check_choice("x", 1, (False, True)), "x=1 is not one of False, True"),
        (lambda: check_choice("x", None, (False, True)), "x=None is not"),
    ]
    for call, text in refused:
        with pytest.raises(ValueError, match=text):
            call()


class Declared(CheckedFields):
    share: float = number(low=0.0, high=1.0, open_high=True)
    size: int = count(default=2, low=2)
    mode: str = choice(default="a", choices=("a", "b"))
    on: bool = flag(default=False)
    rows: int | None = count(default=None, kw_only=True)
    kind: str = choice(default="x", choices=("x", "y"), kw_only=True)


class Further(Declared):
    weight: float = number(default=1.0, low=0.0)
    slope: float = fitted()


class OwnConstructor(Declared):
    def __init__(self) -> None:
        self.kept = True


class WithoutFields(OwnConstructor):
    pass


def test_fields_are_arguments_with_defaults_and_are_kept_as_checked():
    found = Declared(0, 3.0, "b", True, rows=4)
    assert vars(found) == {
        **{"share": 0.0, "size": 3, "mode": "b", "on": True},
        **{"rows": 4, "kind": "x"},
    }
    for further in (4, "y"):
        with pytest.raises(TypeError, match="positional arguments"):
            Declared(0, 3.0, "b", True, further)  # type: ignore[misc]
    assert (type(found.share), type(found.size)) == (float, int)
    assert vars(Declared(0.5)) == {**vars(found), "share": 0.5, "size": 2, "mode": "a"} | {
        "on": False,
        "rows": None,
    }
    assert Further(0.5, weight=2).weight == 2.0
    assert not hasattr(Further(0.5), "slope")
    assert vars(OwnConstructor()) == vars(WithoutFields()) == {"kept": True}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"share": 1.0}, r"share=1.0 is outside \[0, 1\)"),
        ({"share": None}, "share=None is not a number"),
        ({"share": 0.5, "size": 1}, r"size=1 is outside \[2, inf\)"),
        ({"share": 0.5, "size": None}, "size=None is not a number"),
        ({"share": 0.5, "mode": "c"}, "mode='c' is not one of a, b"),
        ({"share": 0.5, "on": None}, "on=None is not one of False, True"),
        ({"share": 0.5, "rows": 0}, r"rows=0 is outside \[1, inf\)"),
    ],
)
def test_each_field_is_checked(arguments, text):
    for kind in (Declared, Further):
        with pytest.raises(ValueError, match=text):
            kind(**arguments)
