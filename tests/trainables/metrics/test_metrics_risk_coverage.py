"""The risk-coverage curve against plain counting, and rows that have no order."""

import numpy as np
import pytest
import torch

from trainables.metrics import calibration_report, risk_coverage_curve


def test_it_is_the_error_among_the_most_confident_rows():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(60, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(4, (60,), generator=generator)
    curve = risk_coverage_curve(logits=logits, labels=labels)
    rows = sorted(
        (max(row.tolist()), int(row.argmax() != label))
        for row, label in zip(logits.softmax(1), labels, strict=True)
    )[::-1]
    wrong = [error for _, error in rows]
    expected = [sum(wrong[:kept]) / kept for kept in range(1, 61)]
    assert curve.risk == pytest.approx(expected)
    assert curve.coverage == pytest.approx(np.arange(1, 61) / 60)
    assert curve.area == pytest.approx(sum(expected) / 60)
    report = calibration_report(logits=logits, labels=labels)
    assert curve.risk[-1] == pytest.approx(1 - report["acc"])


def test_rows_of_equal_confidence_share_their_errors():
    probs = torch.tensor([[0.9, 0.1]] * 4 + [[0.4, 0.6]])
    labels = torch.tensor([1, 0, 0, 0, 1])
    for order in ([0, 1, 2, 3, 4], [3, 2, 1, 0, 4]):
        curve = risk_coverage_curve(probs=probs[order], labels=labels[order])
        assert curve.risk == pytest.approx([0.25] * 4 + [0.2])
