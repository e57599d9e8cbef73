from typing import Any

import pytest
import torch

from trainables.common.errors import InputError
from trainables.data import ImageShape
from trainables.models import build_model, check_model
from trainables.models._blocks import split_at_classifier


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "channels", "size"),
    [
        ("timm:resnet10t", 1, 32),
        ("timm:vit_tiny_patch16_224", 3, 64),
        ("timm:mobilenetv3_small_050", 3, 64),
        ("torchvision:mobilenet_v3_small", 3, 32),
        ("torchvision:shufflenet_v2_x0_5", 1, 32),
        ("torchvision:resnet18", 1, 32),
    ],
)
def test_split(name: str, channels: int, size: int) -> None:
    network = build_model(name, 7, ImageShape(channels, size))
    assert network.training
    batch = torch.randn(2, channels, size, size)
    with torch.no_grad():
        features = network.eval().features(batch)
        assert features.shape == (2, network.feature_dim)
        assert torch.equal(network.classifier(features), network(batch))
    assert network(batch).shape == (2, 7)


@pytest.mark.full
@pytest.mark.parametrize("name", ["vit_b_16", "alexnet", "resnet18"])
def test_other_channels_change_nothing_else_of_the_first_layer(name: str) -> None:
    layers = []
    for channels in (3, 1):
        with torch.device("meta"):
            network = build_model(f"torchvision:{name}", 4, ImageShape(channels, 64))
        convolutions = [m for m in network.modules() if isinstance(m, torch.nn.Conv2d)]
        layers.append([str(convolution) for convolution in convolutions])
    first, *others = layers[1]
    assert [first.replace("Conv2d(1,", "Conv2d(3,"), *others] == layers[0]


def test_a_first_layer_of_other_channels_begins_as_he_et_al_say() -> None:
    torch.manual_seed(0)
    first = next(build_model("torchvision:resnet18", 4, ImageShape(1, 32)).parameters())
    assert first.std().item() == pytest.approx((2 / (64 * 7 * 7)) ** 0.5, rel=0.05)


def test_a_first_layer_that_fits_begins_as_the_library_has_it() -> None:
    from torchvision.models import mobilenet_v3_small

    kernels = []
    for make in (
        lambda: build_model("torchvision:mobilenet_v3_small", 7, ImageShape(3, 32)),
        lambda: mobilenet_v3_small(num_classes=7),
    ):
        torch.manual_seed(0)
        kernels.append(next(make().parameters()))
    assert torch.equal(*kernels)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "size"), [("vit_b_32", 96), ("maxvit_t", 448), ("googlenet", 96), ("inception_v3", 96)]
)
def test_networks_with_arguments_for_the_image_size_are_built(name: str, size: int) -> None:
    with torch.device("meta"):
        network = build_model(f"torchvision:{name}", 4, ImageShape(3, size))
    assert network.train()(torch.empty(2, 3, size, size, device="meta")).shape == (2, 4)


@pytest.mark.full
@pytest.mark.parametrize("name", ["vit_small_patch16_224", "swin_tiny_patch4_window7_224"])
def test_networks_of_the_papers_on_64_pixels(name: str) -> None:
    network = build_model(f"timm:{name}", 200, ImageShape(3, 64))
    assert network.num_classes == 200
    assert network.feature_dim in (384, 768)


