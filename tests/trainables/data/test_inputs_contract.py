"""Every kind of data, one made up here among them, goes the whole way through the seam alone.

A further kind adds a case.
"""

import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from small_stages import MACAL, PROTOCOL, write_masks
from torch import Generator, Tensor, nn

import trainables.data
from tests.own_process import open_sealed
from trainables.augmentations import AUGMENTATIONS
from trainables.augmentations._mixing import Pairs
from trainables.calibrators import cross_fit
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
    TextShape,
    WholeImages,
    find_prepared,
    find_reader,
    prepare,
    read_source,
)
from trainables.data._rows import Rows
from trainables.data._whole_images import WholeFiles
from trainables.data.folder import FolderReader
from trainables.data.suites import find_suite
from trainables.losses import build_loss
from trainables.methods import method_names
from trainables.models import MODELS, Network, build_model, register_model
from trainables.stages import StageRequest, TaskData, calibrate, evaluate_on_test, open_stage
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

    def test_paths(self):
        return []

    def check(self) -> SourceStatus:
        return SourceStatus(True, "made up")


def perceptron(num_classes: int, shape: VectorShape) -> Network:
    extractor = nn.Sequential(nn.Linear(shape.width, 16), nn.ReLU())
    return Network(extractor, nn.Linear(16, num_classes))


def write_images(folder: Path) -> str:
    """Three shades with noise."""
    generator = np.random.default_rng(5)
    labels = np.arange(300, dtype=np.int64) % 3
    noise = generator.integers(0, 40, (300, 8, 8, 1))
    images = (noise + 100 * labels[:, None, None, None]).astype(np.uint8)
    arrays = {
        "x_train": images[:240],
        "y_train": labels[:240],
        "x_test": images[240:],
        "y_test": labels[240:],
    }
    np.savez(folder / "shades.npz", **arrays)
    return f"npz:{folder / 'shades.npz'}"


def write_files(folder: Path) -> str:
    """Three shades with noise, as JPEG files of several sizes."""
    generator = np.random.default_rng(5)
    for number in range(300):
        part, label = ("train", "test")[number >= 240], number % 3
        place = folder / part / "abc"[label] / f"{number}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        size = (10 + number % 5, 12, 3)
        pixels = generator.integers(0, 40, size, dtype=np.uint8) + np.uint8(100 * label)
        Image.fromarray(pixels).save(place)
    return f"test-files:{folder}"


class FilesReader(FolderReader):
    """Folders of images, kept whole as those of ImageNet are, for networks that see 8 x 8."""

    kind = WholeImages
    rows = WholeFiles
    inputs = WholeImages((8, 8), 3, (0.5,) * 3, (0.25,) * 3, "resized-crop-flip", shorter=10)

    def read(self, download: bool) -> tuple[DatasetInfo, Rows, Rows | None]:
        classes, train, test = self.listing()
        info = DatasetInfo(self.name, classes, self.inputs, "folders", "made up")
        return info, self.image_files(train), self.image_files(test)


def write_texts(folder: Path) -> str:
    """Three classes with words of their own among common ones."""
    generator = np.random.default_rng(5)
    for part, count in (("train", 240), ("test", 60)):
        with (folder / f"{part}.jsonl").open("w") as stream:
            for number in range(count):
                own = [f"word{number % 3}{k}" for k in generator.integers(0, 5, 6)]
                words = generator.permutation([*own, *["and", "the"] * 3])
                row = {"text": " ".join(words), "label": "abc"[number % 3]}
                stream.write(json.dumps(row) + "\n")
    return f"text:{folder}"


def write_features(folder: Path) -> str:
    """Three clouds; the fourth feature says nothing, the fifth is large."""
    generator = np.random.default_rng(3)
    labels = np.arange(300, dtype=np.int64) % 3
    features = generator.normal(0, 1, (300, 6)) + generator.normal(0, 3, (3, 6))[labels]
    features[:, 3], features[:, 4] = 7, 1000 * features[:, 4]
    np.savez(folder / "cached.npz", features=features, labels=labels)
    return f"features:{folder / 'cached.npz'}"


@dataclass(frozen=True)
class Case:
    """A kind of data: how to make a data set of it, its network, and how that is trained."""

    write: Callable[[Path], str]
    model: str
    protocol: dict[str, Any] = field(default_factory=dict)


