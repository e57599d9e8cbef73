"""Figures that tables and comparisons compute from stored predictions when asked for."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest
import torch

from orchestrator.statistics import KeptPredictions, with_columns
from trainables.common.stages import ArtifactRef
from trainables.metrics import METRICS, column_report

LABELS = torch.arange(300) % 4


@pytest.fixture
def results(evaluated, made_up, artifacts):
    """Two recipes of two seeds, with validation rows."""
    found = []
    for place, (recipe, factor) in enumerate({"ce": 1.0, "ls": 0.3}.items()):
        seeds = [factor * made_up(LABELS, place + seed) for seed in (0, 5)]
        result = evaluated(recipe, seeds, LABELS, test=({"ece": 0.1}, {"ece": 0.2}))
        for key in result.predictions:
            rows = {"logits": factor * made_up(LABELS, 9).float(), "labels": LABELS}
            artifacts.write(ArtifactRef("train", f"of-{key}"), {"validation": rows}, {})
            record = artifacts.find(ArtifactRef("evaluate", key))
            tensors = {"test": record.tensors("test")}
            ref = ArtifactRef("evaluate", f"{key[:-1]}x")
            artifacts.write(ref, tensors, {"upstream": f"of-{key}"})
        found.append(replace(result, predictions=tuple(f"{k[:-1]}x" for k in result.predictions)))
    return found


def test_each_figure_is_that_of_the_stored_rows(results, artifacts):
    names = METRICS.columns(METRICS)
    said: list[str] = []
    for result in with_columns(results, ["ece", *names, "seconds"], artifacts, said.append):
        for seed, key in zip(result.test, result.predictions, strict=True):
            rows = artifacts.find(ArtifactRef("evaluate", key)).tensors("test")
            fit = KeptPredictions(artifacts).validation(key)
            expected = column_report(rows["log_probs"], rows["labels"], names, fit)
            assert seed == {**expected, "ece": seed["ece"]}
    assert said == []


def test_what_a_sweep_has_stored_is_not_computed_again(results, artifacts):
    stored = [replace(result, test=({"aurc": 7.0},) * 2) for result in results]
    found = with_columns(stored, ["aurc", "augrc"], artifacts, pytest.fail)
    assert [seed["aurc"] for seed in found[0].test] == [7.0, 7.0]
    assert all(0 < seed["augrc"] < 1 for seed in found[0].test)


def test_what_cannot_be_computed_is_said(results, artifacts, evaluated, made_up):
    bare = evaluated("mbls", [made_up(LABELS, 3)], LABELS, test=({"ece": 0.1},))
    gone = replace(results[0], predictions=("0" * 64,) * 2)
    none = replace(results[1], predictions=())
    pixels = evaluated("au", [made_up(LABELS, 3)], LABELS, images=LABELS // 2, test=({"ece": 0.1},))
    said: list[str] = []
    found = with_columns([bare, gone, none, pixels], ["augrc"], artifacts, said.append)
    assert ["augrc" in result.test[0] for result in found] == [True, False, False, True]
    assert said[0].startswith(
        "ce on digits/convnet/digits has no augrc: its predictions are gone; "
    )
    assert said[1:] == [
        "ls on digits/convnet/digits has no augrc: no predictions on record",
        "au on digits/convnet/digits: augrc of the stored sample of pixels, not of all",
    ]
    with_columns([bare], ["aps_90_size"], artifacts, said.append)
    assert said[-1] == (
        "mbls on digits/convnet/digits has no aps_90_size: conformal thresholds are fitted on "
        "validation rows, which are not in this storage"
    )


def test_a_table_shows_them_and_csv_has_them_only_if_asked_for(results, command_on):
    calsweep = command_on(results)
    code, out, err = calsweep("table", "s", "--metrics", "ece,augrc,lac_90_size")
    assert (code, err) == (0, "")
    assert "AUGRC % ↓" in out
    assert "LAC 90 size ↓" in out
    for metrics, there in (("ece", False), ("ece,augrc", True)):
        _, out, _ = calsweep("table", "s", "--metrics", metrics, "--format", "csv")
        (first, *_) = csv.DictReader(io.StringIO(out))
        assert ("augrc_mean" in first) == there
        assert "aurc_mean" not in first
    assert 0 < float(first["augrc_mean"]) < 1


@pytest.mark.parametrize("metric", ["augrc", "nll_calibration", "raps_90_size", "lac_95_coverage"])
def test_compare_resamples_them(results, command_on, metric):
    calsweep = command_on(results)
    code, out, err = calsweep("compare", "s", "--metric", metric, "--draws", 50, "--format", "csv")
    assert (code, err) == (0, "")
    base, other = csv.DictReader(io.StringIO(out))
    assert base["verdict"] == "baseline"
    assert float(other["low"]) <= float(other["difference"]) <= float(other["high"])
    assert {"better", "worse"}.isdisjoint(other["verdict"].split()) or "coverage" not in metric


def test_ranks_and_ties_take_them(results, command_on):
    calsweep = command_on(results)
    code, out, err = calsweep("table", "s", "--metrics", "aps_95_size", "--show", "ties")
    assert (code, err) == (0, "")
    assert " a" in out
    code, out, err = calsweep("compare", "s", "--ranks", "--metric", "augrc")
    assert (code, err) == (0, "")
    assert "AUGRC" in out