def test_building_leaves_the_statistics_untouched() -> None:
    network = build_model("torchvision:resnet18", 7, ImageShape(3, 32))
    norms = [m for m in network.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert norms
    assert all(m.running_mean.abs().sum() == 0 for m in norms)


@pytest.mark.parametrize(
    ("library", "place", "more"),
    [
        ("timm", "timm.create_model", [TypeError, OSError]),
        ("torchvision", "torchvision.models.get_model", []),
    ],
)
def test_any_error_of_a_model_library_becomes_one_line(library, place, more, monkeypatch):
    name = f"{library}:resnet18" + ("@pretrained" if library == "timm" else "")
    for kind in (ValueError, AssertionError, RuntimeError, *more):

        def refuse(*_: object, kind: type[Exception] = kind, **__: object) -> None:
            raise kind("no\n  way")

        monkeypatch.setattr(place, refuse)
        with pytest.raises(InputError) as caught:
            build_model(name, 7, ImageShape(1, 32))
        assert str(caught.value) == f"{name} cannot be built for 1 x 32 x 32 images: no way"


@pytest.mark.parametrize("kind", [RuntimeError, AssertionError, ValueError])
def test_images_that_do_not_pass_are_refused_before_training(kind: type[Exception]) -> None:
    class Refusing(torch.nn.Sequential):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            raise kind("too\nsmall")

    network = Refusing(torch.nn.Flatten(), torch.nn.Linear(3, 2))
    with pytest.raises(InputError) as caught:
        split_at_classifier("library:x", network, network[1], ImageShape(3, 1))
    assert str(caught.value) == "library:x cannot be built for 3 x 1 x 1 images: too small"


def test_a_name_is_checked_without_weights() -> None:
    before = torch.get_rng_state()
    check_model("torchvision:mnasnet0_5")
    assert torch.equal(torch.get_rng_state(), before)  # None was drawn.
    with pytest.raises(InputError, match="squeezenet1_0 does not end with a linear layer"):
        check_model("torchvision:squeezenet1_0")


@pytest.mark.parametrize("pretrained", [False, True])
def test_timm_is_asked_for_weights_where_the_name_says_so(pretrained, monkeypatch):
    import timm

    asked: dict[str, Any] = {}

    def create(name: str, **settings: Any) -> torch.nn.Module:
        asked.update(settings, name=name)
        return make(name, **{**settings, "pretrained": False})

    make = timm.create_model
    monkeypatch.setattr(timm, "create_model", create)
    build_model(f"timm:resnet10t{'@pretrained' * pretrained}", 7, ImageShape(1, 32))
    assert asked == {"name": "resnet10t", "pretrained": pretrained, "num_classes": 7, "in_chans": 1}


def test_pretrained_transformers_are_shown_images_of_their_size(monkeypatch, tmp_path):
    import timm

    made = timm.create_model("vit_tiny_patch16_224", num_classes=1000)
    torch.save(made.state_dict(), tmp_path / "weights.pt")
    make, overlay = timm.create_model, {"file": str(tmp_path / "weights.pt"), "custom_load": False}

    def local(name: str, **settings: Any) -> torch.nn.Module:
        return make(name, pretrained_cfg_overlay=overlay, **settings)

    monkeypatch.setattr(timm, "create_model", local)
    network = build_model("timm:vit_tiny_patch16_224@pretrained", 7, ImageShape(3, 64)).eval()
    images = torch.rand(2, 3, 64, 64)
    large = torch.nn.functional.interpolate(images, (224, 224), mode="bilinear")
    with torch.no_grad():
        expected = made.eval().forward_head(made.forward_features(large), pre_logits=True)
        torch.testing.assert_close(network.features(images), expected)
    plain = build_model("timm:vit_tiny_patch16_224", 7, ImageShape(3, 64))
    assert plain.extractor.patch_embed.num_patches == 16  # Made for the images as they are.


@pytest.mark.parametrize(
    ("name", "size", "text"),
    [
        ("timm:vit_smal_patch16_224", 64, "near are: .*timm:vit_small_patch16_224"),
        (
            "timm:zzzz",
            64,
            r"there are: timm:.*, \.\.\. \(\d{3,} more\); `calsweep list models` shows all$",
        ),
        ("timm:resnet19@pretrained", 64, "^unknown model 'timm:resnet19'; near are: timm:"),
        ("timm:levit_128", 64, "^timm:levit_128 does not end with a linear layer, whose"),
        ("timm:vit_tiny_patch16_224", 8, "cannot be built for 3 x 8 x 8 images"),
        ("timm:resnet10t.none@pretrained", 32, "Invalid pretrained tag"),
        ("torchvision:resnet19", 64, "near are: .*torchvision:resnet18"),
        ("torchvision:fcn_resnet50", 64, "unknown model 'torchvision:fcn_resnet50'"),
        (
            "torchvision:squeezenet1_1",
            64,
            "^torchvision:squeezenet1_1 does not end with a linear layer, whose inputs are the "
            "features for refinements; use another network$",
        ),
        ("torchvision:vit_b_16", 33, "cannot be built for 3 x 33 x 33 images"),
    ],
)
def test_unsuitable_networks_of_libraries_are_refused(name: str, size: int, text: str) -> None:
    with pytest.raises(InputError, match=text) as caught:
        build_model(name, 10, ImageShape(3, size))
    assert "\n" not in str(caught.value)
