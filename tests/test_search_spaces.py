import json
import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from search_spaces import (
    Parameter,
    SearchSpace,
    SpaceError,
    load_protocol,
    load_space,
    parse_space,
    space_names,
)
from trainables.common.fields import CheckedFields, choice, number


def parameter(**fields: Any) -> Parameter:
    return Parameter(**{"name": "x", "symbol": "x", "source": "a paper", **fields})


FLOAT = {"type": "float", "default": 2.0, "low": 1.0, "high": 4.0}
INT = {"type": "int", "default": 2, "low": 1, "high": 4}
FLAGS = {"type": "categorical", "default": 1, "choices": (1, 0, "a")}


@pytest.mark.parametrize(
    ("fields", "value", "expected"),
    [
        (FLOAT, 1, 1.0),
        (FLOAT, 4.0, 4.0),
        (INT, 1.0, 1),
        (INT, 4, 4),
        (FLAGS, 1.0, 1),
        (FLAGS, "a", "a"),
        ({**FLAGS, "default": True, "choices": (1, True)}, True, True),
    ],
)
def test_a_checked_value_has_the_type_of_the_parameter(fields, value, expected):
    found = parameter(**fields).check(value)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("fields", "value", "complaint"),
    [
        (FLOAT, 0.999, "x=0.999 is outside [1, 4]"),
        (FLOAT, 4.001, "x=4.001 is outside [1, 4]"),
        (FLOAT, math.nan, "x=nan is outside [1, 4]"),
        (FLOAT, math.inf, "x=inf is outside [1, 4]"),
        (FLOAT, True, "x=True is not a number in [1, 4]"),
        (FLOAT, "2", "x='2' is not a number in [1, 4]"),
        (INT, 2.5, "x=2.5 is not a whole number in [1, 4]"),
        (INT, 5, "x=5 is outside [1, 4]"),
        (FLAGS, True, "x=True is not one of 1, 0, a"),
        ({**FLAGS, "default": True, "choices": (True, False)}, 1, "x=1 is not one of True, False"),
        (FLAGS, "b", "x='b' is not one of 1, 0, a"),
    ],
)
def test_a_value_outside_the_search_space_is_refused(fields, value, complaint):
    with pytest.raises(SpaceError) as caught:
        parameter(**fields).check(value)
    assert str(caught.value) == complaint


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({**FLOAT, "type": "number"}, "x: type 'number' is not one of float, int, categorical"),
        ({**FLAGS, "choices": ()}, "x: a categorical parameter needs choices"),
        ({**FLOAT, "low": None}, "x: needs low <= high, got None and 4.0"),
        ({**FLOAT, "low": 3.0, "high": 2.5}, "x: needs low <= high, got 3.0 and 2.5"),
        ({**FLOAT, "low": -math.inf}, "x: needs finite low and high, got -inf and 4.0"),
        ({**FLOAT, "high": math.inf}, "x: needs finite low and high, got 1.0 and inf"),
        ({**FLOAT, "high": math.nan}, "x: needs low <= high, got 1.0 and nan"),
        ({**INT, "low": 1.5}, "x: needs whole numbers for low and high, got 1.5 and 4"),
        ({**INT, "high": 3.5}, "x: needs whole numbers for low and high, got 1 and 3.5"),
        ({**FLOAT, "scale": "square"}, "x: scale 'square' is not one of linear, log"),
        ({**FLOAT, "low": 0.0, "scale": "log"}, "x: a log scale needs low > 0, got 0.0"),
        ({**FLOAT, "default": 5.0}, "x=5.0 is outside [1, 4]"),
        ({**FLOAT, "defaults": {"digits": 5.0}}, "x=5.0 is outside [1, 4]"),
    ],
)
def test_a_parameter_that_contradicts_itself_is_refused(fields, complaint):
    with pytest.raises(SpaceError) as caught:
        parameter(**fields)
    assert str(caught.value) == complaint
    parameter(**{**FLOAT, "low": 2.0, "high": 2.0, "scale": "log"})


def test_the_default_of_a_network_goes_before_that_of_its_data_set():
    common = {"symbol": "x", "source": "a paper"}
    x = {**common, **FLOAT, "defaults": {"birds": 3.0, "birds/small": 4.0, "small": 1.0}}
    space = SearchSpace("m", "methods", "M", "a paper", {"x": x, "y": {**common, **INT}})
    found = space.parameters["x"]
    asked = [("birds", "small"), ("birds", "large"), ("cats", "small"), (None, None)]
    assert [found.default_for(*each) for each in asked] == [4.0, 3.0, 2.0, 2.0]
    assert [space.default_point(*each)["x"] for each in asked] == [4.0, 3.0, 2.0, 2.0]
    assert space.default_point("birds", "small") == {"x": 4.0, "y": 2}
    fixed = SearchSpace("m", "methods", "M", "a paper", {"x": {**common, **INT, "search": False}})
    assert (list(space.searched()), list(fixed.searched())) == (["x", "y"], [])


