from contextlib import nullcontext
from typing import Any

import pytest
import torch
from test_engine import METHODS, same, trainer, weights
from torch import nn
from torch.nn.utils import parametrizations

from trainables.stages.casts import CastWeights

CASES: list[tuple[dict[str, Any], str]] = [
    (METHODS["ce"], "convnet"),
    (METHODS["plp"], "convnet"),
    (METHODS["balcal"], "convnet"),
    ({"mit": {"variant": "a"}}, "convnet"),
    (METHODS["ce"], "resnet110-sd"),
    (METHODS["ce"], "densenet40"),
]


@pytest.mark.full
@pytest.mark.parametrize(("method", "model"), CASES)
def test_trainings_are_those_of_autocast_to_the_last_bit(method, model):
    found = []
    for together in (True, False):
        made = trainer(method, rows=8, batch_size=4, model=model, precision="bfloat16")
        if not together:
            made._casts = nullcontext
        figures = [made.train_epoch()["train_loss"] for _ in range(2)]
        found.append((figures, weights(made)))
    assert found[0][0] == found[1][0]
    assert same(found[0][1], found[1][1])


def test_parameters_are_restored_after_a_cast_even_after_an_error():
    layers = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    before = list(layers.parameters())
    casts = CastWeights(layers)
    with casts.cast():
        assert layers[0].weight.dtype == layers[3].bias.dtype == torch.bfloat16
        assert layers[1].weight.dtype == torch.float32
    with pytest.raises(ZeroDivisionError), casts.cast():
        raise ZeroDivisionError
    assert all(one is other for one, other in zip(layers.parameters(), before, strict=True))


def test_shared_weights_get_the_gradients_of_all_their_uses():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    layers = nn.Sequential(first, second)
    inputs = torch.arange(6.0).view(2, 3)
    slopes = []
    for context in (CastWeights(layers).cast, nullcontext):
        layers.zero_grad()
        with torch.autocast("cpu", torch.bfloat16), context():
            layers(inputs).float().square().sum().backward()
        slopes.append(first.weight.grad)
    torch.testing.assert_close(*slopes)
    assert slopes[0].dtype == torch.float32


def test_frozen_and_reparametrised_weights_are_left_as_they_are():
    layers = nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 3)), nn.Linear(3, 3))
    layers[1].weight.requires_grad_(False)
    with torch.autocast("cpu", torch.bfloat16), CastWeights(layers).cast():
        assert layers[0].weight.dtype == torch.float32
        assert not layers[1].weight.requires_grad
        layers(torch.ones(2, 3)).float().sum().backward()
    assert layers[1].weight.grad is None
    assert all(p.grad is not None for p in layers[0].parameters())
