import math

import pytest
import torch
from standin_card import CARD, standin_card
from torch import Tensor

from trainables.metrics import METRICS, evaluation_report, row_terms

NAMES = [
    "acc",
    *(m.name for m in METRICS.values() if m.is_objective and m.source in ("report", "test")),
]


def predictions(seed: int, rows: int = 800, classes: int = 5) -> tuple[Tensor, Tensor]:
    """Logits of an over-confident network, and labels drawn from tamer ones."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.mul(0.6).softmax(1), 1, generator=generator).squeeze(1)
    return logits, labels


@pytest.mark.parametrize("metric", NAMES)
def test_the_mean_of_the_terms_is_the_metric(metric: str) -> None:
    logits, labels = predictions(0)
    terms = row_terms(metric, logits, labels)
    assert terms.shape == labels.shape
    assert float(terms.mean()) == pytest.approx(evaluation_report(logits, labels)[metric], abs=1e-9)


@pytest.mark.parametrize("metric", ["cwece", "cwaece"])
def test_terms_of_classes_in_blocks_are_those_of_all(metric, monkeypatch):
    whole = row_terms(metric, *predictions(0))
    monkeypatch.setattr("trainables.metrics._scores.BLOCK_ELEMENTS", 2 * 800)
    torch.testing.assert_close(row_terms(metric, *predictions(0)), whole)


def test_rows_without_a_gap_have_no_error() -> None:
    sure = torch.eye(3).repeat(4, 1) * 1e6
    for metric in NAMES:
        expected = 1.0 if metric == "acc" else 0.0
        assert float(row_terms(metric, sure, sure.argmax(1)).mean()) == pytest.approx(expected)


@pytest.mark.full
@pytest.mark.parametrize("metric", ["acc", "nll", "brier", "ece", "debiased_ece", "smooth_ece"])
def test_the_spread_of_the_terms_is_the_standard_error(metric: str) -> None:
    values, errors = [], []
    for seed in range(60):
        terms = row_terms(metric, *predictions(seed))
        values.append(float(terms.mean()))
        errors.append(float(terms.std()) / math.sqrt(len(terms)))
    spread = float(torch.tensor(values).std())
    assert sum(errors) / len(errors) == pytest.approx(spread, rel=0.3)


@pytest.mark.parametrize("metric", NAMES)
def test_rows_on_a_gpu_have_the_same_terms(metric: str) -> None:
    logits, labels = predictions(0)
    with standin_card():
        found = row_terms(metric, logits.to(CARD), labels.to(CARD))
        brought = found.cpu()
    assert torch.allclose(brought, row_terms(metric, logits, labels), atol=1e-12)


def test_metrics_without_terms_per_row_are_refused() -> None:
    for metric in ("auroc", "nll_after_ts", "ece_floor"):
        with pytest.raises(
            ValueError, match=f"^metric='{metric}' is not one of {', '.join(NAMES)}, aurc, "
        ):
            row_terms(metric, *predictions(0))
