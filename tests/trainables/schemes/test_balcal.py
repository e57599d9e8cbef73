import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from trainables.data import ImageShape
from trainables.losses import build_loss
from trainables.models import build_model
from trainables.schemes import SCHEMES
from trainables.schemes.balcal import (
    BalancedNetwork,
    balancing_weight,
    class_lengths,
    frame_of,
    simplex_frame,
)


class Goldens:
    """The stored cases with their arrays as tensors."""

    def __init__(self, shared: Path) -> None:
        folder = shared / "goldens"
        index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        self._cases = index["files"]["balcal_head.npz"]
        self._arrays = np.load(folder / "balcal_head.npz")

    def cases(self, kind: str) -> list[dict[str, Any]]:
        found = [case for case in self._cases if case["id"].startswith(kind)]
        assert found
        return found

    def array(self, case: dict[str, Any], name: str) -> Tensor:
        return torch.from_numpy(self._arrays[case.get("prefix", case["id"] + "/") + name])


@pytest.fixture
def goldens(shared: Path) -> Goldens:
    return Goldens(shared)


@pytest.mark.shared
def test_frame_equals_the_released_one(goldens):
    for case in goldens.cases("etf"):
        frame = frame_of(goldens.array(case, "P"))
        torch.testing.assert_close(frame, goldens.array(case, "M"), rtol=1e-5, atol=1e-6)


