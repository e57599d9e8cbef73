import subprocess
import sys

import pytest
import torch
from small_stages import EVERY_LAYER

from trainables.common.errors import InputError
from trainables.data import ImageShape, InputShape, LogitShape
from trainables.models import Network, build_model, check_takes, model_names, register_model
from trainables.models._registry import unknown_model
from trainables.models.whitened_cnn import WhitenedPatches
from trainables.models.wide_resnet import _biased

# Counted in the released codes of the papers; "64" marks the Tiny-ImageNet form.
RELEASED = {
    ("resnet50", 10, 32): 23520842,
    ("resnet50", 100, 32): 23705252,
    ("resnet101", 10, 32): 42512970,
    ("resnet110", 10, 32): 45864522,
    ("resnet110", 100, 32): 46048932,
    ("wrn-26-10", 10, 32): 36481434,
    ("wrn-26-10", 100, 32): 36539124,
    ("wrn-28-10", 10, 32): 36489290,
    ("wrn-28-10", 100, 32): 36546980,
    ("densenet121", 10, 32): 6956298,
    ("densenet121", 100, 32): 7048548,
    ("preresnet56", 10, 32): 868634,
    ("preresnet56", 100, 32): 891764,
    ("preresnet110", 10, 32): 1703258,
    ("resnet50", 200, 64): 25138952,
    ("resnet101", 200, 64): 44131080,
}
# Well known from the families' papers and public reimplementations.
WELL_KNOWN = {
    ("resnet8", 10, 32): 75290,
    ("resnet18", 10, 32): 11173962,
    ("resnet20", 10, 32): 269722,
    ("resnet110-cifar", 10, 32): 1727962,
    ("resnet110-sd", 10, 32): 1727962,
    ("wrn-16-4", 10, 32): 2748890,
    ("wrn-32", 10, 32): 46160474,
    ("densenet40", 10, 32): 1019722,
    ("densenet161", 10, 32): 26482378,
}
IMAGES = model_names(ImageShape)
LAYERS = sorted({*EVERY_LAYER} & {*IMAGES})
SMALL = ["convnet", "resnet8", "resnet20", "densenet40", "preresnet56", "wrn-16-4"]


def on_meta(name: str, size: int = 32, channels: int = 3, classes: int = 10) -> Network:
    with torch.device("meta"):
        return build_model(name, classes, ImageShape(channels, size))


def parameters_of(network: Network) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def images(count: int, channels: int = 3, size: int = 16) -> torch.Tensor:
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "size"), {(name, size): 0 for name, _, size in [*RELEASED, *WELL_KNOWN]}
)
def test_parameter_count(name: str, size: int) -> None:
    network = on_meta(name, size)
    more = network.feature_dim + 1  # Parameters for each further class.
    for (other, classes, pixels), expected in (RELEASED | WELL_KNOWN).items():
        if (other, pixels) == (name, size):
            assert parameters_of(network) + (classes - 10) * more == expected


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "channels", "size"),
    [*((name, 1, 8) for name in IMAGES), *((name, 3, 64) for name in (*LAYERS, "resnet50"))],
)
def test_shapes_on_meta(name: str, channels: int, size: int) -> None:
    network = on_meta(name, size, channels, classes=7).eval()
    features = network.features(torch.empty(2, channels, size, size, device="meta"))
    assert features.shape == (2, network.feature_dim)
    assert network.classify(features).shape == (2, 7)


@pytest.mark.full
@torch.no_grad()
@pytest.mark.parametrize("name", [*LAYERS, "timm:resnet18", "torchvision:resnet18"])
def test_logits_are_those_of_float32_weights_under_autocast(name: str) -> None:
    network, batch = build_model(name, 5, ImageShape(3, 8)).eval(), images(2, size=8)
    with torch.autocast("cpu", torch.bfloat16):
        features, logits = network.features(batch), network(batch)
    assert features.dtype == torch.bfloat16
    assert logits.dtype == torch.float32
    assert torch.equal(logits, network.classifier(features.float()))


@pytest.mark.parametrize("name", [*SMALL, "resnet110-sd"])
def test_same_seed_gives_same_weights(name: str) -> None:
    weights = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        network = build_model(name, 5, ImageShape(3, 32))
        weights.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("name", SMALL)
def test_gradients_reach_every_parameter(name: str) -> None:
    network = build_model(name, 5, ImageShape(3, 32))
    torch.nn.functional.cross_entropy(network(images(4)), torch.arange(4)).backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key
        assert parameter.grad.abs().sum() > 0, key


@pytest.mark.parametrize("name", ["resnet18", "wrn-16-4", "densenet40"])
def test_convolutions_begin_as_he_et_al_say(name: str) -> None:
    torch.manual_seed(0)
    for layer in build_model(name, 10, ImageShape(3, 32)).modules():
        if isinstance(layer, torch.nn.Conv2d) and layer.weight.numel() > 2000:
            sums = layer.out_channels * layer.kernel_size[0] ** 2
            assert layer.weight.std().item() == pytest.approx((2 / sums) ** 0.5, rel=0.1)


