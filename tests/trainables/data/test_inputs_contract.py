"""A second kind of data, made up here, goes the whole way through the seam alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from small_stages import MACAL, PROTOCOL
from torch import Generator, Tensor, nn

from trainables.common.errors import InputError
from trainables.data import (
    SOURCES,
    Batcher,
    DatasetInfo,
    ImageShape,
    Inputs,
    InputShape,
    PreparedData,
    Reader,
    RowArrays,
    SourceStatus,
    SplitSpec,
    prepare,
)
from trainables.data.suites import find_suite
from trainables.models import Network, build_model, register_model
from trainables.stages import StageRequest, TaskData, evaluate_on_test, open_stage
from trainables.stages.export import export_chain, load_chain
from trainables.stages.protocols import protocol_from
from trainables.store.artifacts import Artifact, ArtifactStore

WIDTH = 6


@dataclass(frozen=True)
class VectorShape(InputShape):
    kind: ClassVar[str] = "vectors"

    width: int

    def blank(self, device: torch.device) -> Tensor:
        return torch.zeros(1, self.width, device=device)


@dataclass(frozen=True)
class Vectors(Inputs, kind="vectors"):
    dtype: ClassVar[np.dtype] = np.dtype(np.float32)

    width: int
    scale: float
    augmentation: str = "none"

    @property
    def row(self) -> tuple[int]:
        return (self.width,)

    @property
    def shape(self) -> VectorShape:
        return VectorShape(self.width)

    def check(self, values: np.ndarray) -> None:
        if values.dtype != self.dtype or values.shape[1:] != self.row:
            raise ValueError(f"vectors are {values.dtype} {values.shape}")

    def batcher(self, values: np.ndarray, device: torch.device | str = "cpu") -> Batcher:
        self.check(values)
        return VectorBatcher(values, self.scale, device)


class VectorBatcher(Batcher):
    def __init__(self, values: np.ndarray, scale: float, device: torch.device | str) -> None:
        super().__init__(values, device)
        self._scale = scale

    def plain(self, batch: Tensor) -> Tensor:
        return batch * self._scale

    def view(self, batch: Tensor, augmentation: str, generator: Generator) -> Tensor:
        if augmentation == "none":
            return self.plain(batch)
        noise = torch.randn(batch.shape, generator=generator)
        return self.plain(batch) + 0.1 * noise


class VectorReader(Reader):
    """Three well separated clouds."""

    def read(self, download: bool) -> tuple[DatasetInfo, RowArrays, None]:
        generator = np.random.default_rng(3)
        labels = np.arange(240, dtype=np.int64) % 3
        centres = generator.normal(0, 6, (3, WIDTH))
        values = centres[labels] + generator.normal(0, 1, (240, WIDTH))
        info = DatasetInfo(self.name, ("a", "b", "c"), Vectors(WIDTH, 0.25), "drawn", "made up")
        return info, RowArrays(values.astype(np.float32), labels), None

    def files(self) -> list[Path]:
        return []

    def test_paths(self) -> list[Path]:
        return []

    def check(self) -> SourceStatus:
        return SourceStatus(True, "made up")


def perceptron(num_classes: int, shape: VectorShape) -> Network:
    extractor = nn.Sequential(nn.Linear(shape.width, 16), nn.ReLU())
    return Network(extractor, nn.Linear(16, num_classes))


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    SOURCES.register("test-vectors")(VectorReader)
    register_model("test-perceptron", takes=VectorShape)(perceptron)
    yield
    del SOURCES._entries["test-vectors"], Inputs.kinds["vectors"]
    from trainables.models import _registry

    del _registry._BUILDERS["test-perceptron"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, _registered: None) -> PreparedData:
    folder = tmp_path_factory.mktemp("vectors")
    return prepare("test-vectors", folder, SplitSpec(), folder / "data")


def test_rows_are_stored_as_they_are(prepared: PreparedData) -> None:
    source, _, _ = VectorReader("test-vectors", "", Path("nowhere")).read(False)
    train = prepared.search().train
    numbers = np.load(prepared.directory / "search" / "train_indices.npy")
    _, rows, _ = VectorReader("test-vectors", "", Path("nowhere")).read(False)
    np.testing.assert_array_equal(train.values, rows.values[numbers])
    assert "search/train_vectors.npy" in prepared.files
    assert PreparedData.open(prepared.directory).info == source
    manifest = json.loads((prepared.directory / "split.json").read_text())
    assert manifest["info"]["kind"] == "vectors"


@pytest.mark.parametrize("resident", [True, False])
def test_batches_come_in_order(
    prepared: PreparedData, resident: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainables.data._batches.fits", lambda *_: resident)
    values = prepared.search().train.values
    batcher = prepared.info.inputs.batcher(values)
    order = torch.randperm(len(values))
    found = torch.cat([batcher.plain(batch) for batch in batcher.batches(order, 16)])
    torch.testing.assert_close(found, torch.from_numpy(np.array(values))[order] * 0.25)


def test_the_whole_chain_is_computed_evaluated_and_exported(
    prepared: PreparedData, tmp_path: Path
) -> None:
    store, data = ArtifactStore(tmp_path / "store"), TaskData(prepared, torch.device("cpu"))
    found: Artifact | None = None
    parts: dict[str, dict[str, Any]] = {
        "train": {"mbls": {}, "mixup": {}},
        "refine": MACAL,
        "calibrate": {"ts": {}},
    }
    for stage, wanted in parts.items():
        request = StageRequest(
            stage=stage,
            parts=wanted,
            data=str(prepared.directory),
            model="test-perceptron",
            protocol=protocol_from(PROTOCOL).to_dict(),
            seed=0,
            upstream=found and found.key,
            upstream_stage=found and found.stage,
        )
        run = open_stage(request, store, data)
        metrics: dict[str, float] = {}
        while run.epoch < run.epochs:
            metrics = run.run_epoch()
        found = run.finish(metrics)
        tested, evaluated = evaluate_on_test(store, found.stage, found.key, prepared)
        assert tested["acc"] > 0.9
        folder = tmp_path / stage
        export_chain(store, found.stage, found.key, prepared.info, folder)
        outputs = load_chain(folder)(prepared.test().values)
        assert torch.equal(outputs, evaluated.tensors("test")["log_probs"])


def test_a_network_of_another_kind_is_refused() -> None:
    with pytest.raises(InputError, match="'convnet' takes images, the data are vectors"):
        build_model("convnet", 3, VectorShape(WIDTH))
    with pytest.raises(InputError, match="'test-perceptron' takes vectors, the data are images"):
        build_model("test-perceptron", 3, ImageShape(1, 8))


@pytest.mark.parametrize("name", ["cifar10-c", "ood-digits", "generated-c"])
def test_a_suite_of_images_is_refused(prepared: PreparedData, name: str) -> None:
    with pytest.raises(InputError, match="is of images, 'test-vectors' holds vectors"):
        find_suite(name, Path("nowhere")).check(prepared.info)
