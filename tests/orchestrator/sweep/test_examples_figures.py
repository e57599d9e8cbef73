import importlib.util
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch

from trainables.calibrators import OBJECTIVES, build_calibrator
from trainables.metrics import METRICS, calibration_report, registered_report
from trainables.plugins import load_plugins

FOLDER = Path(str(files("orchestrator") / "examples"))
ROWS = 300
LOGITS = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = torch.arange(ROWS) % 4
LOGITS[range(ROWS), LABELS] += torch.tensor([0.5, 1.0, 2.0, 4.0])[LABELS]  # The first is hardest.


@pytest.fixture(autouse=True)
def plugin() -> None:
    load_plugins([str(FOLDER / "class_losses.py")])


def test_spread_and_correlation_of_class_losses_are_those_of_the_classes_apart():
    parts = [calibration_report(LOGITS[k == LABELS], labels=LABELS[k == LABELS]) for k in range(4)]
    pairs = torch.tensor([[part["nll"] for part in parts], [part["ece"] for part in parts]])
    found = registered_report(LOGITS, LABELS)
    assert found["class_spread"] == pytest.approx(pairs[0].std(correction=0).item(), rel=1e-6)
    assert found["class_r"] == pytest.approx(torch.corrcoef(pairs)[0, 1].item(), rel=1e-6)
    assert METRICS["class_spread"].better == "lower"


def test_figures_of_classes_are_of_those_that_have_rows():
    some = LABELS > 1
    found = registered_report(LOGITS[some], LABELS[some])
    losses = torch.nn.functional.cross_entropy(LOGITS, LABELS, reduction="none")
    means = [losses[k == LABELS].mean() for k in (2, 3)]
    assert found["class_spread"] == pytest.approx(abs(means[0] - means[1]).item() / 2)
    assert registered_report(LOGITS[LABELS == 2], LABELS[LABELS == 2])["class_r"] == 0


@pytest.mark.parametrize("classes", [1, 2, 9])
def test_a_temperature_of_the_hardest_classes_is_fitted_to_their_rows_alone(classes):
    found = build_calibrator("ts", objective="hardest", objective_parameters={"classes": classes})
    found.fit(LOGITS, LABELS)
    alone = build_calibrator("ts")
    alone.fit(LOGITS[classes > LABELS], LABELS[classes > LABELS])
    torch.testing.assert_close(found.temperature, alone.temperature, rtol=1e-6, atol=0)


def test_the_figure_of_classes_has_their_losses_and_errors(tmp_path):
    some = LABELS > 1
    np.savez(tmp_path / "ts-seed-0.npz", logits=LOGITS[some], labels=LABELS[some])
    chart = sys.modules[OBJECTIVES.get("hardest").__module__].chart
    rows = chart([tmp_path / "ts-seed-0.npz"]).spec["data"]["values"]
    for row, label in zip(rows, (2, 3), strict=True):
        report = calibration_report(LOGITS[label == LABELS], labels=LABELS[label == LABELS])
        assert (row["file"], row["class"]) == ("ts-seed-0", label)
        assert row["loss"] == pytest.approx(report["nll"], rel=1e-6)
        assert row["ece"] == pytest.approx(100 * report["ece"], rel=1e-6)


def test_gradients_are_the_derivatives_of_the_losses(tmp_path):
    place = importlib.util.spec_from_file_location("gradients", FOLDER / "loss_gradients.py")
    assert place is not None
    assert place.loader is not None
    figure = importlib.util.module_from_spec(place)
    place.loader.exec_module(figure)
    p = figure.PROBABILITIES
    torch.testing.assert_close(figure.gradients("ce"), 1 - p)
    # By hand: d/dz = p (1 - p) d/dp.
    focal = (1 - p) ** 2 * (-3 * p * p.log() + 1 - p) * (1 - p)
    torch.testing.assert_close(figure.gradients("fl"), focal)
    inverse = p * (1 - p) * ((1 + p) ** 2 / p + 2 * (1 + p) * p.log())
    torch.testing.assert_close(figure.gradients("ifl"), inverse)
    # AURC weighs the surest row with H_n, n rows: it counts more than cross-entropy's.
    count = len(p)
    most = sum(1 / k for k in range(1, count + 1))
    assert figure.gradients("aurc")[-1] == pytest.approx((1 - p[-1]).item() * most)
    assert figure.gradients("aurc")[0] < figure.gradients("ce")[0]
    figure.chart().save(tmp_path / "gradients.svg")
    drawn = (tmp_path / "gradients.svg").read_text(encoding="utf-8")
    assert all(f">{name}<" in drawn for name in figure.LOSSES)
