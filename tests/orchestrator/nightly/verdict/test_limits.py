"""Limits of the nightly file, and the record of a night."""

from __future__ import annotations

import json
import math

import pytest
from pydantic import ValidationError

from orchestrator.nightly import MEASURES, CellKey, Limits, NightRecord, Shape


def test_defaults_hold_where_nothing_is_said() -> None:
    limits = Limits.model_validate({"thresholds": {"ece": {"relative": 0.3}}})
    assert limits.threshold("ece").relative == 0.3
    assert limits.threshold("cifar10-c/ece").relative == 0.3
    assert limits.threshold("acc").absolute == MEASURES["acc"].absolute
    assert limits.bounds("ece") is None


def test_a_suite_may_have_limits_of_its_own() -> None:
    limits = Limits.model_validate(
        {
            "thresholds": {"ece": {"relative": 0.3}, "cifar10-c/ece": {"relative": 0.4}},
            "hard": {"cifar10-c/ece": {"max": 0.5}},
        }
    )
    assert limits.threshold("cifar10-c/ece").relative == 0.4
    assert limits.bounds("cifar10-c/ece").max == 0.5
    assert limits.bounds("ece") is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"window": 2}, "greater than or equal to 5"),
        ({"false_alarms": 0}, "greater than 0"),
        ({"thresholds": {"speed": {"relative": 0.1}}}, "metric='speed' is not one of acc, ece"),
        ({"thresholds": {"ece": {}}}, "one must be above"),
        ({"thresholds": {"wall_seconds": {"absolute": 5}}}, "wall_seconds takes a relative"),
        ({"hard": {"ece": {}}}, "neither min nor max"),
        ({"hard": {"ece": {"min": 2, "max": 1}}}, "min=2.0 is above max=1.0"),
        ({"windows": 5}, "Extra inputs"),
    ],
)
def test_wrong_limits_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Limits.model_validate(values)


def test_a_cell_is_read_as_it_is_written() -> None:
    for cell in (CellKey("ce+ts", "a:b/c/d", "x/ece"), CellKey("ls", "d")):
        assert CellKey.parse(str(cell)) == cell
    for text in ("ece", "ls on", " on d: ece", "ls@d: ece"):
        with pytest.raises(ValueError, match="is not RECIPE on TASK: METRIC"):
            CellKey.parse(text)


def test_a_record_survives_json() -> None:
    night = NightRecord(
        "2026-11-21",
        1.5,
        {CellKey("ls", "d", "ece"): {0: 0.1, 7: math.inf}},
        {("ce", "d"): "out of memory"},
        Shape(("ce", "ls"), ("d",), ("ece",), (0, 7)),
        {"torch": "2.11.0"},
    )
    assert NightRecord.from_json(json.loads(json.dumps(night.to_json(), allow_nan=False))) == night
