import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.sweep.documents import read_document
from orchestrator.sweep.spec import parse_sweep
from trainables.common.errors import InputError
from trainables.common.yaml_text import read_mapping, write_mapping

SWEEP: dict[str, Any] = {
    "name": "small",
    "tasks": [
        {
            "dataset": "digits",
            "model": "convnet",
            "protocol": {"base": "digits", "epochs": 2},
            "split": {"validation": 0.1, "test": 0.25, "train_limit": 9, "seed": 1},
            "suites": ["ood-svhn"],
        }
    ],
    "recipes": ["ce", "wide", "ce+macal", "*+ts"],
    "variants": {"wide": {"of": "mbls", "fixed": {"margin": 15.0}}},
    "search": {
        "trials": 3,
        "sampler": "tpe",
        "accuracy_tolerance": 0.01,
        "fixed": {"macal": {"epochs": 2}},
        "spaces": {"macal": {"gamma": {"low": 0.5, "high": 0.9}, "q0": {"choices": [0.5, 0.9]}}},
    },
    "seeds": [0, 1],
    "resources": {"train": {"cpu": 1, "gpu": 0.0}, "concurrent": 2},
    "tags": {"team": "red"},
    "storage": "storage",
    "data_root": "data",
}
SIGNS = "abz019 \n:-?[]{},&*!|>'\"%@`#~.+_/<=\t\\\0\x1b\u202e\x85\xff\ud800"
NUMBERS = st.integers(-(10**90), 10**90) | st.floats() | st.sampled_from([0, -1, 1, 2, 0.5, 1e300])
SCALARS = st.none() | st.booleans() | NUMBERS | st.text(SIGNS, max_size=9) | st.dates()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS, inner, max_size=3),
    max_leaves=6,
)


def places(part: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to every value of a document."""
    pairs = part.items() if isinstance(part, dict) else enumerate(part)
    found = []
    for step, value in pairs:
        found.append((*before, step))
        if isinstance(value, dict | list):
            found += places(value, (*before, step))
    return found


def replaced(part: Any, way: tuple[Any, ...], value: Any) -> Any:
    """Return a document with another value at one place."""
    if not way:
        return value
    changed = dict(part) if isinstance(part, dict) else list(part)
    changed[way[0]] = replaced(part[way[0]], way[1:], value)
    return changed


def test_the_unchanged_sweep_is_valid() -> None:
    assert parse_sweep(yaml.safe_dump(SWEEP), "good.yaml").name == "small"


def complaint(text: str) -> str:
    """Return what is said of a sweep file; nothing if all is well."""
    try:
        parse_sweep(text, "bad.yaml")
    except InputError as error:
        return str(error)
    return ""


def assert_told(text: str) -> None:
    said = complaint(text)
    assert said.isprintable()
    assert len(said) <= 2000


@settings(deadline=None)
@given(text=st.text() | st.text(SIGNS) | st.binary().map(lambda raw: raw.decode("latin1")))
def test_any_text(text: str) -> None:
    assert_told(text)


@settings(deadline=None)
@given(key=st.sampled_from(sorted(SWEEP)), text=st.text(SIGNS))
def test_any_text_as_a_value(key: str, text: str) -> None:
    rest = yaml.safe_dump({name: value for name, value in SWEEP.items() if name != key})
    assert_told(f"{rest}{key}: {text}")


@settings(deadline=None)
@given(way=st.sampled_from(places(SWEEP)), value=VALUES)
def test_any_value_in_any_place_is_accepted_or_gets_one_line(
    way: tuple[Any, ...], value: Any
) -> None:
    assert_told(yaml.dump(replaced(SWEEP, way, value), Dumper=yaml.SafeDumper))


@pytest.mark.full
@pytest.mark.parametrize("value", [10**99, -(10**99), math.inf, math.nan, "", "x" * 9999, {}, []])
def test_the_most_extreme_values_in_every_place(value: Any) -> None:
    for way in places(SWEEP):
        assert_told(yaml.safe_dump(replaced(SWEEP, way, value)))


def shared(length: int, aliases: int = 9) -> str:
    return f"a: &x {'y' * length}\nb: [{', '.join(['*x'] * aliases)}]"


@pytest.mark.parametrize(
    ("fits", "exceeds"),
    [
        (f"a: {'[' * 31}{']' * 31}", f"a: {'[' * 32}{']' * 32}"),
        (f"a: {'7' * 100}", f"a: {'7' * 101}"),
        (f"a: {'y' * 101}\nb: '{'7' * 101}'", f"a: 0.{'7' * 99}"),
        (shared(104_856), shared(104_857)),
        ("a: &x [y, y]\nb: [*x, *x]", "a: &x [y, y]\na: [*x, *x]"),
    ],
)
def test_documents_up_to_the_limits_are_read_and_larger_ones_refused(
    fits: str, exceeds: str
) -> None:
    assert read_mapping(fits, "here", "a sweep", "a name")
    with pytest.raises(InputError, match=r"^here: line "):
        read_mapping(exceeds, "here", "a sweep", "a name")


def test_a_word_or_a_time_is_text_as_in_yaml_1_2() -> None:
    texts = "on, yes, NO, off, 1:30, -1:30.5, 190:20:30, 010, -0_7, 2026-01-01, 2026-01-01 10:00:00"
    assert read_mapping(f"a: [{texts}]", "here", "", "")["a"] == texts.split(", ")
    assert read_mapping("{no: 1, on: 2}", "here", "", "") == {"no": 1, "on": 2}
    others = "[true, False, null, 0, -10, 1_000, 0x1F, 0.5, 01.5, 1e-3, -1.5e-3, .inf, !!bool yes]"
    values = [True, False, None, 0, -10, 1000, 31, 0.5, 1.5, 0.001, -0.0015, math.inf, True]
    assert read_mapping(f"a: {others}", "here", "", "")["a"] == values


def test_a_written_mapping_is_read_back_unchanged() -> None:
    document = {
        "a": ["1e3", 1e3, 1e-30, "no", "1:30", "010", "1.0e3", "2026-01-01", 10, True],
        "1e2": {},
    }
    assert read_mapping(write_mapping(document), "here", "", "") == document


def test_a_file_of_up_to_128_kib_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_text("#" * 2**17)
    assert len(read_document(path, "here")) == 2**17
    path.write_text("#" * (2**17 + 1))
    with pytest.raises(InputError, match="here: expected at most 128 KiB, got more"):
        read_document(path, "here")
