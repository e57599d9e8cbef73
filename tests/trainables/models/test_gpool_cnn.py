import pytest
import torch
from torch import nn

from trainables.data import TextShape
from trainables.models import Network, build_model, model_names
from trainables.models.gpool_cnn import LargestOfText


def network(length: int = 60) -> Network:
    torch.manual_seed(0)
    return build_model("gpool-cnn", 4, TextShape(50, length)).eval()


def texts(length: int = 60) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 50, (3, length), generator=generator, dtype=torch.int32)


def test_the_layers_of_gpool_cnn_have_the_published_sizes() -> None:
    found = {name: tuple(p.shape) for name, p in network().named_parameters() if p.ndim > 1}
    assert sorted(found.values()) == sorted(
        [(50, 100), (128, 100, 5), (128, 128, 5), (128, 128, 5), (128, 128), (4, 128)]
    )
    assert model_names(TextShape) == ["gpool-cnn"]


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 4, 27, 500])
def test_texts_of_any_length_pass(length: int) -> None:
    made = network(length)
    assert made(texts(length)).shape == (3, 4)
    assert made.features(texts(length)).shape == (3, made.feature_dim)
    assert torch.equal(made.classifier(made.features(texts(length))), made(texts(length)))


def test_padding_has_a_vector_of_zeros_that_is_not_learnt() -> None:
    made = network()
    made(texts()).sum().backward()
    embedding = next(made.extractor.parameters())
    assert not embedding[0].any()
    assert 0.049 < embedding.max() <= 0.05
    assert -0.05 <= embedding.min() < -0.049
    assert embedding.grad is not None
    assert not embedding.grad[0].any()


def test_the_first_of_the_largest_values_has_the_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(7, 5, 9, generator=generator).round().relu()  # Many are equal.
    weights = torch.randn(7, 5, generator=generator)
    found = []
    for pooling in (LargestOfText(), nn.Sequential(nn.AdaptiveMaxPool1d(1), nn.Flatten())):
        given = values.clone().requires_grad_()
        pooled = pooling(given)
        found.append((pooled, *torch.autograd.grad((weights * pooled).sum(), given)))
    for own, torchs in zip(*found, strict=True):
        assert torch.equal(own, torchs)
