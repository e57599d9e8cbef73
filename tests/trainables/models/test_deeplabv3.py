import re
from pathlib import Path

import pytest
import torch

from trainables.common.errors import InputError
from trainables.data import MaskedShape
from trainables.models import build_model

SHAPE = MaskedShape((72, 88))


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


@torch.no_grad()
@pytest.mark.parametrize(("name", "millions"), [("small", 0.7), ("resnet34", 26.0)])
def test_logits_are_of_pixels_and_features_of_eighths(name: str, millions: float) -> None:
    network = build_model(f"deeplabv3-{name}", 11, SHAPE).eval()
    images = torch.randn(1, 3, *SHAPE.size)
    assert network.features(images).shape == (1, network.feature_dim, 9, 11)
    assert network(images).shape == (1, 11, 72, 88)
    assert sum(p.numel() for p in network.parameters()) / 1e6 == pytest.approx(millions, rel=0.06)


@pytest.mark.full
@pytest.mark.parametrize("content", [None, b"no weights"])
def test_pretrained_weights_are_read_from_their_file(checkpoints, content):
    path = checkpoints / "resnet34-b627a593.pth"
    said = (
        "does not exist; download https://download.pytorch.org/models/resnet34-b627a593.pth there, "
        "or remove @pretrained"
    )
    if content is not None:
        path.write_bytes(content)
        said = "cannot be read: Weights only load failed.*"  # One line of torch's many.
    told = f"^pretrained weights of resnet34: .*{re.escape(path.name)} {said}$"
    with pytest.raises(InputError, match=told):
        build_model("deeplabv3-resnet34@pretrained", 3, SHAPE)


@pytest.mark.full
def test_pretrained_weights_are_those_that_the_extractor_begins_with(checkpoints: Path) -> None:
    from torchvision.models import resnet34

    with torch.device("meta"):
        resnet = resnet34()
    # One number each in the file.
    values = resnet.state_dict().items()
    stored = {name: torch.tensor(0.25).expand(value.shape) for name, value in values}
    torch.save(stored, checkpoints / "resnet34-b627a593.pth")
    network = build_model("deeplabv3-resnet34@pretrained", 3, SHAPE)
    found = [bool((weight == 0.25).all()) for weight in network.parameters()]
    begun = len(list(resnet.parameters())) - 2  # But for the classifier.
    assert found[:begun] == [True] * begun
    assert not any(found[begun:])


@pytest.mark.parametrize(
    ("name", "file"),
    [("resnet50", "resnet50-0676ba61.pth"), ("resnet101", "resnet101-63fe2227.pth")],
)
def test_pretrained_weights_are_those_of_the_papers(name, file, checkpoints):
    """Of its two sets torchvision calls another one, of a longer training, its default."""
    with torch.device("meta"), pytest.raises(InputError, match=f"/{file} does not exist"):
        build_model(f"deeplabv3-{name}@pretrained", 3, SHAPE)


def test_a_file_of_weights_runs_nothing(checkpoints: Path) -> None:
    torch.save({"fc.bias": Path("x")}, checkpoints / "resnet34-b627a593.pth")
    with pytest.raises(InputError, match="cannot be read: "):
        build_model("deeplabv3-resnet34@pretrained", 3, SHAPE)
