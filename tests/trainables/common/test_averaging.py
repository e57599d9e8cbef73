import pytest
import torch

from trainables.common.logit_rows import full_precision, log_mean_probabilities


def test_log_mean_probabilities_returns_the_log_of_the_mean():
    logits = torch.randn(4, 5, 3, dtype=torch.float64)
    expected = logits.softmax(dim=2).mean(dim=0).log()
    torch.testing.assert_close(log_mean_probabilities(logits), expected)


def test_extreme_logits_stay_finite():
    logits = [torch.tensor([[1e4, -1e4]]), torch.tensor([[-1e4, 1e4]])]
    torch.testing.assert_close(log_mean_probabilities(logits).exp(), torch.tensor([[0.5, 0.5]]))


def test_nothing_to_average_is_refused():
    with pytest.raises(ValueError, match="logits: expected at least one set"):
        log_mean_probabilities([])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_averaged_as_float32(dtype):
    logits = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = log_mean_probabilities(logits)
    assert found.dtype == torch.float32
    assert torch.equal(found, log_mean_probabilities(logits.float()))
    for kept in (torch.float32, torch.float64):
        assert full_precision(logits.to(kept)).dtype == kept
