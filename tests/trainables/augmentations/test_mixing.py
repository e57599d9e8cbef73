import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from trainables.augmentations import AUGMENTATIONS
from trainables.augmentations._mixing import Pairs, paired
from trainables.augmentations.mit import MixupInferenceInTraining
from trainables.common.errors import InputError
from trainables.data import TextShape
from trainables.losses import build_loss
from trainables.models import Network, build_model
from trainables.schemes import SCHEMES

pytestmark = pytest.mark.filterwarnings("error")
RTOL = 1e-5


class Goldens:
    """The stored cases of one kind, with their arrays as tensors."""

    def __init__(self, shared: Path, kind: str) -> None:
        folder = shared / "goldens"
        index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        cases = index["files"]["mixup_mit.npz"]
        self.cases: list[dict[str, Any]] = [case for case in cases if case["method"] == kind]
        self._arrays = np.load(folder / "mixup_mit.npz")
        assert self.cases

    def array(self, case: dict[str, Any], name: str) -> Tensor:
        return torch.from_numpy(self._arrays[case["prefix"] + name])

    def network(self, case: dict[str, Any]) -> Network:
        """Return the network that the case was computed with, as ours is built."""
        layers = [
            self._layer(case, name) for name in ("conv1", *[f"layer{i}" for i in range(1, 5)])
        ]
        weight = self.array(case, "fc_w")
        classifier = nn.Linear(*reversed(weight.shape), dtype=torch.float64)
        classifier.load_state_dict({"weight": weight, "bias": self.array(case, "fc_b")})
        pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return Network(nn.Sequential(*layers, pooled), classifier)

    def pairs(self, case: dict[str, Any]) -> Pairs:
        x, y, order = (self.array(case, name) for name in ("x", "targets", "perm"))
        rows = torch.arange(len(x))
        return Pairs(x, x[order], y, y[order], rows, rows[order])

    def _layer(self, case: dict[str, Any], name: str) -> nn.Module:
        weight = self.array(case, name)
        layer = nn.Conv2d(weight.shape[1], weight.shape[0], 1, bias=False, dtype=torch.float64)
        layer.load_state_dict({"weight": weight})
        return nn.Sequential(layer, nn.ReLU())


@pytest.mark.shared
@pytest.mark.parametrize(("kind", "variant"), [("MIT-L", "l"), ("MIT-A", "a")])
def test_mit_equals_the_released_code(shared: Path, kind: str, variant: str) -> None:
    goldens = Goldens(shared, kind)
    for case in goldens.cases:
        method = MixupInferenceInTraining(variant=variant, margin=case["hyper"]["margin"])
        pairs = goldens.pairs(case)
        steps = method._steps(goldens.network(case))
        a, b = method.run(pairs, steps, [(l1, l2) for l1, l2 in case["lambda_pairs"]])
        tolerance = {"rtol": RTOL, "atol": 1e-9}
        torch.testing.assert_close(a, goldens.array(case, "output_a"), **tolerance)
        torch.testing.assert_close(b, goldens.array(case, "output_b"), **tolerance)
        loss = build_loss("ce")
        assert loss(a, pairs.targets).item() == pytest.approx(case["loss_a"], rel=RTOL)
        assert loss(b, pairs.other_targets).item() == pytest.approx(case["loss_b"], rel=RTOL)
        assert pairs.loss(loss, a, b, (0.5, 0.5)).item() == pytest.approx(case["loss"], rel=RTOL)


@pytest.mark.parametrize(("alpha", "margin"), [(0.2, 0.0), (1.0, 0.5), (2.0, 0.9)])
def test_ratios_keep_their_sides_and_their_distance(alpha: float, margin: float) -> None:
    method = MixupInferenceInTraining(alpha=alpha, margin=margin)
    source = np.random.default_rng(0)
    for _ in range(50):
        first, second = method.draw_ratios(source)
        assert first >= 0.5 >= second
        assert first - second >= margin
        assert first > second


