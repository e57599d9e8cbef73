"""Masked and huge logits, through every calibrator with every fitting objective."""

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from trainables.calibrators import (
    CALIBRATORS,
    OBJECTIVES,
    FitWarning,
    build_calibrator,
    load_calibrator,
    save_calibrator,
)
from trainables.common.errors import InputError
from trainables.contracts import draw_rows

MASKS = (-1e4, -65504.0, -1e9, -3.4e38, -math.inf)
SCALINGS = [("cls", {"normalization": how}) for how in ("nd", "cm", "mm")]
OTHERS = [(name, {}) for name in OBJECTIVES.names() if name != "cls"]
OWN = {"meta-acc": {"accuracy": 0.1}, "smart": {"steps": 5}}
RECIPES = [
    (name, *chosen)
    for name in CALIBRATORS.names()
    for chosen in ([*OTHERS, *SCALINGS] if CALIBRATORS.get(name).takes_objective else [(None, {})])
]
# Objectives that ask for another confidence than the labels do, and uniform rows.
WORSE_BY_DESIGN = {"fl", "meta-acc", "meta-mis"}


def masked_rows(mask: float = -math.inf) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return logits, labels and masks: some classes, all but the label's, and one everywhere."""
    logits, labels = draw_rows(rows=40, classes=5)
    labels = labels.where(labels < 4, 0)
    masked = torch.rand(40, 5, generator=torch.Generator().manual_seed(1)) < 0.3
    masked[::10], masked[:, 4] = True, True
    masked.scatter_(1, labels.unsqueeze(1), False)
    return logits.masked_fill(masked, mask), labels, masked


def build(name: str, objective: str | None = None, parameters: dict[str, Any] | None = None):
    calibrator = build_calibrator(name, objective, **OWN.get(name, {}))
    if objective:
        calibrator.set_objective(objective, **(parameters or {}))
    return calibrator


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::trainables.calibrators.FitWarning")
@pytest.mark.parametrize("factor", [1.0, 1e6])
@pytest.mark.parametrize(("name", "objective", "parameters"), RECIPES)
def test_no_fit_is_worse_than_none(name, objective, parameters, factor):
    logits, labels, masked = masked_rows()
    logits *= factor
    out = build(name, objective, parameters).fit(logits, labels)(logits)
    torch.testing.assert_close(out.exp().sum(1), torch.ones(len(out), dtype=out.dtype))
    assert out.isfinite().all()
    assert (out.exp()[masked] == 0).all()
    assert out.exp()[::10].amax(1).tolist() == pytest.approx([1.0] * 4)
    if not {name, objective} & WORSE_BY_DESIGN:
        assert F.nll_loss(out, labels) <= F.cross_entropy(logits, labels) + 1e-6


@pytest.mark.parametrize("mask", MASKS)
def test_every_mask_is_the_same_mask(mask):
    logits, labels, _ = masked_rows()
    expected = build("ts", "ls").fit(logits.float(), labels)(logits.float())
    found, _, _ = masked_rows(mask)
    assert torch.equal(build("ts", "ls").fit(found.float(), labels)(found.float()), expected)
    if mask >= -65504:
        half = found.half()
        same = build("ts", "ls").fit(half, labels)(half)
        torch.testing.assert_close(same, expected, rtol=0, atol=1e-2)


def test_smoothing_spreads_over_allowed_classes_only():
    logits, labels = draw_rows(rows=60, classes=4)
    wider = torch.cat([logits, torch.full((60, 3), -math.inf)], 1)
    for name in ("ts", "ets", "cts"):
        narrow = build(name, "ls").fit(logits, labels)
        torch.testing.assert_close(
            build(name, "ls").fit(wider, labels)(wider)[:, :4], narrow(logits), rtol=0, atol=1e-7
        )


@pytest.mark.parametrize("factor", [1e6, 1e-1, 1e30])
def test_the_temperature_grows_with_the_logits(factor, tmp_path):
    logits, labels = draw_rows()
    once, scaled = build("ts").fit(logits, labels), build("ts").fit(factor * logits, labels)
    assert float(scaled.temperature) == pytest.approx(factor * float(once.temperature), rel=1e-6)
    assert scaled.summary()["temperature"] == pytest.approx(float(scaled.temperature))
    assert scaled.report.iterations < 20
    loaded = load_calibrator(save_calibrator(scaled, tmp_path / "kept"))
    assert torch.equal(loaded(factor * logits), scaled(factor * logits))
    torch.testing.assert_close(loaded(factor * logits), once(logits))


def test_rows_with_a_masked_label_are_left_out_and_named():
    logits, labels, _ = masked_rows()
    expected = build("ts").fit(logits, labels).summary()
    wrong = torch.tensor([[-math.inf, 0.0, 1.0, 2.0, 3.0]], dtype=logits.dtype)
    more, others = torch.cat([wrong, logits]), torch.cat([labels.new_zeros(1), labels])
    told = "ts: the label's class is masked in 1 of 41 rows, the first is row 0: the fit ignores"
    with pytest.warns(FitWarning, match=told):
        assert build("ts").fit(more, others).summary() == expected
    with pytest.raises(InputError, match=r"masked in 1 of 1 rows; check labels and masks"):
        build("ts").fit(wrong, others[:1])
