import errno
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_stages import MACAL, Workshop, request
from torch import Tensor

from trainables.common.errors import StorageError
from trainables.common.stages import ArtifactRef
from trainables.stages import RefineStage, networks, refine
from trainables.stages.networks import restore_network
from trainables.stages.protocols import protocol_from
from trainables.stages.refine import FEATURE_VIEWS, load_features
from trainables.store.artifacts import Artifact

EPOCHS = 10  # More than there are views, so that one comes again.


class LiveViews(Sequence[Tensor]):
    """Draws a view and sends it through the network every time that it is asked for."""

    def __init__(self, workshop: Workshop, trained: Artifact) -> None:
        info, self.drawn = workshop.prepared.info, 0
        self._network = restore_network(trained, info, workshop.data.device)
        self._kind = trained.record["request"]["protocol"]["augmentation"] or "none"
        train = workshop.data.search.train.values
        self._rows = info.inputs.batcher(train, workshop.data.device)

    def __len__(self) -> int:
        return FEATURE_VIEWS

    def __getitem__(self, index: Any) -> Any:
        self.drawn += 1
        return networks.extract_features(self._network, self._rows, self._kind, index)


@pytest.fixture(scope="module")
def trained(workshop: Workshop) -> Artifact:
    crops = {"augmentation": "crop-flip", "epochs": 2}
    return workshop.compute(request(workshop.prepared, protocol=crops))


def refinement(workshop: Workshop, trained: Artifact, **features: Any) -> RefineStage:
    part = {"macal": {**MACAL["macal"], "epochs": EPOCHS}}
    wanted = request(workshop.prepared, "refine", part, trained)
    return RefineStage(wanted, workshop.store, workshop.data, **features)


def computed_features(workshop: Workshop, trained: Artifact) -> dict[str, Tensor]:
    return refine._compute_features(trained, workshop.data, "crop-flip", workshop.store.root)


def outcome(run: RefineStage) -> Iterator[Any]:
    for _ in range(EPOCHS):
        yield run.run_epoch()
    for tensors in run.outcome()[0].values():
        yield from tensors.values()


def assert_equal(one: RefineStage, other: RefineStage) -> None:
    for mine, yours in zip(outcome(one), outcome(other), strict=True):
        assert torch.equal(mine, yours) if isinstance(mine, Tensor) else mine == yours


def test_a_refinement_is_the_same_from_stored_and_from_live_features(workshop, trained):
    stored, _ = load_features(trained, workshop.store, workshop.data)
    assert len({float(view.double().sum()) for view in stored["views"]}) == FEATURE_VIEWS
    live = LiveViews(workshop, trained)
    computed = refinement(workshop, trained, features=computed_features(workshop, trained))
    computed.trainer._views = live
    assert_equal(refinement(workshop, trained), computed)
    assert live.drawn == EPOCHS


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc/self/maps")
def test_stored_features_are_mapped_not_copied(workshop, trained):
    run = refinement(workshop, trained)
    ranges = [
        tuple(int(end, 16) for end in line.split()[0].split("-"))
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "features.safetensors" in line
    ]
    for view in (*run.trainer._views, run.features["validation"]):
        assert any(low <= view.data_ptr() < high for low, high in ranges)


def test_bfloat16_features_are_stored_in_bfloat16_without_loss(workshop, trained, monkeypatch):
    exact = computed_features(workshop, trained)
    assert {tensor.dtype for tensor in exact.values()} == {torch.float32}
    compute = networks.extract_features
    monkeypatch.setattr(refine, "extract_features", lambda *a: compute(*a).bfloat16().float())
    narrow = computed_features(workshop, trained)
    assert {tensor.dtype for tensor in narrow.values()} == {torch.bfloat16}
    wide = {name: tensor.float() for name, tensor in narrow.items()}
    assert_equal(
        refinement(workshop, trained, features=narrow), refinement(workshop, trained, features=wide)
    )


def test_original_views_are_the_images_as_they_are(workshop, trained):
    stored, _ = load_features(trained, workshop.store, workshop.data, "original")
    network = restore_network(trained, workshop.prepared.info, workshop.data.device)
    rows = workshop.prepared.info.inputs.batcher(
        workshop.data.search.train.values, workshop.data.device
    )
    expected = networks.extract_features(network, rows)
    torch.testing.assert_close(stored["views"], expected[None], rtol=0, atol=1e-6)
    augmented, _ = load_features(trained, workshop.store, workshop.data)
    assert len(augmented["views"]) == FEATURE_VIEWS
    assert torch.equal(augmented["validation"], stored["validation"])


