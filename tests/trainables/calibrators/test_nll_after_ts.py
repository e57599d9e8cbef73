"""The NLL that a temperature leaves."""

from __future__ import annotations

import pytest
import torch

from trainables.calibrators import nll_after_ts_terms
from trainables.metrics import calibration_report


def test_the_temperature_of_a_network_does_not_count() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(400, 4, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    terms = nll_after_ts_terms(logits, labels)
    assert terms.shape == (400,)
    assert torch.equal(terms, nll_after_ts_terms(logits.double(), labels))
    for scale in (0.2, 5.0):
        torch.testing.assert_close(
            nll_after_ts_terms(scale * logits, labels), terms, rtol=1e-5, atol=0
        )
    # Drawn from these logits, the labels want the temperature 1; the others cost more.
    nll = {s: calibration_report(logits=s * logits, labels=labels)["nll"] for s in (0.2, 1.0, 5.0)}
    assert float(terms.mean()) == pytest.approx(nll[1.0], abs=0.01)
    assert min(nll[0.2], nll[5.0]) > nll[1.0] + 0.05


@pytest.mark.filterwarnings("error::trainables.calibrators.FitWarning")
def test_no_row_is_scored_by_a_temperature_that_has_seen_it() -> None:
    logits = torch.tensor([[3.0, 0.0]]).repeat(10, 1)
    labels = torch.zeros(10, dtype=torch.long)
    labels[0] = 1
    # The nine others are right: without the wrong row its fold's temperature ends at the sharpest.
    assert float(nll_after_ts_terms(logits, labels)[0]) > 10
