from pathlib import Path

import pytest
import torch

from trainables.common.errors import InputError
from trainables.contracts import draw_rows
from trainables.metrics import (
    METRICS,
    calibration_report,
    noise_floor,
    registered_report,
    row_terms,
)
from trainables.plugins import load_plugins

METRIC = """
from calsweep import METRICS

@METRICS.register("mine", better="lower", bounds=(0, 2))
def mine(probs, labels):
    return {value}
"""
BRIER = "probs.square().sum(1) - 2 * probs.gather(1, labels[:, None]).squeeze(1) + 1"


def load(folder: Path, text: str) -> None:
    (folder / "own.py").write_text(text)
    load_plugins([str(folder / "own.py")])


@pytest.mark.parametrize("whole", ["", ".mean()"])
def test_terms_tell_value_and_standard_error(whole: str, tmp_path: Path) -> None:
    load(tmp_path, METRIC.format(value=f"({BRIER}){whole}"))
    logits, labels = draw_rows(rows=1023)
    value = calibration_report(logits, labels=labels)["brier"]
    assert registered_report(logits, labels) == {"mine": pytest.approx(value)}
    terms, exact = (row_terms(name, logits, labels) for name in ("mine", "brier"))
    assert terms.shape == labels.shape
    assert float(terms.mean()) == pytest.approx(value)
    # Fifty groups tell a deviation to a tenth.
    assert float(terms.std()) == pytest.approx(float(exact.std()), rel=0.25 if whole else 1e-9)


def test_a_registered_metric_is_an_objective_only_if_lower_is_better(tmp_path: Path) -> None:
    load(tmp_path, METRIC.format(value=0) + METRIC.replace("mine", "up").replace("lower", "higher"))
    assert [METRICS[name].is_objective for name in ("mine", "up")] == [True, False]
    load_plugins((), installed=True)
    assert "mine" not in METRICS


@pytest.mark.full
def test_a_registered_metric_gets_the_noise_floor_that_it_requests(tmp_path: Path) -> None:
    ece = METRIC.replace('better="lower"', 'better="lower", floored=True')
    value = "calibration_report(probs=probs, labels=labels)['ece']"
    load(tmp_path, "from calsweep import calibration_report" + ece.format(value=value))
    logits, labels = draw_rows(rows=1000)
    floor = noise_floor(logits, "ece").mean
    assert noise_floor(logits, "mine").mean == pytest.approx(floor, rel=0.05)
    found = registered_report(logits, labels, floors=True)
    assert found == {
        "mine": pytest.approx(calibration_report(logits, labels=labels)["ece"]),
        "mine_floor": noise_floor(logits, "mine").mean,
    }
    assert METRICS["mine_floor"].label == "mine floor"
    assert [name for name in METRICS if name.startswith("mine")] == ["mine", "mine_floor"]
    assert METRICS.described()["mine"]["floored"] is True
    assert "mine_floor" not in METRICS.measurable


def test_a_metric_without_a_noise_floor_has_none(tmp_path: Path) -> None:
    load(tmp_path, METRIC.format(value=BRIER))
    logits, labels = draw_rows()
    assert "mine_floor" not in METRICS
    assert [*registered_report(logits, labels, floors=True)] == ["mine"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("float('nan')", "metric 'mine' is nan for 600 rows; it must be finite"),
        ("-probs.new_zeros(len(labels)).log()", "metric 'mine' is inf for 600 rows"),
        ("probs", r"expected a scalar or a value per row, got shape \(600, 5\) for 600 rows"),
        ("1 / 0", "metric 'mine' failed: ZeroDivisionError: division by zero"),
        ("'high'", "metric 'mine' failed: TypeError"),
    ],
)
def test_a_wrong_value_is_one_line(value: str, message: str, tmp_path: Path) -> None:
    load(tmp_path, METRIC.format(value=value))
    with pytest.raises(InputError, match=message):
        registered_report(*draw_rows())


def test_a_scalar_of_one_row_has_a_term(tmp_path: Path) -> None:
    load(tmp_path, METRIC.format(value="probs.amax(1).mean()"))
    logits, labels = draw_rows(rows=1)
    assert row_terms("mine", logits, labels) == logits.softmax(1).amax(1)
    assert torch.isfinite(row_terms("mine", *draw_rows(rows=3))).all()
