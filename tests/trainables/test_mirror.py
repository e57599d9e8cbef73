"""Copies of artifacts on object storage, here fsspec's own in memory and on a local path."""

from __future__ import annotations

import shutil
from pathlib import Path

import fsspec
import pytest
import torch

from trainables.artifacts import Artifact, ArtifactStore
from trainables.errors import InputError, StorageError
from trainables.mirror import Mirror

KEY = "ab" * 32
TENSORS = {"weights": {"w": torch.arange(3.0)}}


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return (tmp_path / "bucket").as_uri()
    return f"memory://{tmp_path.name}/bucket"


def store_at(folder: Path, url: str | None = None) -> ArtifactStore:
    store = ArtifactStore(folder)
    if url is not None:
        store.mirror_to(url)
    return store


def write(store: ArtifactStore) -> Artifact:
    return store.write("train", KEY, TENSORS, {"metrics": {"val_ece": 0.1}})


def test_another_machine_finds_what_this_one_computed(tmp_path: Path, url: str) -> None:
    write(store_at(tmp_path / "one", url))
    other = store_at(tmp_path / "two", url)
    assert other.contains("train", KEY)
    found = other.find("train", KEY)
    assert found is not None
    assert torch.equal(found.tensors("weights")["w"], TENSORS["weights"]["w"])
    assert found.record == {"metrics": {"val_ece": 0.1}}


def test_a_store_knows_its_mirror_by_its_folder(tmp_path: Path, url: str) -> None:
    store_at(tmp_path / "one", url)
    write(ArtifactStore(tmp_path / "one"))
    assert Mirror(url).contains(f"train/{KEY[:2]}/{KEY}")
    assert ArtifactStore(tmp_path / "two").find("train", KEY) is None


def test_a_damaged_artifact_is_taken_from_the_mirror(tmp_path: Path, url: str) -> None:
    notices: list[str] = []
    store_at(tmp_path / "one", url)
    store = ArtifactStore(tmp_path / "one", notices.append)
    damaged = write(store).directory / "weights.safetensors"
    damaged.write_bytes(b"x")
    found = store.find("train", KEY)
    assert found is not None
    assert torch.equal(found.tensors("weights")["w"], TENSORS["weights"]["w"])
    assert len(notices) == 1


def test_a_copy_that_was_cut_short_is_none(tmp_path: Path, url: str) -> None:
    write(store_at(tmp_path / "one", url))
    files, root = fsspec.core.url_to_fs(url)
    files.rm(f"{root}/train/{KEY[:2]}/{KEY}/manifest.json")
    assert store_at(tmp_path / "two", url).find("train", KEY) is None
    shutil.rmtree(tmp_path / "one" / "train")
    write(store_at(tmp_path / "one", url))
    assert store_at(tmp_path / "two", url).find("train", KEY) is not None


def test_a_damaged_copy_is_not_used(tmp_path: Path, url: str) -> None:
    write(store_at(tmp_path / "one", url))
    files, root = fsspec.core.url_to_fs(url)
    files.pipe_file(f"{root}/train/{KEY[:2]}/{KEY}/weights.safetensors", b"x")
    assert store_at(tmp_path / "two", url).find("train", KEY) is None


def test_a_mirror_that_takes_nothing_is_a_failure_of_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_at(tmp_path / "one", "memory://full")

    def refuse(self: object, *_: object, **__: object) -> None:
        raise PermissionError("the bucket is full")

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.put_file", refuse)
    with pytest.raises(StorageError, match=r"mirror memory://full: PermissionError: the bucket"):
        write(store)


@pytest.mark.parametrize("url", ["nothing://bucket", "s3://bucket/path"])
def test_a_url_without_a_driver_is_refused(url: str) -> None:
    with pytest.raises(InputError, match=f"mirror '{url}' cannot be used"):
        Mirror(url)
