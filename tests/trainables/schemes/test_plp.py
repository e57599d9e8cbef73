import pytest
import torch

from trainables.data import FeatureShape, ImageShape
from trainables.models import build_model
from trainables.schemes.plp import ProgressivelyLayerPeeled, parameter_groups

MODELS = ["convnet", "resnet8", "densenet40", "preresnet56", "wrn-16-4"]


def schedule(scheme: ProgressivelyLayerPeeled, count: int, epochs: int) -> list[int]:
    return [scheme.frozen_groups(count, epoch, epochs) for epoch in range(epochs)]


def test_released_schedule_of_resnet18():
    # The released list of the epochs at which one of eleven groups more is frozen.
    starts = [0, 31, 63, 95, 127, 159, 190, 222, 254, 286, 318]
    found = schedule(ProgressivelyLayerPeeled(), 11, 350)
    assert [found.index(frozen) for frozen in range(11)] == starts


def test_larger_gamma_freezes_earlier_and_never_everything():
    slow, plain, fast = (
        schedule(ProgressivelyLayerPeeled(gamma=gamma), 5, 50) for gamma in (0.5, 1.0, 2.0)
    )
    assert all(a <= b <= c for a, b, c in zip(slow, plain, fast, strict=True))
    assert slow != plain != fast
    for path in (slow, plain, fast):
        assert path == sorted(path)
        assert path[-1] == 4


def test_fewer_epochs_than_groups_still_freeze():
    assert schedule(ProgressivelyLayerPeeled(), 10, 3) == [3, 6, 9]


@pytest.mark.parametrize("granularity", ["block", "stage"])
@pytest.mark.parametrize("name", [*MODELS, "torchvision:resnet18", "timm:vit_tiny_patch16_224"])
def test_every_parameter_is_in_one_group_in_order(name, granularity):
    network = build_model(name, 4, ImageShape(3, 32))
    groups = parameter_groups(network, granularity)
    assert all(groups)
    found = [id(parameter) for group in groups for parameter in group]
    assert len(found) == len(set(found))
    assert set(found) == {id(parameter) for parameter in network.parameters()}
    assert any(parameter is network.classifier.weight for parameter in groups[-1])


def test_groups_of_a_residual_network():
    network = build_model("resnet18", 10, ImageShape(3, 32))
    blocks, stages = (parameter_groups(network, kind) for kind in ("block", "stage"))
    assert len(blocks) == 10
    assert len(stages) == 5
    assert [len(group) for group in stages] == [3, 12, 15, 15, 17]


@pytest.mark.parametrize("granularity", ["block", "stage"])
def test_parameters_outside_all_blocks_learn_as_long_as_the_first_group(granularity):
    network = build_model("timm:vit_tiny_patch16_224", 4, ImageShape(3, 32))
    loose = [id(parameter) for parameter in network.extractor.parameters(recurse=False)]
    assert loose
    first = parameter_groups(network, granularity)[0]
    assert [id(parameter) for parameter in first[: len(loose)]] == loose


def test_frozen_parameters_do_not_move_with_momentum_and_weight_decay(image_problem):
    images, labels = image_problem
    torch.manual_seed(0)
    network, scheme = (
        build_model("convnet", 3, ImageShape(1, 8)),
        ProgressivelyLayerPeeled(groups="block"),
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for epoch in range(4):
        scheme.start_epoch(network, epoch, 4)
        before = {name: p.detach().clone() for name, p in network.named_parameters()}
        for _ in range(2):
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(network(images), labels).backward()
            optimizer.step()
        moved = [name for name, p in network.named_parameters() if not torch.equal(p, before[name])]
        free = [name for name, p in network.named_parameters() if p.requires_grad]
        assert moved == free
        assert len(free) == [11, 9, 6, 3][epoch]


@pytest.mark.parametrize("groups", ["block", "stage"])
def test_whole_groups_are_frozen_from_the_top(groups):
    network = build_model("resnet20", 3, ImageShape(1, 8))
    scheme, found = ProgressivelyLayerPeeled(groups=groups), parameter_groups(network, groups)
    for epoch in (5, 3, 0):
        scheme.start_epoch(network, epoch, 6)
        learning = len(found) - scheme.frozen_groups(len(found), epoch, 6)
        free = [{parameter.requires_grad for parameter in group} for group in found]
        assert free == [{place < learning} for place in range(len(found))]


@pytest.mark.parametrize(("name", "groups"), [("linear", 1), ("mlp", 2)])
def test_modules_without_parameters_form_no_group(name, groups):
    network = build_model(name, 3, FeatureShape(4))
    for granularity in ("block", "stage"):
        found = parameter_groups(network, granularity)
        assert [*map(bool, found)] == [True] * len(found)
    assert len(parameter_groups(network, "block")) == groups