def test_biases_of_convolutions_begin_at_zero() -> None:
    layers = [*_biased(3, ImageShape(3, 8), blocks=1, factor=1).modules()]
    biases = [layer.bias for layer in layers if isinstance(layer, torch.nn.Conv2d)]
    assert len(biases) > 6
    assert all(bias is not None and not bias.any() for bias in biases)


def test_networks_for_other_inputs_are_refused() -> None:
    check_takes("convnet", InputShape)
    with pytest.raises(InputError) as caught:
        check_takes("convnet", LogitShape)
    assert str(caught.value) == (
        "model 'convnet' takes images, got logits; models for logits: none"
    )


def test_survival_falls_linearly_to_one_half() -> None:
    network = on_meta("resnet110-sd")
    survival = [m.survival for m in network.modules() if hasattr(m, "survival")]
    assert len(survival) == 54
    assert survival[0] == pytest.approx(1 - 0.5 / 54)
    assert survival[-1] == pytest.approx(0.5)
    steps = torch.tensor(survival).diff()
    assert torch.allclose(steps, steps[0].expand_as(steps), atol=1e-6)


def test_kept_branches_follow_their_probability() -> None:
    from trainables.models.resnet import StochasticResidual

    block = StochasticResidual(torch.nn.Identity(), torch.nn.Identity(), survival=0.7)
    torch.manual_seed(0)
    one = torch.ones(1, 1, 1, 1)
    kept = sum(block(one).item() == 2 for _ in range(2000)) / 2000
    assert kept == pytest.approx(0.7, abs=0.04)
    assert block.eval()(one).item() == pytest.approx(1.7)
    with pytest.raises(ValueError, match=r"survival=0.0 is outside \(0, 1\]"):
        StochasticResidual(torch.nn.Identity(), torch.nn.Identity(), survival=0.0)


def test_unknown_name_lists_near_names() -> None:
    assert str(unknown_model("net9", ["net1", "other", "net2", "net3", "net4"])).count("net") == 4
    with pytest.raises(InputError, match=r"unknown model 'resnet-50'.*resnet50"):
        build_model("resnet-50", 10, ImageShape(3, 32))
    with pytest.raises(InputError, match=r"there are: clip-adapter, .* more\)"):
        build_model("zzzzzzzz", 10, ImageShape(3, 32))
    with pytest.raises(InputError, match="unknown model 'keras:resnet50'"):
        build_model("keras:resnet50", 10, ImageShape(3, 32))


@pytest.mark.parametrize("key", ["num_classes", "channels", "size"])
def test_numbers_below_one_are_refused(key: str) -> None:
    numbers = {"num_classes": 10, "channels": 3, "size": 32, key: 0}
    with pytest.raises(ValueError, match=rf"{key}=0 is outside \[1, inf\)"):
        build_model("resnet8", numbers.pop("num_classes"), ImageShape(**numbers))


def test_densenet_names_the_smallest_image() -> None:
    with pytest.raises(InputError, match=r"size 4 are too small: .* 3 times and needs at least 8$"):
        build_model("densenet121", 10, ImageShape(3, 4))
    on_meta("densenet121", 8)


def test_a_network_cannot_be_registered_twice() -> None:
    with pytest.raises(ValueError, match="model 'convnet' is registered twice"):
        register_model("convnet")(build_model)
    assert not any(name.endswith(":") for name in model_names())
    assert set(IMAGES) < set(model_names()) > {"gpool-cnn", "deeplabv3-small"}
    assert not {"gpool-cnn", "deeplabv3-small"} & set(IMAGES)


@pytest.mark.full
def test_libraries_are_imported_only_when_asked_for() -> None:
    code = (
        "import sys; from trainables.data import ImageShape, source_names; source_names(); "
        "from trainables.models import build_model, model_names; model_names(); "
        "import orchestrator.cli; build_model('resnet8', 10, ImageShape(3, 32)); "
        "from orchestrator.sweep.spec import parse_sweep; "
        "parse_sweep('name: s\\ntasks: [{dataset: digits, model: convnet, protocol: digits}]\\n"
        "recipes: [ce, ce+isotonic, ce+macal]', 's'); "
        "import trainables.stages; import orchestrator.view; import orchestrator.statistics; "
        "late = {'timm', 'torchvision', 'sklearn', 'pandas', 'scipy.optimize', 'torch._dynamo'}; "
        "print(*late & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == []


@pytest.mark.parametrize("channels", [1, 3])
def test_patches_are_whitened_by_an_orthonormal_basis(channels: int) -> None:
    torch.manual_seed(0)
    patches = WhitenedPatches(channels)
    basis = patches.kernel.flatten(1)
    torch.testing.assert_close(basis @ basis.T, torch.eye(4 * channels))
    shades = torch.rand(64, 1, 9, 9).cumsum(2).cumsum(3)  # Neighbours alike, as in photographs.
    found = patches(shades.repeat(1, channels, 1, 1) + torch.rand(64, channels, 9, 9))
    half = found[:, : 4 * channels]
    torch.testing.assert_close(found[:, 4 * channels :], -half)
    spread = half.var((0, 2, 3), correction=0)
    torch.testing.assert_close(spread, torch.ones(4 * channels), atol=1e-2, rtol=0)
