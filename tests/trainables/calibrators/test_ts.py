import pytest
import torch

from trainables.calibrators import build_calibrator
from trainables.metrics import calibration_report


@pytest.mark.shared
def test_reaches_the_exact_minimiser_of_every_reference_case(goldens):
    for case in goldens.cases("posthoc.npz", method="ts_exact"):
        data = goldens.data(case["dataset"])
        fitted = build_calibrator("ts").fit(data.fit_logits, data.fit_labels)
        assert fitted.summary()["temperature"] == pytest.approx(case["params"]["T"], rel=1e-7)
        assert fitted.report.objective == pytest.approx(case["params"]["fit_nll"], rel=1e-12)
        assert fitted.report.converged
        expected = torch.from_numpy(goldens.arrays[case["probs_first50"]])
        torch.testing.assert_close(
            fitted(data.test_logits[:50]).double().exp(), expected.double(), rtol=1e-5, atol=1e-7
        )


@pytest.mark.shared
def test_squared_error_matches_the_released_temperature(goldens):
    for case in goldens.cases("posthoc.npz", method="ts_mixnmatch_mse"):
        data = goldens.data(case["dataset"])
        fitted = build_calibrator("ts", "mse").fit(data.fit_logits, data.fit_labels)
        assert fitted.summary()["temperature"] == pytest.approx(case["params"]["T"], rel=5e-4)


def test_the_grid_is_searched_for_the_smallest_error(rows):
    logits, labels = rows
    errors = [
        calibration_report(logits=logits.double() / (t / 10), labels=labels, metrics=["ece"])["ece"]
        for t in range(1, 101)
    ]
    fitted = build_calibrator("ts", selection="ece").fit(logits, labels)
    assert float(fitted.temperature) == pytest.approx((errors.index(min(errors)) + 1) / 10)
    assert fitted.report.objective == pytest.approx(min(errors), abs=1e-9)
    assert fitted.report.iterations == 100
    assert fitted.report.note == "objective is the ECE on a grid"


def test_the_smallest_temperature_wins_if_errors_on_the_grid_are_equal():
    logits, labels = 1e4 * torch.eye(3).repeat(4, 1), torch.arange(3).repeat(4)
    fitted = build_calibrator("ts", selection="ece").fit(logits, labels)
    assert float(fitted.temperature) == pytest.approx(0.1)


def test_constant_logits_leave_the_temperature_at_one():
    fitted = build_calibrator("ts").fit(torch.ones(8, 3), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]))
    assert fitted.summary() == {"temperature": 1.0}
    assert fitted.report.converged