def test_an_unknown_search_space_is_refused_with_the_known_ones():
    assert space_names("objectives") == ["ce", "cls", "fl", "ls", "mse"]
    kinds = r"kind 'losses' is not one of methods, refinements, calibrators, objectives$"
    with pytest.raises(SpaceError, match=kinds):
        space_names("losses")
    there = r"^no search space objectives/ts; known are: ce, cls, fl, ls, mse$"
    with pytest.raises(SpaceError, match=there):
        load_space("objectives", "ts")
    with pytest.raises(FileNotFoundError):
        load_protocol("nothing")


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ({"source": "s"}, "'title'"),
        ({"title": "t", "source": "s", "parameters": {"x": {**FLOAT, "scale": "square"}}}, "scale"),
        ({"title": "t", "source": "s", "parameters": {"x": {"low": 1.0}}}, "missing"),
        ({"title": "t", "source": "s", "on_training": {"y": 1}}, "'y'"),
    ],
)
def test_a_malformed_file_is_named(document, complaint):
    for fields in document.get("parameters", {}).values():
        fields.update(symbol="x", source="s")
    where = "search_spaces/methods/m.yaml"
    with pytest.raises(SpaceError, match=rf"^search_spaces/methods/m\.yaml: .*{complaint}"):
        assert parse_space("methods", "m", document, where, lambda: None).parameters


class Margin(CheckedFields):
    margin: float = number(default=2.0, low=0.0)
    form: str = choice(default="a", choices=("a", "b", "c"))


def test_fields_missing_in_a_search_space_come_from_the_class():
    said = {"margin": {"low": 1.0, "high": 4.0}, "form": {"choices": ["b", "a"]}}
    document = {"title": "t", "source": "s", "parameters": said}
    for fields in said.values():
        fields.update(symbol="x", source="s")
    found = parse_space("methods", "m", document, "m.yaml", lambda: Margin).parameters
    margin, form = found["margin"], found["form"]
    assert (margin.type, margin.default, margin.low, margin.high) == ("float", 2.0, 1.0, 4.0)
    assert (form.type, form.default, form.choices) == ("categorical", "a", ("b", "a"))


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        (
            {"default": 3.0},
            "m.yaml: margin: expected the class's default 2.0, got 3.0; leave it out",
        ),
        (
            {"type": "int"},
            "m.yaml: margin: expected the class's type 'float', got 'int'; leave it out",
        ),
        ({"low": 2.5}, "m.yaml: margin=2.0 is outside [2.5, 4]"),
    ],
)
def test_a_file_that_contradicts_the_class_is_refused(fields, complaint):
    given = {"symbol": "m", "source": "s", "low": 1.0, "high": 4.0, **fields}
    document = {"title": "t", "source": "s", "parameters": {"margin": given}}
    with pytest.raises(SpaceError) as caught:
        assert parse_space("methods", "m", document, "m.yaml", lambda: Margin).parameters
    assert str(caught.value) == complaint


REFERENCE = Path(__file__).parent / "reference" / "search_spaces.txt"
UNSAID: dict[str, Any] = {
    **{"low": None, "high": None, "scale": "linear", "search": True},
    **{"choices": (), "defaults": {}, "variants": {}, "ours": False},
    **{"grid": (), "grids": {}, "tuned": (), "open": (), "later": False, "note": ""},
}


def lines_of(place: str) -> list[str]:
    """Return the values of a search space or protocol, a line for each parameter or field."""
    kind, name = place.split("/")
    values: dict[str, Any]
    if kind == "protocols":
        values = load_protocol(name)
    else:
        space = load_space(kind, name)
        assert (space.kind, space.name) == (kind, name)
        values = {"title": space.title, "source": space.source}
        for key, one in space.parameters.items():
            assert one.name == key
            fields = {k: v for k, v in asdict(one).items() if k not in UNSAID or v != UNSAID[k]}
            values[key] = {k: v for k, v in fields.items() if k != "name"}
    return [f"  {key} {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]


def known() -> dict[str, list[str]]:
    blocks = re.split(r"\n(?! )", REFERENCE.read_text(encoding="utf-8").rstrip())
    return {place: lines for place, *lines in map(str.splitlines, blocks)}


KNOWN = known()


@pytest.mark.parametrize("place", KNOWN)
def test_no_default_range_text_or_protocol_has_changed(place):
    """A change that is meant is written into the file as well; what is new need not be there."""
    assert lines_of(place) == KNOWN[place]


def test_published_values_hold_for_pretrained_networks_too():
    vit = "timm:vit_small_patch16_224"
    for kind, name, parameter, value in (
        ("methods", "au", "coverage", 0.2),
        ("methods", "dfl", "gamma", 1.0),
        ("methods", "ifl", "gamma", 1.0),
    ):
        published = load_space(kind, name).parameters[parameter]
        for model in (vit, f"{vit}@pretrained"):
            assert published.default_for("tiny-imagenet", model) == value
