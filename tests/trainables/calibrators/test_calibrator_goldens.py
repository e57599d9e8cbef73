"""Parity with the released calibrators on their stored cases.

Tolerances: where both sides solve the same smooth problem, what the solvers' own stopping rules
leave (1e-4 in weights, 5e-4 in T); where the released fit stops short, a percent in T and a point
of ECE (bins jump) against the exact fit, and a tenth of that or less against the repeated run.
"""

import numpy as np
import pytest
import torch

from trainables.calibrators import build_calibrator
from trainables.metrics import calibration_report

pytestmark = pytest.mark.shared

OBJECTIVES = {"CE": "ce", "LS": "ls", "FL": "fl", "CL": "cls"}


def objective_of(case: dict) -> tuple[str, dict]:
    name = OBJECTIVES[case["loss"]]
    own = {"cls": {"normalization": case["norm"].lower()}, "fl": {"detach": True}}
    return name, own.get(name, {})


def report_of(calibrator, data) -> dict[str, float]:
    labels = data.test_labels.astype(np.int64)
    return calibration_report(logits=calibrator(data.test_logits).double(), labels=labels)


def test_the_ece_grid_picks_the_released_temperature(goldens):
    for case in goldens.cases("posthoc.npz", method="ts_grid_ece"):
        data = goldens.data(case["dataset"])
        fitted = build_calibrator("ts", selection="ece").fit(data.fit_logits, data.fit_labels)
        assert fitted.summary()["temperature"] == pytest.approx(case["params"]["T"])


@pytest.mark.parametrize(("method", "variant"), [("ets_ce", "paper"), ("ets_mse", "released")])
def test_ets_weights_and_probabilities(goldens, method, variant):
    for case in goldens.cases("posthoc.npz", method=method):
        data = goldens.data(case["dataset"])
        fitted = build_calibrator("ets", variant=variant).fit(data.fit_logits, data.fit_labels)
        assert fitted.weights.tolist() == pytest.approx(case["params"]["weights"], abs=1e-4)
        assert fitted.report.objective <= case["params"]["fit_objective"] + 1e-10
        assert float(fitted.temperature) == pytest.approx(case["params"]["T"], rel=5e-4)
        expected = torch.from_numpy(goldens.arrays[case["probs_first50"]])
        torch.testing.assert_close(
            fitted(data.test_logits[:50]).double().exp(), expected.double(), rtol=0, atol=1e-5
        )
        assert report_of(fitted, data)["ece"] == pytest.approx(case["after"]["ece15"], abs=1e-4)


def test_cls_alpha_beta_and_temperature_of_ts(goldens):
    for case in goldens.cases("posthoc_sctl.npz", method="TS", loss="CL"):
        data = goldens.data(case["dataset"])
        fitted = build_calibrator("ts", *objective_of(case)).fit(data.fit_logits, data.fit_labels)
        found = fitted.summary()
        assert found["alpha"] == pytest.approx(case["alpha"], abs=1e-6)
        assert found["beta"] == pytest.approx(case["beta"], abs=1e-6)
        assert found["temperature"] == pytest.approx(case["params"]["t"][0], rel=0.01)
        assert report_of(fitted, data)["ece"] == pytest.approx(case["after"]["ece15"], abs=1e-2)


@pytest.mark.full
def test_cls_alpha_beta_and_temperatures_of_cts(goldens):
    for case in goldens.cases("posthoc_sctl.npz", method="CTS", loss="CL"):
        data = goldens.data(case["dataset"])
        fitted = build_calibrator("cts", *objective_of(case), assignment="logit")
        fitted.fit(data.fit_logits, data.fit_labels)
        assert fitted.summary()["alpha"] == pytest.approx(case["alpha"], abs=1e-6)
        assert fitted.summary()["beta"] == pytest.approx(case["beta"], abs=1e-6)
        assert fitted.temperatures.tolist() == pytest.approx(case["params"]["T"], rel=0.01)
        found = report_of(fitted, data)
        assert found["ece"] == pytest.approx(case["after"]["ece15"], abs=5e-3)
        assert found["acc"] == pytest.approx(case["after"]["accuracy"], abs=1e-3)


@pytest.mark.full
@pytest.mark.parametrize("case_id", ["synth_over_k10/TS_FL_ND", "synth_over_k10/TS_CL_MM"])
def test_the_repeated_run_of_ts_stops_where_the_released_one_does(goldens, case_id):
    (case,) = goldens.cases("posthoc_sctl.npz", id=case_id)
    data = goldens.data(case["dataset"])
    fitted = build_calibrator("ts", *objective_of(case), variant="released")
    fitted.fit(data.fit_logits, data.fit_labels)
    assert fitted.summary()["temperature"] == pytest.approx(case["params"]["t"][0], rel=2e-3)