@pytest.mark.parametrize("alpha", [3.0, 20.0])
def test_unreachable_margin_is_refused_instead_of_searched_for_ever(alpha: float) -> None:
    text = rf"margin=0\.9 is too large for alpha={alpha}: less than one in 10000 pairs of ratios"
    with pytest.raises(ValueError, match=text):
        AUGMENTATIONS.build("mit", alpha=alpha, margin=0.9)


def test_ratios_that_are_equal_are_drawn_again() -> None:
    draws = np.array([[0.5, 0.5], [0.3, 0.5], [0.1, 0.9]])
    source = type("Source", (), {"beta": staticmethod(lambda a, b, size: draws)})
    method = MixupInferenceInTraining(margin=0.0)
    assert method.draw_ratios(source) == (0.7, 0.5)


def test_boxes_are_pasted_into_images_only() -> None:
    network = Network(nn.Identity(), nn.Linear(9, 2))
    told = "^cutmix needs images to paste boxes; use mixup or mit$"
    with pytest.raises(InputError, match=told):
        AUGMENTATIONS.build("cutmix").draw(network, torch.zeros(4, 9), torch.Generator())


def test_a_history_counts_a_pair_once() -> None:
    loss, seen = build_loss("ce"), list[tuple[bool, Tensor]]()
    loss.register_forward_hook(lambda of, given, _: seen.append((of.training, given[2])))
    rows = torch.arange(4)
    pairs = paired(torch.zeros(4, 2), rows % 2, rows, rows.flip(0))
    pairs.loss(loss, torch.zeros(4, 2), torch.zeros(4, 2), (0.7, 0.3))
    (first, own), (second, other) = seen
    assert (first, second) == (True, False)
    assert torch.equal(own, rows)
    assert torch.equal(other, rows.flip(0))


@pytest.mark.parametrize("variant", ["l", "a"])
def test_mit_classifies_as_the_scheme_does(variant: str) -> None:
    extractor = nn.Sequential(nn.Conv2d(1, 3, 1), nn.Flatten())
    network = SCHEMES.build("mcdrop", rate=0.9).attach(Network(extractor, nn.Linear(12, 2)), 2)
    method = MixupInferenceInTraining(variant=variant)
    images = torch.randn(5, 1, 2, 2)
    for training in (False, True):
        value: Tensor = images
        torch.manual_seed(0)
        expected = network.train(training)(images)
        torch.manual_seed(0)
        for layers in method._steps(network):
            value = layers(value)
        torch.testing.assert_close(value, expected)


def test_a_network_of_one_block_is_still_cut_before_its_classifier() -> None:
    class Library(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1)

    method = MixupInferenceInTraining(variant="a")
    assert len(method._steps(Network(Library(), nn.Linear(4, 2)))) == 2


def test_cross_entropy_of_mixed_targets_is_the_mixture_of_losses() -> None:
    images, targets = torch.randn(6, 1, 2, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    pairs = paired(images, targets, torch.arange(6), torch.tensor([3, 0, 1, 5, 2, 4]))
    logits = torch.randn(6, 3)
    soft = 0.7 * nn.functional.one_hot(targets, 3) + 0.3 * nn.functional.one_hot(
        pairs.other_targets, 3
    )
    expected = nn.functional.cross_entropy(logits, soft)
    torch.testing.assert_close(pairs.loss(build_loss("ce"), logits, logits, (0.7, 0.3)), expected)


def test_words_are_mixed_as_their_embeddings() -> None:
    torch.manual_seed(0)
    network = build_model("gpool-cnn", 3, TextShape(9, 7)).eval()
    texts, targets = torch.arange(42).view(6, 7) % 9, torch.arange(6) % 3
    method, rows = AUGMENTATIONS.build("mixup"), torch.arange(6)
    order, shares = method.draw(network, texts, torch.Generator())
    _, logits = method.training_loss(network, build_loss("ce"), texts, targets, rows, order, shares)
    vectors = network.embed(texts)
    expected = network(shares[0] * vectors + shares[1] * vectors[order])
    torch.testing.assert_close(logits, expected)


BATCH, ALPHA = 6, 0.4
IMAGES = torch.randn(BATCH, 1, 5, 9, generator=torch.Generator().manual_seed(0))
TARGETS = torch.tensor([0, 1, 2, 2, 1, 0])


def linear_network() -> Network:
    torch.manual_seed(1)
    return Network(nn.Flatten(), nn.Linear(45, 3))


def drawn_by_hand(seed: int) -> tuple[Tensor, np.random.Generator]:
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(BATCH, generator=generator)
    return order, np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))


