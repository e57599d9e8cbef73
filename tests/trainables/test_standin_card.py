from collections.abc import Iterator

import pytest
import torch
from standin_card import standin_card

CARD = torch.device("cuda:0")


@pytest.fixture
def values() -> Iterator[torch.Tensor]:
    with standin_card(free=2**36, total=2**36):
        yield torch.tensor([3.0, 1.0, 2.0]).to(CARD)


def test_a_device_that_is_asked_about_itself_needs_an_index(values):
    with pytest.raises(ValueError, match="a specified index"):
        torch.cuda.get_per_process_memory_fraction(torch.device("cuda"))


def test_tensors_of_card_and_host_are_not_mixed(values):
    with pytest.raises(RuntimeError, match="expected all tensors on one device"):
        values + torch.zeros(3)
    with pytest.raises(RuntimeError, match="expected all tensors on one device"):
        values[torch.tensor([0])]
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        values.numpy()


def test_a_generator_of_the_host_draws_nothing_on_the_card(values):
    with pytest.raises(RuntimeError, match="a generator of the tensors' own device"):
        torch.rand(3, device=CARD, generator=torch.Generator())


def test_gradients_and_changes_in_place_are_those_of_a_cpu(values):
    weights = torch.ones(3, device=CARD, requires_grad=True)
    (values * weights).square().sum().backward()
    assert (weights.device, weights.grad.device) == (CARD, CARD)
    assert weights.grad.tolist() == [18.0, 2.0, 8.0]
    values.add_(1)
    assert values.sort().values.cpu().tolist() == [2.0, 3.0, 4.0]
    assert values.cpu().device == torch.device("cpu")