@pytest.mark.full
@pytest.mark.parametrize("variant", ["paper", "released"])
def test_ets_of_logits_is_the_one_of_the_class_wise_code(goldens, variant):
    met = 0
    for case in goldens.cases("posthoc_sctl.npz", method="ETS"):
        if case["loss"] not in ("CE", "CL"):
            continue  # Converged, the fits of smoothed and focal losses end elsewhere.
        if variant == "released" and case["loss"] == "CE" and met:
            continue  # One released run with plain cross-entropy tells enough.
        data = goldens.data(case["dataset"])
        fitted = build_calibrator("ets", *objective_of(case), mixture="logits", variant=variant)
        fitted.fit(data.fit_logits, data.fit_labels)
        found, after = report_of(fitted, data), case["after"]
        far = 2e-3 if variant == "released" else 1e-2
        assert fitted.temperature.tolist() == pytest.approx(case["params"]["t.t"], rel=far)
        assert fitted.weights.tolist() == pytest.approx(case["params"]["w.w"], abs=far)
        assert found["nll"] == pytest.approx(after["nll"], abs=far / 10)
        assert found["acc"] == pytest.approx(after["accuracy"], abs=1e-6)
        # Rows cross edges of bins as processors round: their parameters have their ECE, exactly.
        fitted.temperature = torch.tensor(case["params"]["t.t"], dtype=torch.float64)
        fitted.weights = torch.tensor(case["params"]["w.w"], dtype=torch.float64)
        assert report_of(fitted, data)["ece"] == pytest.approx(after["ece15"], abs=1e-6)
        met += 1
    assert met > 1


@pytest.mark.full
def test_the_repeated_run_of_cts_stops_where_the_released_one_does(goldens):
    (case,) = goldens.cases("posthoc_sctl.npz", id="synth_classwise_k12/CTS_CL_ND")
    data = goldens.data(case["dataset"])
    fitted = build_calibrator("cts", "cls", assignment="logit", variant="released")
    fitted.fit(data.fit_logits, data.fit_labels)
    assert fitted.temperatures.tolist() == pytest.approx(case["params"]["T"], rel=2e-3)
    # A row that crosses the edge of a bin moves the ECE by up to 1 / N.
    one_row = 1 / len(data.test_labels)
    assert report_of(fitted, data)["ece"] == pytest.approx(case["after"]["ece15"], abs=2 * one_row)


@pytest.mark.full
def test_the_repeated_run_of_pts_from_the_released_weights(goldens):
    (case,) = goldens.cases("posthoc_sctl.npz", id="synth_over_k10/PTS_CL_ND")
    data = goldens.data(case["dataset"])
    fitted = build_calibrator("pts", "cls", variant="released", layers=4, nodes=2)
    fitted.fit(data.fit_logits, data.fit_labels)
    assert fitted.summary()["alpha"] == pytest.approx(case["alpha"], abs=1e-6)
    assert report_of(fitted, data)["ece"] == pytest.approx(case["after"]["ece15"], abs=1e-5)
    assert report_of(fitted, data)["nll"] == pytest.approx(case["after"]["nll"], abs=1e-5)


def test_released_pts_weights_are_those_stored(goldens):
    from trainables.calibrators.pts import released_weights

    weights = released_weights(10, 2, 4, torch.device("cpu"))
    prefix = "synth_over_k10/PTS_CE_ND/init/models."
    stored = [
        goldens.sctl_arrays[f"{prefix}{i}{'' if i == 4 else '.0'}.{kind}"]
        for i in range(5)
        for kind in ("weight", "bias")
    ]
    for ours, theirs in zip(weights, stored, strict=True):
        # Processors round the scaling of a draw in one step or in two.
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=0, atol=1e-7)


@pytest.mark.parametrize(("prefix", "name"), [("metamis", "meta-mis"), ("metaacc", "meta-acc")])
def test_meta_calibrators_with_the_released_split(goldens, monkeypatch, prefix, name):
    cases = [c for c in goldens.cases("posthoc.npz") if c["method"].startswith(prefix)]
    assert len(cases) == (10 if prefix == "metamis" else 11)
    for case in cases:
        data = goldens.data(case["dataset"])
        wanted = (
            {"alpha": case["params"]["alpha"]}
            if prefix == "metamis"
            else {"accuracy": case["params"]["acc"]}
        )
        calibrator = build_calibrator(name, **wanted)
        split = torch.from_numpy(goldens.arrays[case["split_x1"]])
        monkeypatch.setattr(calibrator, "_draw", lambda candidates, split=split: candidates[split])
        calibrator.fit(data.fit_logits, data.fit_labels)
        found = calibrator.summary()
        assert found["threshold"] == pytest.approx(case["params"]["threshold"], rel=1e-5)
        undetermined = "do not determine" in calibrator.report.note
        if not undetermined:
            assert found["temperature"] == pytest.approx(case["params"]["T"], rel=1e-3)
        report = report_of(calibrator, data)
        assert report["acc"] == pytest.approx(case["after"]["accuracy"], abs=1e-9)
        loose = 1e-3 if undetermined else 1e-5
        assert report["nll"] == pytest.approx(case["after"]["nll"], abs=loose)
        assert report["ece"] == pytest.approx(case["after"]["ece15"], abs=loose)