@pytest.mark.shared
def test_mixture_equals_the_released_one(goldens):
    for case in goldens.cases("etf"):
        classifier = nn.Linear(case["d"], case["K"])
        state = {"weight": goldens.array(case, "W"), "bias": goldens.array(case, "b")}
        classifier.load_state_dict(state)
        network = BalancedNetwork(nn.Flatten(), classifier)
        network.frame.copy_(goldens.array(case, "M"))
        network.weight.fill_(case["lamd"])
        # The adaptor differs from the released one; its outcome is given.
        network.adaptor = Fixed(torch.zeros(()))
        network.adaptor_end = Fixed(3 * goldens.array(case, "feat_etf_unit"))
        features = goldens.array(case, "feat_linear")
        linear, frame = network.both(features)
        torch.testing.assert_close(linear, goldens.array(case, "y_linear"), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(frame, goldens.array(case, "y_etf"), rtol=1e-5, atol=1e-5)
        mixed = network.classify(features)
        torch.testing.assert_close(mixed, goldens.array(case, "y_mix"), rtol=1e-5, atol=1e-5)


class Fixed(nn.Sequential):
    """Gives one value whatever it sees."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, features: Tensor) -> Tensor:
        return self.value


@pytest.mark.shared
def test_class_lengths_equal_the_released_ones(goldens):
    for case in goldens.cases("ew"):
        lengths = class_lengths(goldens.array(case, "labels"), case["K"])
        torch.testing.assert_close(lengths, goldens.array(case, "Ew").flatten())


@pytest.mark.shared
def test_weight_equals_the_released_search(goldens):
    for case in goldens.cases("lamd"):
        arrays = (goldens.array(case, n) for n in ("linear_logits", "etf_logits", "labels"))
        weight = balancing_weight(*arrays, case["delta"], case["tol"])
        assert weight == pytest.approx(case["lamd"], rel=1e-5), case["id"]


def test_simplex_columns_have_unit_length_and_equal_angles():
    torch.manual_seed(0)
    frame = simplex_frame(20, 6)
    expected = torch.full((6, 6), -1 / 5) + (1 + 1 / 5) * torch.eye(6)
    torch.testing.assert_close(frame.T @ frame, expected, rtol=1e-5, atol=1e-5)
    torch.manual_seed(0)
    basis, _ = torch.linalg.qr(torch.rand(20, 6))  # Of uniform numbers.
    torch.testing.assert_close(frame, frame_of(basis))
    assert simplex_frame(2, 2).shape == (2, 2)
    for classes, features in ((6, 5), (1, 5)):
        with pytest.raises(
            ValueError, match=rf"^num_classes={classes} is outside \[2, {features}\]$"
        ):
            simplex_frame(features, classes)


@pytest.mark.parametrize("num_classes", [2, 64, 100])
def test_any_number_of_classes_has_a_frame(num_classes):
    torch.manual_seed(0)
    network = SCHEMES.build("balcal").attach(
        build_model("convnet", num_classes, ImageShape(1, 8)), num_classes
    )
    logits = network(torch.randn(4, 1, 8, 8))
    assert logits.shape == (4, num_classes)
    logits.sum().backward()
    assert network.classifier.weight.grad is not None


def test_loss_is_the_weighted_loss_of_both_classifiers():
    torch.manual_seed(0)
    scheme, loss = SCHEMES.build("balcal"), build_loss("ce")
    network = scheme.attach(build_model("convnet", 3, ImageShape(1, 8)), 3).eval()
    images, targets = torch.randn(6, 1, 8, 8), torch.tensor([0, 0, 0, 0, 1, 1])
    scheme.prepare(6)
    scheme.start_epoch(network, 0, 1)
    value, logits = scheme.training_loss(network, loss, images, targets, torch.arange(6))
    lengths = torch.tensor([(3 / 4) ** 0.5, (3 / 2) ** 0.5, 1.0])
    linear, frame = network.both(network.features(images), lengths)
    expected = 0.8 * loss(linear, targets) + 0.2 * loss(frame, targets)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(logits, 0.8 * linear + 0.2 * frame)
    assert frame.abs().max() <= 1.3


def test_frame_does_not_learn(train_shortly):
    start = train_shortly({"balcal": {}}, epochs=0).get_buffer("frame").clone()
    trained = train_shortly({"balcal": {}}, epochs=3)
    assert torch.equal(trained.get_buffer("frame"), start)
    assert "frame" not in dict(trained.named_parameters())


def searched(linear: Tensor, frame: Tensor, targets: Tensor, delta: float) -> float:
    """Bisect as the paper's code does; only what comes nearer than the linear one alone counts."""

    def gap(weight: float) -> float:
        probs = (weight * linear + (1 - weight) * frame).softmax(1)
        confidence, predicted = probs.max(1)
        accuracy = (predicted == targets).to(confidence.dtype).mean()
        return float(confidence.mean() - delta * accuracy)

    if gap(1) < 0:
        return 1.0
    found, low, high = 1.0, 0.0, 1.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        if abs(gap(middle)) < abs(gap(1)):
            found = middle
        low, high = (middle, high) if gap(middle) < 0 else (low, middle)
    return found


@pytest.mark.parametrize("sharpness", [0.3, 3.0, 20.0])
@pytest.mark.parametrize("delta", [0.2, 0.9, 1.7])
def test_search_is_a_bisection(sharpness, delta):
    generator = torch.Generator().manual_seed(1)
    targets = torch.randint(4, (200,), generator=generator)
    linear = torch.randn(200, 4, generator=generator, dtype=torch.float64)
    linear[torch.arange(200), targets] += 1
    frame = nn.functional.normalize(torch.randn(200, 4, generator=generator).double(), dim=1)
    expected = searched(sharpness * linear, frame, targets, delta)
    assert balancing_weight(sharpness * linear, frame, targets, delta) == pytest.approx(expected)


def test_the_second_classifier_is_an_adaptor_and_the_frame():
    torch.manual_seed(0)
    for classes in (3, 70):  # Fewer and more than the features, 64.
        network = SCHEMES.build("balcal").attach(
            build_model("convnet", classes, ImageShape(1, 8)), classes
        )
        network.eval()
        features, width = torch.randn(5, 64), max(64, classes)
        with torch.no_grad():
            linear, frame = network.both(features)
            padded = torch.cat([features, torch.zeros(5, width - 64)], dim=1)
            hidden = network.adaptor[2](network.adaptor[0](padded).relu())
            added = network.adaptor[5](network.adaptor[3](hidden).relu())
            adapted = network.adaptor_end[0](padded + added).relu()
        assert hidden.shape == (5, width // 2)
        cosines = adapted / adapted.norm(dim=1, keepdim=True) @ network.frame
        torch.testing.assert_close(frame, cosines)
        lengths = torch.linspace(0.5, 2, classes)
        torch.testing.assert_close(network.both(features, lengths)[1], cosines * lengths)
        torch.testing.assert_close(linear, network.classifier(features))
        mixed = 0.8 * linear + 0.2 * frame
        torch.testing.assert_close(network.classify(features), mixed)


def test_epoch_sets_the_weight_that_inference_uses():
    torch.manual_seed(0)
    scheme, loss = SCHEMES.build("balcal", delta=0.9), build_loss("ce")
    network = scheme.attach(build_model("convnet", 3, ImageShape(1, 8)), 3).eval()
    with torch.no_grad():
        network.classifier.weight.mul_(1000)
        images = torch.randn(90, 1, 8, 8)
        targets = network.classifier(network.features(images)).argmax(1)  # So that delta decides.
    scheme.prepare(91)  # An epoch may leave one out.
    scheme.start_epoch(network, 0, 2)
    outputs = []
    for rows in torch.arange(90).split(30):
        scheme.training_loss(network, loss, images[rows], targets[rows], rows)
        lengths = class_lengths(targets[rows], 3)
        outputs.append(network.both(network.features(images[rows]), lengths))
    figures = scheme.end_epoch(network, 0)
    linear, frame = (torch.cat(parts).detach() for parts in zip(*outputs, strict=True))
    assert figures == {"balcal_weight": balancing_weight(linear, frame, targets, 0.9)}
    assert figures["balcal_weight"] != balancing_weight(linear, frame, targets, 1.0)
    assert figures["balcal_weight"] != pytest.approx(0.8)
    assert network.weight.item() == pytest.approx(figures["balcal_weight"])
