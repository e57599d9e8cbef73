"""Metrics of many networks at once against each one's own."""

from __future__ import annotations

import pytest
import torch

from trainables.metrics import calibration_report, calibration_reports


@pytest.mark.parametrize(("members", "rows", "classes"), [(5, 301, 7), (1, 20, 2), (40, 900, 200)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_is_its_own_report(members: int, rows: int, classes: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(rows)
    logits = 3 * torch.randn(members, rows, classes, generator=generator, dtype=dtype)
    logits[:, :10] = logits[:, :1].round()  # ties
    labels = torch.randint(0, classes, (rows,), generator=generator)
    before = logits.clone()
    together = calibration_reports(logits, labels)
    assert torch.equal(logits, before)
    alone = [calibration_report(logits=part, labels=labels) for part in logits]
    assert [list(report) for report in together] == [list(report) for report in alone]
    for one, other in zip(together, alone, strict=True):
        assert one == pytest.approx(other, abs=1e-12)


def test_shapes_are_checked() -> None:
    for logits, labels in (((3, 4), (4,)), ((2, 3, 4), (2,)), ((2, 3, 4), (3, 1))):
        with pytest.raises(ValueError, match="are not") as error:
            calibration_reports(torch.zeros(logits), torch.zeros(labels, dtype=torch.long))
        assert str(error.value) == f"logits {logits} and labels {labels} are not (M, N, K), (N,)"