def test_a_refinement_is_trained_on_the_views_that_it_names(workshop, trained):
    for views, count in (("augmented", FEATURE_VIEWS), ("original", 1)):
        part = {"macal": {**MACAL["macal"], "views": views}}
        run = workshop.open(request(workshop.prepared, "refine", part, trained))
        assert len(run.trainer._views) == count


def test_loading_stored_features_returns_the_seconds_of_their_computation(workshop):
    trained = workshop.compute(request(workshop.prepared, protocol={"epochs": 1}, seed=1))
    spent = [load_features(trained, workshop.store, workshop.data)[1] for _ in range(2)]
    (path,) = (
        p
        for p in workshop.store.root.rglob("record.json")
        if "features" in p.parts and json.loads(p.read_text())["upstream"] == trained.key
    )
    assert spent == [0.0, json.loads(path.read_text())["seconds"]]
    assert spent[1] > 0


@pytest.mark.parametrize(("asked", "used"), [(None, "crop-flip"), ("none", "none")])
def test_views_are_augmented_as_the_training_was(asked, used):
    protocol = protocol_from({"epochs": 1, "batch_size": 8, "lr": 0.1, "augmentation": asked})
    inputs = SimpleNamespace(augmentation="crop-flip")
    data: Any = SimpleNamespace(prepared=SimpleNamespace(info=SimpleNamespace(inputs=inputs)))
    trained: Any = SimpleNamespace(record={"request": {"protocol": protocol.to_dict()}})
    assert refine._augmentation(trained, data) == used


@pytest.mark.parametrize(
    ("optimizer", "expected"), [("sgd", (0.5, 0.3)), ("adam", (0.9, 5e-4)), ("adamw", (0.9, 5e-4))]
)
def test_a_head_moves_as_its_network_did_if_that_was_by_sgd(workshop, trained, optimizer, expected):
    own = {"optimizer": optimizer, "momentum": 0.5, "weight_decay": 0.3}
    run = workshop.open(request(workshop.prepared, "refine", MACAL, trained, protocol=own))
    steps = run.trainer.optimizer
    assert (steps.momentum, steps.weight_decay) == expected
    assert run.trainer.batch_size == 50


def test_without_augmentation_all_views_are_one(workshop):
    trained = workshop.compute(request(workshop.prepared, protocol={"epochs": 1}))
    first, second = (
        load_features(trained, workshop.store, workshop.data, views)[0]["views"]
        for views in ("augmented", "original")
    )
    assert len(first) == 1
    assert torch.equal(first, second)
    records = (workshop.store.root / "features").glob("*/*/record.json")
    assert sum(trained.key in record.read_text() for record in records) == 1


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc/self/maps")
def test_features_of_all_views_are_stacked_in_a_file(tmp_path):
    exact = [torch.randn(5, 3), torch.randn(5, 3)]
    narrow = [view.bfloat16().float() for view in exact]
    for views, dtype in (
        (narrow, torch.bfloat16),
        (exact, torch.float32),
        ([narrow[0], exact[0]], torch.float32),
        ([exact[0], narrow[0]], torch.float32),
    ):
        stacked = refine._stacked(iter(views), 2, tmp_path)
        assert stacked.dtype == dtype
        assert torch.equal(stacked.float(), torch.stack(views))
        assert str(tmp_path) in Path("/proc/self/maps").read_text()
        del stacked
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_for_features_is_named(tmp_path, monkeypatch):
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    with pytest.raises(StorageError, match=rf"^cannot write features below {tmp_path}: .*No"):
        refine._in_file((2, 3), torch.float32, tmp_path)


def test_features_that_another_trial_computes_meanwhile_are_waited_for(tmp_path, monkeypatch):
    workshop = Workshop(tmp_path)
    trained = workshop.compute(request(workshop.prepared, protocol={"epochs": 1}))
    lock = workshop.store.lock

    def waited(ref: ArtifactRef) -> Any:
        load_features(trained, type(workshop.store)(workshop.store.root), workshop.data)
        monkeypatch.setattr(refine, "_compute_features", lambda *_: pytest.fail("computed again"))
        return lock(ref)

    monkeypatch.setattr(workshop.store, "lock", waited)
    assert load_features(trained, workshop.store, workshop.data)[0]["views"].shape[0] == 1
