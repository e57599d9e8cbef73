import math

import pytest
import torch

from trainables.data import ImageShape
from trainables.models import build_model
from trainables.schemes import SCHEMES
from trainables.schemes.mcdrop import DropoutNetwork


def dropout_network(rate: float = 0.5, samples: int = 50) -> DropoutNetwork:
    torch.manual_seed(0)
    scheme = SCHEMES.build("mcdrop", rate=rate, samples=samples)
    network = scheme.attach(build_model("convnet", 3, ImageShape(1, 8)), 3)
    return network


def test_mcdrop_drops_half_and_averages_fifty_draws_by_default():
    scheme = SCHEMES.build("mcdrop")
    assert (scheme.rate, scheme.samples) == (0.5, 50)


def test_inference_averages_probabilities_over_fixed_masks():
    network = dropout_network(samples=7).eval()
    features = torch.randn(5, 64)
    with torch.no_grad():
        draws = [network.classifier(features * mask).softmax(dim=1) for mask in network.masks]
        expected = torch.stack(draws).mean(dim=0)
        torch.testing.assert_close(network.classify(features).exp(), expected)
        plain = network.classifier(features).softmax(dim=1)
    assert not torch.allclose(expected, plain, atol=1e-3)


def test_masks_drop_the_rate_and_keep_the_mean():
    masks = dropout_network(rate=0.2, samples=500).masks
    assert abs((masks == 0).float().mean() - 0.2) < 0.02
    torch.testing.assert_close(masks[masks > 0].unique(), torch.tensor([1.25]))
    # Made once: with other masks, trainings of the same name would say something else.
    assert (masks[0, :16] == 0).nonzero().flatten().tolist() == [2, 3, 12, 13]


def test_training_drops_at_random_and_features_stay_whole():
    network = dropout_network().train()
    features = torch.randn(5, 64)
    assert not torch.equal(network.classify(features), network.classify(features))
    network.eval()
    images = torch.randn(5, 1, 8, 8)
    assert torch.equal(network.features(images), network.extractor(images))


@pytest.mark.parametrize("rate", [0.1, 0.8])
def test_training_drops_at_the_rate_and_keeps_the_mean(rate):
    network = dropout_network(rate).train()
    network.classifier = torch.nn.Linear(64, 64)
    torch.nn.init.eye_(network.classifier.weight)
    torch.nn.init.zeros_(network.classifier.bias)
    found = network.classify(torch.ones(200, 64))
    assert abs((found == 0).float().mean() - rate) < 0.02
    torch.testing.assert_close(found[found > 0].unique(), torch.tensor([1 / (1 - rate)]))


def test_extreme_logits_keep_their_mean_probability():
    network = dropout_network().eval()
    features = torch.full((1, 64), 1e4)
    with torch.no_grad():
        found = network.classify(features).double()
        draws = torch.stack([network.classifier(features * mask) for mask in network.masks])
        expected = draws.double().log_softmax(2).logsumexp(0) - math.log(len(draws))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-2)
