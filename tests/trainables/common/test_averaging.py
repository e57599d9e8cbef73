"""The log of averaged probabilities."""

import pytest
import torch

from trainables.common.averaging import log_mean_probabilities


def test_it_is_the_log_of_the_mean() -> None:
    logits = torch.randn(4, 5, 3, dtype=torch.float64)
    expected = logits.softmax(dim=2).mean(dim=0).log()
    torch.testing.assert_close(log_mean_probabilities(logits), expected)


def test_extreme_logits_stay_finite() -> None:
    logits = [torch.tensor([[1e4, -1e4]]), torch.tensor([[-1e4, 1e4]])]
    torch.testing.assert_close(log_mean_probabilities(logits).exp(), torch.tensor([[0.5, 0.5]]))


def test_nothing_to_average_is_refused() -> None:
    with pytest.raises(ValueError, match="logits is empty"):
        log_mean_probabilities([])
