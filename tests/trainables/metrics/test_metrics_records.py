from dataclasses import replace

import pytest
import torch

from trainables.metrics import FLOORED, METRICS, REPORTED, Metric, evaluation_report, metrics_digest

TESTED = [metric for metric in METRICS.values() if metric.source in ("report", "test")]
# A metric that comes to another value here needs a new version in its record and a new line; a
# line is never changed. Else evaluations stored before would stand beside others.
VALUES = {
    ("acc", 1): 0.6616666666666666,
    ("nll", 1): 1.8193459582862404,
    ("brier", 1): 0.6387510950290993,
    ("ece", 1): 0.13383279655226596,
    ("aece", 1): 0.1378140059802554,
    ("cwece", 1): 0.07648724312376452,
    ("cwaece", 1): 0.07116564357755333,
    ("mce", 1): 0.689774507044483,
    ("debiased_ece", 1): 0.1293585783328281,
    ("smooth_ece", 1): 0.11201977085596428,
    ("ece_floor", 1): 0.04367371961463894,
    ("aece_floor", 1): 0.060198984435438696,
    ("cwece_floor", 1): 0.03193643593940103,
}


def fixed_report() -> dict[str, float]:
    """A report on 600 rows of 7 classes that no random generator makes."""
    cells = torch.arange(600 * 7, dtype=torch.float64).view(600, 7)
    logits = 3 * torch.sin(cells * 1.7) + torch.cos(cells.square() * 0.31)
    labels = torch.where(torch.arange(600) % 5 < 3, logits.argmax(1), torch.arange(600) % 7)
    return evaluation_report(logits, labels)


def test_each_version_of_a_metric_has_one_value() -> None:
    found = fixed_report()
    wanted = {metric.name: VALUES.get((metric.name, metric.version)) for metric in TESTED}
    assert found == pytest.approx(wanted, rel=1e-9)
    assert list(found) == list(wanted)
    assert tuple(m.name for m in METRICS.values() if m.source == "report") == REPORTED


# Name, heading, source, better, whether a percentage, decimals, highest value, whether binned, and
# the smallest differences that matter.
RECORDS = """
acc          Acc          report higher  True  2 1   False 0    0.005
nll          NLL          report lower   False 4 inf False 0.05 0.002
brier        Brier        report lower   False 4 2   False 0.05 0.001
ece          ECE          report lower   True  2 1   True  0.1  0.001
aece         AECE         report lower   True  2 1   True  0.1  0.001
cwece        cwECE        report lower   True  3 1   True  0.1  0.0002
cwaece       cwAECE       report lower   True  3 1   True  0.1  0.0002
mce          MCE          report lower   True  2 1   True  0.25 0.01
debiased_ece debiased_ECE test   lower   True  2 1   True  0    0
smooth_ece   smooth_ECE   test   lower   True  2 1   False 0    0
ece_floor    ECE_floor    test   neither True  2 1   True  0    0
aece_floor   AECE_floor   test   neither True  2 1   True  0    0
cwece_floor  cwECE_floor  test   neither True  3 1   True  0    0
miou         mIoU         pixels higher  True  2 1   False 0    0.005
iou          IoU          pixels higher  True  2 1   False 0    0
nll_after_ts   NLL_after_TS   search lower   False 4 inf False 0    0
auroc        AUROC        suite  higher  True  2 1   False 0    0.005
fpr95        FPR95        suite  lower   True  2 1   False 0    0.01
"""


def test_metrics_have_the_recorded_bounds_digits_and_thresholds() -> None:
    found = []
    for name in METRICS:
        if METRICS[name].source == "rows":
            continue
        m = METRICS[name]
        assert (m.name, m.floored) == (name, name in FLOORED)
        assert m.bounds[0] == (-1.0 if name == "debiased_ece" else 0.0)
        shown = (m.better, m.percent, m.digits, f"{m.bounds[1]:g}", m.binned)
        matters = (f"{m.relative:g}", f"{m.absolute:g}")
        found.append([name, m.label.replace(" ", "_"), m.source, *map(str, (*shown, *matters))])
    assert found == [line.split() for line in RECORDS.strip().splitlines()]


def test_an_objective_is_minimised_on_validation_data_and_a_night_is_judged_by_some() -> None:
    stored = [metric for metric in METRICS.values() if metric.source != "rows"]
    found = {metric.name for metric in stored if metric.is_objective}
    assert found == {
        *("nll", "brier", "nll_after_ts"),
        *("ece", "aece", "cwece", "cwaece", "mce", "debiased_ece", "smooth_ece"),
    }
    unjudged = {metric.name for metric in stored if not metric.is_judged}
    floors = {f"{name}_floor" for name in FLOORED}
    assert unjudged == floors | {"debiased_ece", "smooth_ece", "iou", "nll_after_ts"}


def test_metrics_of_stored_rows_are_part_of_no_key_and_no_night() -> None:
    found = [metric for metric in METRICS.values() if metric.source == "rows"]
    assert len(found) == 37
    assert not any(metric.is_judged or metric.floored for metric in found)
    searched = {metric.name for metric in found if metric.is_objective}
    assert searched == {
        *(
            "aurc",
            "e_aurc",
            "augrc",
            "risk_80",
            "risk_90",
            "risk_95",
            "ece_over",
            "ece_under",
            "l2_error",
        ),
        *(
            f"{score}_{part}"
            for score in ("nll", "brier")
            for part in ("refinement", "calibration")
        ),
        *(f"{kind}_{level}_size" for kind in ("lac", "aps", "raps") for level in (90, 95)),
    }
    assert METRICS.columns(["ece", "augrc", "seconds"]) == ["augrc"]


def test_a_plugin_may_have_a_metric_of_the_name_of_one_of_stored_rows() -> None:
    assert METRICS.own("ece") is not None
    assert METRICS.own("aurc") is None
    METRICS.plug({"aurc": (replace(METRICS["aurc"], source="plugin", label="mine"), "hash")})
    try:
        assert METRICS["aurc"].label == "mine"
        assert METRICS.columns(["aurc", "augrc"]) == ["augrc"]
        assert METRICS.measurable.count("aurc") == METRICS.names().count("aurc") == 1
    finally:
        METRICS.plug({})


@pytest.mark.parametrize("change", ["a new metric", "a new version"])
def test_a_changed_metric_changes_the_digest_of_its_report(change, monkeypatch):
    before, suite = metrics_digest("report", "test"), metrics_digest("report", "suite")
    metric = Metric("new", "New", source="test")
    if change == "a new version":
        metric = replace(METRICS["smooth_ece"], version=2)
    monkeypatch.setitem(METRICS._entries, metric.name, metric)
    assert metrics_digest("report", "test") != before
    assert metrics_digest("report", "suite") == suite
