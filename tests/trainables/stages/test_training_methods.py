from typing import Any

import pytest
import torch
from torch import Tensor

from trainables.augmentations import AUGMENTATIONS
from trainables.common.errors import InputError
from trainables.common.registry import Registry
from trainables.data import ImageShape
from trainables.losses import LOSSES
from trainables.methods import build_method
from trainables.models import Network, build_model
from trainables.schemes import SCHEMES

REGISTRIES: dict[str, Registry[Any]] = {
    **dict.fromkeys(AUGMENTATIONS.names(), AUGMENTATIONS),
    **dict.fromkeys(SCHEMES.names(), SCHEMES),
}
NAMES = sorted(REGISTRIES)
Problem = tuple[Tensor, Tensor]


@torch.no_grad()
def outputs(network: Network, problem: Problem) -> Tensor:
    return network(problem[0])


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_gives_the_same_network(name, train_shortly, image_problem):
    first, second = (train_shortly({name: {}}, epochs=2).state_dict() for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("name", NAMES)
def test_inference_depends_on_the_row_alone(name, train_shortly, image_problem):
    network = train_shortly({name: {}}, epochs=2)
    whole = outputs(network, image_problem)
    assert torch.equal(whole, outputs(network, image_problem))
    with torch.no_grad():
        pieces = torch.cat([network(piece) for piece in image_problem[0].split(7)])
    torch.testing.assert_close(whole, pieces, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SCHEMES.names())
def test_network_is_restored_by_its_state_alone(name, train_shortly, image_problem):
    trained = train_shortly({name: {}}, epochs=2)
    other = train_shortly({name: {}}, epochs=1, seed=5)
    other.load_state_dict(trained.state_dict())
    assert torch.equal(outputs(other, image_problem), outputs(trained, image_problem))
    with torch.no_grad():
        features = trained.features(image_problem[0])
        assert features.shape == (len(image_problem[0]), trained.feature_dim)
        torch.testing.assert_close(trained.classify(features), outputs(trained, image_problem))


# Of those that mix rows, one with every loss; the other schemes leave the loss alone.
@pytest.mark.parametrize(
    ("name", "loss"),
    [
        *(("mixup", loss) for loss in LOSSES.names()),
        *((name, loss) for name in ("mit", "balcal") for loss in ("acls", "au", "crl", "kde-xe")),
    ],
)
def test_every_loss_can_be_used(name, loss, train_shortly, image_problem):
    logits = outputs(train_shortly({loss: {}, name: {}}, epochs=1, lr=0.01), image_problem)
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_autocast_stays_close(name, image_problem):
    images, labels = image_problem
    values = []
    for half in (False, True):
        torch.manual_seed(0)
        method = build_method({name: {}})
        network = method.attach(build_model("convnet", 3, ImageShape(1, 8)), 96, 3).train()
        method.start_epoch(network, 0, 4)
        generator = torch.Generator().manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16, half):
            drawn = method.draw(network, images, generator)
            loss, logits = method.training_loss(network, images, labels, torch.arange(96), *drawn)
        loss.backward()
        assert logits.dtype == torch.float32
        assert logits.isfinite().all()
        assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())
        values.append(loss.item())
    assert values[1] == pytest.approx(values[0], rel=0.05)


@torch.no_grad()
@pytest.mark.parametrize("name", SCHEMES.names())
def test_a_scheme_classifies_in_float32_under_autocast(name, image_problem):
    network = SCHEMES.build(name).attach(build_model("convnet", 3, ImageShape(1, 8)), 3).eval()
    with torch.autocast("cpu", torch.bfloat16):
        features, logits = network.features(image_problem[0]), network(image_problem[0])
    assert features.dtype == torch.bfloat16
    assert torch.equal(logits, network.classify(features.float()))


@pytest.mark.parametrize("name", [*AUGMENTATIONS.names(), "balcal"])
def test_history_counts_every_sample_once_an_epoch(name, image_problem, train_shortly):
    method = build_method({"crl": {}, name: {}})
    network = method.attach(train_shortly({"ce": {}}, epochs=6), 96, 3).train()
    method.start_epoch(network, 0, 4)
    images, labels = image_problem
    generator = torch.Generator().manual_seed(0)
    for rows in torch.arange(96).split(24):
        drawn = method.draw(network, images[rows], generator)
        method.training_loss(network, images[rows], labels[rows], rows, *drawn)
    counts = method.loss.get_buffer("history.counts")
    assert counts.max() == 1
    assert method.loss.training


@pytest.mark.parametrize("name", AUGMENTATIONS.names())
def test_augmentation_draws_from_the_given_generator_alone(name, image_problem, train_shortly):
    images, labels = image_problem
    network = train_shortly({"ce": {}}, epochs=1)
    augmentation, method = AUGMENTATIONS.build(name), build_method({"ce": {}})
    values = []
    for seed, disturbance in ((0, 1), (0, 2), (1, 1)):
        torch.manual_seed(disturbance)
        generator = torch.Generator().manual_seed(seed)
        before = torch.get_rng_state()
        drawn = augmentation.draw(network, images, generator)
        loss, _ = augmentation.training_loss(
            network, method.loss, images, labels, torch.arange(96), *drawn
        )
        assert torch.equal(before, torch.get_rng_state())
        values.append(loss.item())
    assert values[0] == values[1]
    assert values[0] != values[2]


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("mixup", "alpha", 0.0),
        ("cutmix", "alpha", 0.0),
        ("mit", "alpha", 0.0),
        ("mit", "margin", 1.0),
        ("plp", "gamma", 0.0),
        ("mcdrop", "rate", 0.0),
        ("mcdrop", "samples", 0),
        ("balcal", "delta", 2.5),
    ],
)
def test_bad_arguments_name_argument_and_value(name, key, value):
    with pytest.raises(ValueError, match=f"^{key}={value!r} is "):
        REGISTRIES[name].build(name, **{key: value})


def test_a_method_has_at_most_one_part_of_a_kind():
    with pytest.raises(InputError) as caught:
        build_method({"word": {}})
    names = sorted([*LOSSES.names(), *NAMES])
    there = f"there are: {', '.join(names)}; `calsweep list methods` shows all"
    assert str(caught.value) == f"unknown method 'word'; {there}"
    for parts, kind in ((("fl", "ce"), "loss"), (("plp", "mcdrop"), "scheme")):
        told = f"^a method has one {kind} at most; {parts[1]!r} is a second one$"
        with pytest.raises(InputError, match=told):
            build_method({name: {} for name in parts})
    method = build_method({"mixup": {"alpha": 0.3}, "fl": {"gamma": 1.5}, "plp": {"gamma": 2}})
    assert isinstance(method.loss, LOSSES.get("fl"))
    found = [getattr(method.augmentation, "alpha", 0), getattr(method.loss, "gamma", 0)]
    assert [*found, getattr(method.scheme, "gamma", 0)] == [0.3, 1.5, 2]
    assert isinstance(build_method({"mixup": {}}).loss, LOSSES.get("ce"))


@pytest.mark.parametrize("augmentation", AUGMENTATIONS.names())
def test_two_ways_to_form_the_loss_are_refused(augmentation):
    with pytest.raises(InputError) as caught:
        build_method({"ce": {}, augmentation: {}, "balcal": {}})
    assert str(caught.value) == (
        f"ce and {augmentation} and balcal cannot be combined: the augmentation and the scheme "
        "both replace the computation of the loss"
    )
    assert build_method({augmentation: {}, "plp": {}}).augmentation is not None