CASES = {
    "vectors": Case(lambda folder: "test-vectors", "test-perceptron"),
    "images": Case(write_images, "convnet"),
    "whole-images": Case(write_files, "convnet"),
    "features": Case(write_features, "mlp"),
    "texts": Case(write_texts, "gpool-cnn", {"optimizer": "adam", "lr": 0.01, "batch_size": 20}),
    "images-with-masks": Case(
        write_masks, "deeplabv3-small", {"batch_size": 8, "augmentation": "scale-crop-flip"}
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    SOURCES.register("test-vectors")(VectorReader)
    SOURCES.register("test-files")(FilesReader)
    register_model("test-perceptron", takes=VectorShape)(perceptron)
    yield
    del SOURCES._entries["test-vectors"], SOURCES._entries["test-files"], Inputs.kinds["vectors"]
    del MODELS._entries["test-perceptron"]


@pytest.fixture(scope="module", params=CASES)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def name(kind: str, tmp_path_factory: pytest.TempPathFactory, _registered: None) -> str:
    return CASES[kind].write(tmp_path_factory.mktemp(kind))


@pytest.fixture(scope="module")
def prepared(name: str, tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    folder = tmp_path_factory.mktemp("prepared")
    return prepare(name, folder, SplitSpec(), folder / "data")


def test_rows_are_stored_as_their_kind_encodes_them(prepared, kind, name):
    rows = read_source(name, "unused").train
    train = prepared.search().train
    numbers = np.load(prepared.directory / "search" / "train_indices.npy")
    inputs = prepared.info.inputs
    np.testing.assert_array_equal(train.values, inputs.encode(rows.take(numbers).read(0, 240)))
    assert (train.values.dtype, train.values.shape[1:]) == (inputs.dtype, inputs.row)
    assert f"search/train_{kind}.npy" in prepared.files
    assert PreparedData.open(prepared.directory).info == prepared.info
    manifest = json.loads((prepared.directory / "split.json").read_text())
    assert manifest["info"].get("kind", "images") == kind
    blank = inputs.shape.blank(torch.device("cpu"))
    plain = inputs.batcher(train.values[:1]).plain(
        next(inputs.batcher(train.values[:1]).batches(torch.tensor([0]), 1))
    )
    assert (blank.shape, blank.dtype) == (plain.shape, plain.dtype)


def test_the_key_is_of_rows_and_split(prepared, name, tmp_path):
    again = prepare(name, tmp_path, SplitSpec(), tmp_path / "data")
    assert again.key == prepared.key
    assert again.files == prepared.files
    assert find_prepared(name, tmp_path, SplitSpec(), tmp_path / "data") == again
    assert prepare(name, tmp_path, SplitSpec(seed=1), tmp_path / "data").key != again.key


# The process knows no source that is registered here.
@pytest.mark.parametrize(
    "kind", sorted({*CASES} - {"vectors", "whole-images"}), scope="module", indirect=True
)
def test_a_sealed_process_reaches_no_test_row(prepared, name):
    stored = (prepared.directory / "test").glob("*.npy")
    paths = [*stored, *find_reader(name, "unused").test_paths()]
    assert open_sealed(prepared, *paths) == ["sealed"] * len(paths)
    assert len(paths) == (27 if "masks" in prepared.info.inputs.kind else 4)


def wanted(
    prepared: PreparedData, kind: str, epochs: int = PROTOCOL["epochs"], **changes: Any
) -> StageRequest:
    given = {**PROTOCOL, **CASES[kind].protocol, "epochs": epochs}
    protocol = protocol_from(given).to_dict()
    fields = {"stage": "train", "parts": {"ce": {}}, "seed": 0, **changes}
    return StageRequest(
        data=str(prepared.directory), model=CASES[kind].model, protocol=protocol, **fields
    )


@pytest.mark.full
def test_an_interrupted_training_ends_like_an_undisturbed_one(prepared, kind, tmp_path):
    store, data = ArtifactStore(tmp_path / "store"), TaskData(prepared, torch.device("cpu"))
    request = wanted(prepared, kind, epochs=3, parts={"mixup": {}})
    whole, resumed = (open_stage(request, store, data) for _ in range(2))
    figures: dict[str, float] = {}
    while whole.epoch < whole.epochs:
        figures = whole.run_epoch()
        if whole.epoch == 1:
            checkpoint = io.BytesIO()
            torch.save(whole.state_dict(), checkpoint)
    resumed.load_state_dict(torch.load(io.BytesIO(checkpoint.getvalue()), weights_only=True))
    again: dict[str, float] = {}
    while resumed.epoch < resumed.epochs:
        again = resumed.run_epoch()
    assert again == figures
    for file, tensors in whole.outcome()[0].items():
        for key, values in tensors.items():
            assert torch.equal(values, resumed.outcome()[0][file][key])


@pytest.mark.full
def test_the_whole_chain_is_computed_evaluated_and_exported(prepared, kind, tmp_path):
    store, data = ArtifactStore(tmp_path / "store"), TaskData(prepared, torch.device("cpu"))
    found: Artifact | None = None
    parts: dict[str, dict[str, Any]] = {
        "train": {"mbls": {}, "mixup": {}},
        "refine": MACAL,
        "calibrate": {"ts": {}},
    }
    for stage, its in parts.items():
        if stage == "refine" and kind == "images-with-masks":
            continue
        request = wanted(
            prepared,
            kind,
            stage=stage,
            parts=its,
            upstream=found and found.key,
            upstream_stage=found and found.stage,
        )
        run = open_stage(request, store, data)
        metrics: dict[str, float] = {}
        while run.epoch < run.epochs:
            metrics = run.run_epoch()
        found = run.finish(metrics)
        tested, evaluated = evaluate_on_test(store, found.ref, prepared)
        # Half of all pixels are of one class.
        assert tested["acc"] > (0.75 if kind == "images-with-masks" else 0.9)
        folder = tmp_path / stage
        export_chain(store, found.ref, prepared.info, folder)
        test = prepared.test()
        outputs = load_chain(folder)(test.values)
        if (pixels := prepared.info.inputs.pixels(test)) is not None:
            outputs = outputs.movedim(1, 3).flatten(1, 2)[pixels.rows, pixels.places]
        assert {"debiased_ece", "smooth_ece", "ece_floor", "cwece_floor"} <= tested.keys()
        torch.testing.assert_close(outputs, evaluated.tensors("test")["log_probs"])


def test_an_exported_chain_takes_texts(tmp_path):
    prepared = prepare(write_texts(tmp_path), tmp_path, SplitSpec(), tmp_path / "data")
    store, data = ArtifactStore(tmp_path / "store"), TaskData(prepared, torch.device("cpu"))
    run = open_stage(wanted(prepared, "texts"), store, data)
    found = run.finish(run.run_epoch())
    export_chain(store, found.ref, prepared.info, tmp_path / "chain")
    chain, texts = load_chain(tmp_path / "chain"), read_source(f"text:{tmp_path}", "unused").test
    assert texts is not None
    assert torch.equal(chain(texts.read(0, 60)), chain(prepared.test().values))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    folder = tmp_path_factory.mktemp("texts")
    return prepare(write_texts(folder), folder, SplitSpec(train_limit=60), folder / "data")


@pytest.fixture(scope="module")
def masks(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    folder = tmp_path_factory.mktemp("masks")
    split = SplitSpec(validation=5, train_limit=8)
    return prepare(write_masks(folder), folder, split, folder / "data")


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    folder = tmp_path_factory.mktemp("features")
    split = SplitSpec(train_limit=60)
    return prepare(write_features(folder), folder, split, folder / "data")


# Of a kind: the fixture of few rows, a weight of the network, methods that are not for it.
SMALL = {
    "features": ("features", "extractor.1.0.weight", {"cutmix"}),
    "texts": ("texts", "extractor.0.weight", {"cutmix"}),
    "images-with-masks": ("masks", "extractor.0.0.weight", {"mit", "cutmix", "balcal", "mcdrop"}),
}


@pytest.mark.full
@pytest.mark.parametrize("method", method_names())
@pytest.mark.parametrize("kind", SMALL)
def test_every_method_trains_on_every_kind_or_is_refused(method, kind, tmp_path, request):
    small, weight, refused = SMALL[kind]
    rows = request.getfixturevalue(small)
    store, data = ArtifactStore(tmp_path / "store"), TaskData(rows, torch.device("cpu"))
    wish = wanted(rows, kind, parts={method: {}})
    if method in refused:
        with pytest.raises(InputError, match=f"'{method}' is not for {kind}: "):
            open_stage(wish, store, data)
        return
    run = open_stage(wish, store, data)
    before = run.outcome()[0]["weights"][weight].clone()
    figures = run.run_epoch()
    assert 0 <= figures["val_miou" if small == "masks" else "val_acc"] <= 1
    assert not torch.equal(run.outcome()[0]["weights"][weight], before)


@pytest.mark.full
def test_two_processes_train_on_mixed_texts_as_one_does(texts, tmp_path):
    request, found = wanted(texts, "texts", parts={"mixup": {}}), []
    for processes in (1, 2):
        task = TaskData(texts, torch.device("cpu"), processes=processes)
        run = open_stage(request, ArtifactStore(tmp_path / str(processes)), task)
        run.run_epoch()
        found.append(run.outcome()[0]["weights"])
        run.close()
    for name, weight in found[0].items():
        torch.testing.assert_close(found[1][name], weight, rtol=0, atol=1e-5)


def test_a_refinement_of_masks_is_refused(masks, tmp_path):
    request = wanted(masks, "images-with-masks", stage="refine", parts=MACAL)
    with pytest.raises(InputError, match="'macal' is not for images-with-masks: its classifier"):
        open_stage(request, ArtifactStore(tmp_path), TaskData(masks, torch.device("cpu")))


@pytest.mark.parametrize("most", [2, 9])
def test_masks_are_cross_fitted_by_whole_images_in_as_many_folds_as_there_may_be(
    most, masks, tmp_path, monkeypatch
):
    store, data = ArtifactStore(tmp_path), TaskData(masks, torch.device("cpu"))
    run = open_stage(wanted(masks, "images-with-masks"), store, data)
    trained = run.finish(run.run_epoch())
    split: list[tuple[int, Tensor]] = []

    def noted(build: Any, logits: Tensor, labels: Tensor, folds: int, *more: Any) -> Tensor:
        split.append((folds, more[-1]))
        return cross_fit(build, logits, labels, folds, *more)

    monkeypatch.setattr(calibrate, "cross_fit", noted)
    monkeypatch.setattr(calibrate, "CROSS_FIT_FOLDS", most)
    changes = {"stage": "calibrate", "parts": {"ts": {}}}
    upstream = {"upstream": trained.key, "upstream_stage": "train"}
    open_stage(wanted(masks, "images-with-masks", **changes, **upstream), store, data).run_epoch()
    ((folds, images),) = split
    assert folds == min(most, 5)
    assert torch.equal(images, trained.tensors("validation")["images"])


@torch.no_grad()
@pytest.mark.parametrize("variant", ["l", "a"])
def test_mixtures_of_embeddings_are_decoupled_at_the_end(variant):
    """Where pairs are of a text with itself, both sides have the outputs of that text."""
    torch.manual_seed(0)
    network = build_model("gpool-cnn", 3, TextShape(9, 30)).eval()
    rows = torch.randint(0, 9, (4, 30), dtype=torch.int32)
    values, labels, order = network.embed(rows), torch.zeros(4, dtype=torch.int64), torch.arange(4)
    method = AUGMENTATIONS.build("mit", variant=variant)
    pairs = Pairs(values, values, labels, labels, order, order)
    mixture = method.draw_mixture(network, values.shape, np.random.default_rng(0))
    _, logits = method.loss_of_pairs(network, build_loss("ce"), pairs, *mixture)
    torch.testing.assert_close(logits, network(rows), rtol=1e-4, atol=1e-5)


SOUNDS = """
from dataclasses import dataclass
import numpy as np
from trainables.data import Inputs
@dataclass(frozen=True)
class Sounds(Inputs, kind="sounds"):
    dtype = np.dtype(np.float32)
    length: int
    augmentation: str = "none"
    row = property(lambda self: (self.length,))
    shape = None
"""


def test_one_file_defines_a_kind_of_data_also_for_code_that_only_opens_stored_data(
    tmp_path, monkeypatch
):
    (tmp_path / "sounds.py").write_text(SOUNDS)
    monkeypatch.setattr("trainables.data.__path__", [*trainables.data.__path__, str(tmp_path)])
    fields = {"name": "a", "classes": ["b", "c"], "split_rule": "", "source": ""}
    info = DatasetInfo.from_dict({**fields, "kind": "sounds", "length": 3})
    assert (info.inputs.row, info.to_dict()["kind"]) == ((3,), "sounds")
    batcher = info.inputs.batcher(np.eye(3, dtype=np.float32))
    assert torch.equal(batcher.plain(next(batcher.batches(torch.arange(3), 3))), torch.eye(3))
    with pytest.raises(
        ValueError, match=r"^sounds: expected float32 \(N, 3\), got float32 \(2, 4\)$"
    ):
        info.inputs.check(np.zeros((2, 4), np.float32))
    del Inputs.kinds["sounds"], sys.modules["trainables.data.sounds"], trainables.data.sounds


def test_a_network_of_another_kind_is_refused():
    with pytest.raises(InputError, match="'convnet' takes images, got vectors"):
        build_model("convnet", 3, VectorShape(WIDTH))
    with pytest.raises(InputError, match="'test-perceptron' takes vectors, got images"):
        build_model("test-perceptron", 3, ImageShape(1, 8))


@pytest.mark.parametrize("suite", ["cifar10-c", "ood-digits", "generated-c"])
def test_a_suite_of_images_is_refused(suite):
    info, _, _ = VectorReader("test-vectors", "", Path("nowhere")).read(False)
    with pytest.raises(
        InputError, match="expected a task of images, but 'test-vectors' has vectors"
    ):
        find_suite(suite, Path("nowhere")).check(info)
