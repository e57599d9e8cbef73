import json
import math

import pytest
from pydantic import ValidationError

from orchestrator.nightly import MEASURES, CellKey, Limits, NightRecord, Shape


def test_missing_limits_have_defaults():
    limits = Limits.model_validate({"thresholds": {"ece": {"relative": 0.3}}})
    assert limits.threshold("ece").relative == 0.3
    assert limits.threshold("cifar10-c/ece").relative == 0.3
    assert limits.threshold("cifar10-c/severity-5/ece").relative == 0.3
    assert limits.threshold("acc").absolute == MEASURES["acc"].absolute
    assert limits.bounds("ece") is None


DIFFERENCES = {
    "acc": (0.0, 0.005),
    "nll": (0.05, 0.002),
    "brier": (0.05, 0.001),
    "ece": (0.1, 0.001),
    "aece": (0.1, 0.001),
    "cwece": (0.1, 0.0002),
    "cwaece": (0.1, 0.0002),
    "mce": (0.25, 0.01),
    "miou": (0.0, 0.005),
    "auroc": (0.0, 0.005),
    "fpr95": (0.0, 0.01),
    "images_per_second": (0.15, 0.0),
    "wall_seconds": (0.18, 0.0),
    "total_seconds": (0.18, 0.0),
    "peak_memory": (0.2, 0.0),
    **dict.fromkeys(("train_time", "refine_time", "calibrate_time"), (0.015, 0.0)),
}


def test_every_metric_has_its_smallest_difference_and_its_good_side():
    found = {metric: Limits().threshold(metric) for metric in MEASURES}
    assert {name: (own.relative, own.absolute) for name, own in found.items()} == DIFFERENCES
    higher = {metric for metric, measure in MEASURES.items() if measure.higher}
    assert higher == {"acc", "miou", "auroc", "images_per_second"}
    costs = {metric: measure for metric, measure in MEASURES.items() if measure.ratio}
    families = {name: measure.family for name, measure in costs.items()}
    times = dict.fromkeys(("wall_seconds", "total_seconds"), "time")
    stages = dict.fromkeys(("train_time", "refine_time", "calibrate_time"), "time")
    assert families == {"images_per_second": "speed", **times, **stages, "peak_memory": "memory"}
    assert {name for name, measure in MEASURES.items() if measure.best} == {
        "images_per_second",
        *times,
    }


def test_a_suite_may_have_limits_of_its_own():
    limits = Limits.model_validate(
        {
            "thresholds": {"ece": {"relative": 0.3}, "cifar10-c/ece": {"relative": 0.4}},
            "hard": {"cifar10-c/ece": {"max": 0.5}},
        }
    )
    assert limits.threshold("cifar10-c/ece").relative == 0.4
    assert limits.bounds("cifar10-c/ece").max == 0.5
    assert limits.bounds("ece") is None
    everywhere = Limits.model_validate({"hard": {"ece": {"min": 0.0, "max": 0.0}}})
    assert everywhere.bounds("cifar10-c/ece").min == 0.0
    both = Limits.model_validate({"hard": {"ece": {"max": 0.3}, "cifar10-c/ece": {"max": 0.5}}})
    assert [both.bounds(name).max for name in ("ece", "cifar10-c/ece")] == [0.3, 0.5]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"window": 2}, "greater than or equal to 5"),
        ({"false_alarms": 0}, "greater than 0"),
        ({"thresholds": {"speed": {"relative": 0.1}}}, "metric='speed' is not one of acc, ece"),
        ({"thresholds": {"ece": {}}}, "set one above 0"),
        ({"thresholds": {"wall_seconds": {"absolute": 5}}}, "wall_seconds takes a relative"),
        ({"thresholds": {"ece": {"relative": 1}}}, "less than 1"),
        ({"thresholds": {"ece": {"absolute": -0.1}}}, "greater than or equal to 0"),
        ({"thresholds": {"ece": {"relative": -0.1}}}, "greater than or equal to 0"),
        (
            {"thresholds": {"peak_memory": {"relative": 0.1, "absolute": 5}}},
            "peak_memory takes a relative",
        ),
        ({"window": 366}, "less than or equal to 365"),
        ({"false_alarms": 31}, "less than or equal to 30"),
        ({"hard": {"speed": {"max": 1}}}, "metric='speed' is not one of acc, ece"),
        ({"hard": {"ece": {}}}, "expected min, max or both"),
        ({"hard": {"ece": {"min": 2, "max": 1}}}, "min=2.0 is above max=1.0"),
        ({"windows": 5}, "Extra inputs"),
    ],
)
def test_wrong_limits_are_refused(values, message):
    with pytest.raises(ValidationError, match=message):
        Limits.model_validate(values)


def test_a_cell_is_read_as_it_is_written():
    for cell in (CellKey("ce+ts", "a:b/c/d", "x/ece"), CellKey("ls", "d"), CellKey("ls", "on on")):
        assert CellKey.parse(str(cell)) == cell
    assert CellKey.parse(" ls  on  d :  ece ") == CellKey("ls", "d", "ece")
    for text in ("ece", "ls on", " on d: ece", "ls@d: ece"):
        with pytest.raises(ValueError, match="is not RECIPE on TASK: METRIC"):
            CellKey.parse(text)


def test_a_record_survives_json():
    night = NightRecord(
        "2026-11-21",
        1.5,
        {CellKey("ls", "d", "ece"): {0: 0.1, 7: math.inf}, CellKey("ls", "d", "nll"): {}},
        {("ce", "d"): "out of memory"},
        Shape(("ce", "ls"), ("d",), ("ece",), (0, 7)),
        {"torch": "2.11.0"},
    )
    assert NightRecord.from_json(json.loads(json.dumps(night.to_json(), allow_nan=False))) == night
    assert night.mean(CellKey("ls", "d", "ece")) == math.inf
    assert night.mean(CellKey("ls", "d", "nll")) is night.mean(CellKey("ls", "d")) is None