def loss_of(name: str, seed: int, network: Network, **parameters: Any) -> tuple[Tensor, Tensor]:
    method = AUGMENTATIONS.build(name, alpha=ALPHA, **parameters)
    drawn = method.draw(network, IMAGES, torch.Generator().manual_seed(seed))
    rows = torch.arange(BATCH)
    return method.training_loss(network, build_loss("ce"), IMAGES, TARGETS, rows, *drawn)


@pytest.mark.parametrize("seed", range(3))
def test_mixup_and_cutmix_follow_the_equations_of_their_papers(seed: int) -> None:
    network, cross_entropy = linear_network(), nn.functional.cross_entropy
    order, source = drawn_by_hand(seed)
    share = source.beta(ALPHA, ALPHA)
    share = max(share, 1 - share)
    own = network(share * IMAGES + (1 - share) * IMAGES[order])
    mixed = share * cross_entropy(own, TARGETS) + (1 - share) * cross_entropy(own, TARGETS[order])
    loss, logits = loss_of("mixup", seed, network)
    torch.testing.assert_close(logits, own)
    torch.testing.assert_close(loss, mixed)

    order, source = drawn_by_hand(seed)
    side = (1 - source.beta(ALPHA, ALPHA)) ** 0.5
    inside = []
    for length in (5, 9):
        centre, half = int(source.integers(length)), int(length * side) // 2
        inside.append([centre - half <= place < centre + half for place in range(length)])
    box = torch.tensor(inside[0])[:, None] & torch.tensor(inside[1])
    pasted = network(torch.where(box, IMAGES[order], IMAGES))
    share = 1 - float(box.float().mean())
    mixed = share * cross_entropy(pasted, TARGETS)
    mixed = mixed + (1 - share) * cross_entropy(pasted, TARGETS[order])
    loss, logits = loss_of("cutmix", seed, network)
    torch.testing.assert_close(logits, pasted)
    torch.testing.assert_close(loss, mixed)


@pytest.mark.parametrize("variant", ["l", "a"])
def test_mit_solves_two_mixtures_for_both_sides(variant: str) -> None:
    seen: list[Tensor] = []

    class Watching(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            seen.append(images)
            return images.flatten(1)

    network = linear_network()
    network.extractor = Watching()
    loss, logits = loss_of("mit", 3, network, margin=0.3, variant=variant)
    order, source = drawn_by_hand(3)
    draws = source.beta(ALPHA, ALPHA, size=(1024, 2))
    pairs = [(max(a, 1 - a), min(b, 1 - b)) for a, b in draws]
    ratios = next(pair for pair in pairs if pair[0] - pair[1] >= 0.3)
    for images, ratio in zip(seen, ratios, strict=True):
        expected = ratio * IMAGES + (1 - ratio) * IMAGES[order]
        torch.testing.assert_close(images.float(), expected)
    # Of a linear network the two sides are those of the unmixed images.
    with torch.no_grad():
        own = network(IMAGES)
    torch.testing.assert_close(logits.float(), own, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        loss.float(), nn.functional.cross_entropy(own, TARGETS), rtol=1e-4, atol=1e-4
    )


def test_every_step_of_mit_draws_new_ratios() -> None:
    layers = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Conv2d(2, 3, 1), nn.Flatten())
    network = Network(layers, nn.Linear(135, 3))
    method = AUGMENTATIONS.build("mit", variant="a")
    _, ratios = method.draw(network, IMAGES, torch.Generator().manual_seed(0))
    assert (ratios.shape, ratios.dtype) == ((3, 2), torch.float64)
    assert len(ratios.unique()) == 6
