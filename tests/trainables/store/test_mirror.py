"""Copies of artifacts on object storage, here fsspec's own in memory and on a local path."""

from __future__ import annotations

import errno
import shutil
import sys
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from trainables.common.errors import InputError, StorageError
from trainables.store.artifacts import Artifact, ArtifactStore
from trainables.store.mirror import PAUSES, Mirror

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
    place = tmp_path / "of" / "one"
    store_at(place, f"{url}/before").mirror_to(url)
    assert (place / "mirror").read_text() == url
    write(ArtifactStore(place))
    assert Mirror(url).pull(f"train/{KEY[:2]}/{KEY}", tmp_path / "copy")
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


def test_a_copy_has_files_of_one_folder_alone(tmp_path: Path) -> None:
    files, root = fsspec.core.url_to_fs(f"memory://{tmp_path.name}/bucket")
    for name, content in (("manifest.json", b'{"../stray": {}}'), ("../stray", b"x")):
        files.pipe_file(f"{root}/folder/{name}", content)
    assert Mirror(f"memory://{tmp_path.name}/bucket").pull("folder", tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


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


class Flaky(MemoryFileSystem):
    """Object storage that is busy, slow, away, or breaks off, a number of times."""

    protocol = "flaky"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    faults: ClassVar[list[Exception]] = []
    calls: ClassVar[list[str]] = []

    def _stumble(self, call: str) -> None:
        self.calls.append(call)
        if self.faults:
            raise self.faults.pop(0)

    def put_file(self, lpath: str, rpath: str, **more: Any) -> None:
        self._stumble(f"put {Path(rpath).name}")
        super().put_file(lpath, rpath, **more)

    def get_file(self, rpath: str, lpath: str, **more: Any) -> None:
        Path(lpath).write_bytes(b"half")
        self._stumble(f"get {Path(rpath).name}")
        super().get_file(rpath, lpath, **more)

    def cat_file(self, path: str, **more: Any) -> bytes:
        self._stumble(f"cat {Path(path).name}")
        return bytes(super().cat_file(path, **more))


fsspec.register_implementation("flaky", Flaky, clobber=True)
FLAKY = "flaky://bucket/path"
BUSY = OSError(errno.EBUSY, "Please reduce your request rate. (503 SlowDown)")


class DriverError(Exception):
    """Of a driver's own kind, as botocore's and aiohttp's are."""


PASSING = [BUSY, TimeoutError("read"), ConnectionResetError("peer"), DriverError("503")]
AWAY = [BUSY] * 1000


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> type[Flaky]:
    monkeypatch.setattr("trainables.store.mirror.PAUSES", (0.01, 0.01, 0.01))
    for kept in (Flaky.store, Flaky.faults, Flaky.calls):
        kept.clear()
    return Flaky


def whole(folder: Path) -> bool:
    """Tell whether a machine that has nothing finds an intact copy of the artifact."""
    found = store_at(folder, FLAKY).find("train", KEY)
    return found is not None and torch.equal(found.tensors("weights")["w"], TENSORS["weights"]["w"])


@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("times", [1, 3])
def test_what_passes_is_tried_again(
    fault: Exception, times: int, flaky: type[Flaky], tmp_path: Path
) -> None:
    store = store_at(tmp_path / "one", FLAKY)
    flaky.faults[:] = [fault] * times
    write(store)
    assert store.deliver() == 0
    flaky.faults[:] = [fault] * times
    assert whole(tmp_path / "two")


def test_a_folder_that_is_not_made_at_once_is_tried_again(
    flaky: type[Flaky], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, faults = Flaky.makedirs, [BUSY]

    def stumble(files: Flaky, path: str, exist_ok: bool = False) -> None:
        if faults:
            raise faults.pop()
        real(files, path, exist_ok)

    monkeypatch.setattr(Flaky, "makedirs", stumble)
    write(store_at(tmp_path / "one", FLAKY))
    assert (faults, whole(tmp_path / "two")) == ([], True)
    faults[:] = [BUSY] * 4
    store = store_at(tmp_path / "one", FLAKY)
    store.write("train", "cd" * 32, TENSORS, {})
    assert (faults, store.deliver()) == ([], 0)


@pytest.mark.parametrize("name", ["record.json", "weights.safetensors", "manifest.json"])
def test_whichever_file_does_not_come_at_once_is_asked_for_again(
    name: str, flaky: type[Flaky], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store_at(tmp_path / "one", FLAKY))
    faults = [BUSY] * 3

    def stumble(files: Flaky, call: str) -> None:
        if call == f"get {name}" and faults:
            raise faults.pop()

    monkeypatch.setattr(Flaky, "_stumble", stumble)
    assert whole(tmp_path / "two")
    assert faults == []


def test_two_may_deliver_the_same(
    flaky: type[Flaky], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_at(tmp_path / "one", FLAKY)
    flaky.faults[:] = AWAY
    for key in (KEY, "cd" * 32):
        store.write("train", key, TENSORS, {})
    flaky.faults.clear()

    def overtake(files: Flaky, call: str) -> None:
        for note in (tmp_path / "one" / "unmirrored").iterdir():
            note.unlink()

    monkeypatch.setattr(Flaky, "_stumble", overtake)
    assert store.deliver() == 0
    assert store_at(tmp_path / "two", FLAKY).contains("train", "cd" * 32)


def test_what_waits_of_two_stages_is_sent_for_each(flaky: type[Flaky], tmp_path: Path) -> None:
    store = store_at(tmp_path / "one", FLAKY)
    flaky.faults[:] = AWAY
    for stage in ("train", "refine"):
        store.write(stage, KEY, TENSORS, {})
    flaky.faults.clear()
    assert store.deliver() == 0
    other = store_at(tmp_path / "two", FLAKY)
    assert other.contains("train", KEY)
    assert other.contains("refine", KEY)


def test_what_cannot_be_noted_for_the_mirror_is_not_stored(
    flaky: type[Flaky], tmp_path: Path
) -> None:
    store = store_at(tmp_path, FLAKY)
    (tmp_path / "unmirrored").write_text("a file")
    place = store.path("train", KEY)
    with pytest.raises(StorageError, match=f"^cannot write artifact {place}: .*unmirrored"):
        write(store)
    assert list(place.parent.iterdir()) == []


@pytest.mark.parametrize(
    "kind",
    [
        FileNotFoundError,
        FileExistsError,
        PermissionError,
        NotADirectoryError,
        IsADirectoryError,
        NotImplementedError,
        ValueError,
        TypeError,
    ],
)
def test_what_lasts_is_not_tried_again(
    kind: type[Exception], flaky: type[Flaky], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact, asked = write(store_at(tmp_path / "one")), []

    def refuse(self: Flaky, call: str) -> None:
        if call.startswith("put"):
            asked.append(call)
            raise kind("no")

    monkeypatch.setattr(Flaky, "_stumble", refuse)
    with pytest.raises(StorageError, match=rf"mirror flaky://bucket/path: {kind.__name__}: no"):
        Mirror(FLAKY).push(artifact.directory, "x")
    assert len(asked) == 1


class Clock:
    """Stands still but while something sleeps, and for each request that fails."""

    def __init__(self, patch: pytest.MonkeyPatch, request: float = 0.0) -> None:
        self.now, self.slept = 0.0, list[float]()

        def stumble(files: Flaky, call: str) -> None:
            self.now += request
            real(files, call)

        real = Flaky._stumble
        patch.setattr(Flaky, "_stumble", stumble)
        patch.setattr("trainables.store.mirror.time", self)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.mark.parametrize(
    ("request_seconds", "slept"), [(1.0, [0.5, 1.0, 2.0]), (29.9, [0.5]), (30.1, [])]
)
def test_further_attempts_end_after_half_a_minute(
    request_seconds: float, slept: list[float], flaky: type[Flaky], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainables.store.mirror.PAUSES", PAUSES)  # As nobody has shortened them.
    clock = Clock(monkeypatch, request_seconds)
    flaky.faults[:] = AWAY
    with pytest.raises(StorageError, match="Please reduce"):
        Mirror(FLAKY).pull("x", Path("x"))
    assert clock.slept == slept
    assert len(flaky.calls) == len(slept) + 1


def test_a_mirror_that_failed_is_asked_again_after_a_minute(
    flaky: type[Flaky], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, notices = Clock(monkeypatch), list[str]()
    store_at(tmp_path, FLAKY)
    store = ArtifactStore(tmp_path, notices.append)
    flaky.faults[:] = AWAY
    for now, asked, told in (
        (0.0, 4, 1),
        (59.0, 4, 1),
        (61.0, 8, 2),
        (120.0, 8, 2),
        (122.0, 12, 3),
    ):
        clock.now = now
        assert not store.contains("train", KEY)
        assert (len(flaky.calls), len(notices)) == (asked, told)


def test_what_waits_is_sent_until_the_mirror_fails(
    flaky: type[Flaky], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ["aa" * 32, "bb" * 32, "cc" * 32, "dd" * 32]
    store = store_at(tmp_path / "one", FLAKY)
    flaky.faults[:] = AWAY
    for key in keys[::-1]:
        store.write("train", key, TENSORS, {})
    flaky.faults.clear()
    flaky.calls.clear()

    def stumble(self: Flaky, call: str) -> None:
        self.calls.append(call)
        if len(self.calls) > 4:  # A look at the first one's manifest, then its three files.
            raise BUSY

    with monkeypatch.context() as patch:
        patch.setattr(Flaky, "_stumble", stumble)
        assert store.deliver() == 3
    assert flaky.calls[4:] == ["cat manifest.json"] * 4
    other = store_at(tmp_path / "two", FLAKY)
    assert [other.contains("train", key) for key in keys] == [True, False, False, False]
    shutil.rmtree(store.path("train", keys[1]))
    (store.path("train", keys[2]) / "manifest.json").unlink()  # What is not whole is not sent.
    assert store.deliver() == 0
    assert [other.contains("train", key) for key in keys] == [True, False, False, True]
    assert {Path(name).parent.name for name in Flaky.store} == {keys[0], keys[3]}


def test_what_is_there_is_not_sent_again_and_the_manifest_comes_last(
    flaky: type[Flaky], tmp_path: Path
) -> None:
    store = store_at(tmp_path, FLAKY)
    for _ in range(2):
        write(store)
    sent = [call for call in flaky.calls if call.startswith("put")]
    assert sent == ["put record.json", "put weights.safetensors", "put manifest.json"]
    assert list((tmp_path / "unmirrored").iterdir()) == []
    flaky.calls.clear()
    assert store.find("train", KEY) is not None
    assert store.contains("train", KEY)
    assert flaky.calls == [], "what is here is not asked for"


def test_two_that_take_the_same_copy_do_not_hinder_each_other(
    flaky: type[Flaky], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = write(store_at(tmp_path / "one", FLAKY))
    place, relative = tmp_path / "two" / KEY, f"train/{KEY[:2]}/{KEY}"

    def overtake(self: Flaky, call: str) -> None:
        if call == "get manifest.json":
            shutil.copytree(artifact.directory, place)

    with monkeypatch.context() as patch:
        patch.setattr(Flaky, "_stumble", overtake)
        assert Mirror(FLAKY).pull(relative, place)
    assert [path.name for path in place.parent.iterdir()] == [KEY]
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=f"^{tmp_path}/file/x cannot be written: "):
        Mirror(FLAKY).pull(relative, tmp_path / "file" / "x")


def test_what_is_being_fetched_lies_where_gc_knows_it(
    flaky: type[Flaky], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store_at(tmp_path / "one", FLAKY))
    drafts, real = set[Path](), Flaky.get_file

    def look(files: Flaky, rpath: str, lpath: str, **more: Any) -> None:
        drafts.add(Path(lpath).parent)
        real(files, rpath, lpath, **more)

    monkeypatch.setattr(Flaky, "get_file", look)
    assert whole(tmp_path / "two")
    place = ArtifactStore(tmp_path / "two").path("train", KEY)
    assert [(draft.parent, draft.suffix) for draft in drafts] == [(place.parent, ".tmp")]
    assert place not in drafts


def test_a_mirror_that_is_away_ends_nothing_and_leaves_no_hole(
    flaky: type[Flaky], tmp_path: Path
) -> None:
    notices: list[str] = []
    store = ArtifactStore(tmp_path / "one", notices.append)
    store.mirror_to(FLAKY)
    flaky.faults[:] = AWAY
    artifact = write(store)
    assert store.find("train", KEY) == artifact
    assert store.find("train", "cd" * 32) is None
    assert len(notices) == 1, "said once"
    assert notices == [f"mirror flaky://bucket/path: OSError: {BUSY}; it is asked again later"]
    assert store.deliver() == 1
    flaky.faults.clear()
    assert not whole(tmp_path / "two")
    assert ArtifactStore(tmp_path / "one").deliver() == 0
    assert whole(tmp_path / "three")
    assert ArtifactStore(tmp_path / "one").deliver() == 0


@pytest.mark.parametrize("sent", [0, 1, 2])
def test_an_upload_that_breaks_off_is_taken_for_nothing_and_done_again(
    sent: int, flaky: type[Flaky], tmp_path: Path
) -> None:
    store = store_at(tmp_path / "one", FLAKY)
    put = iter(range(1000))

    def break_off(self: Flaky, call: str) -> None:
        if call.startswith("put") and next(put) >= sent:
            raise BUSY

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Flaky, "_stumble", break_off)
        write(store)
    assert len(Flaky.store) == sent
    assert not whole(tmp_path / "two")
    assert store.deliver() == 0
    assert whole(tmp_path / "three")
    assert flaky.calls[-1] == "get manifest.json"


def test_half_a_manifest_is_none(flaky: type[Flaky], tmp_path: Path) -> None:
    store = store_at(tmp_path / "one", FLAKY)
    write(store)
    (manifest,) = (path for path in Flaky.store if path.endswith("manifest.json"))
    content = Flaky().cat_file(manifest)
    for number, other in enumerate((content[: len(content) // 2], b"3", b'"text"', b"[1]")):
        Flaky().pipe_file(manifest, other)
        assert not whole(tmp_path / f"two{number}")
        Mirror(FLAKY).push(store.path("train", KEY), f"train/{KEY[:2]}/{KEY}")
        assert whole(tmp_path / f"three{number}")


def test_a_process_that_dies_before_it_sends_leaves_no_hole(
    flaky: type[Flaky], tmp_path: Path
) -> None:
    store = store_at(tmp_path / "one", FLAKY)

    class DiedError(BaseException):
        """As a process that is killed: nothing after it happens."""

    def die(self: Flaky, call: str) -> None:
        raise DiedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Flaky, "_stumble", die)
        with pytest.raises(DiedError):
            write(store)
    assert ArtifactStore(tmp_path / "one").deliver() == 0
    assert whole(tmp_path / "two")


def test_a_url_of_an_unknown_kind_is_refused_and_not_kept(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="mirror 'nothing://bucket' cannot be used"):
        store_at(tmp_path, "nothing://bucket")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=f"^cannot write {tmp_path}/file/mirror: "):
        store_at(tmp_path / "file", "memory://bucket")


def test_what_a_driver_says_is_cut_and_put_into_a_line(
    flaky: type[Flaky], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = f"two\n  lines {'x' * 200}"
    flaky.faults[:] = [PermissionError(said)]
    with pytest.raises(StorageError) as told:
        Mirror(FLAKY).pull("x", Path("x"))
    reason = f"PermissionError: two lines {'x' * 200}"[:160]
    assert str(told.value) == f"mirror flaky://bucket/path: {reason}"
    for kind in (ValueError, OSError, TypeError, AttributeError):

        def refuse(*_: Any, kind: type[Exception] = kind) -> None:
            raise kind(said)

        monkeypatch.setattr(fsspec.core, "url_to_fs", refuse)
        with pytest.raises(InputError) as refused:
            Mirror(FLAKY)
        reason = f"two lines {'x' * 200}"[:160]
        assert str(refused.value) == f"mirror '{FLAKY}' cannot be used: {reason}"


def test_what_another_kind_of_storage_needs_is_said_by_fsspec(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "adlfs", None)
    with pytest.raises(InputError, match=r"mirror 'abfs://s3/path' cannot be used: .*adlfs"):
        Mirror("abfs://s3/path")


STORED = (
    "holds a login, a query or a fragment, which would be stored; give the login as the driver "
    "reads it, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
)
BARE = "has a bare @ / ? or # in its login (write %40 %2F %3F %23); "
NOWHERE = "is no address, or its port is not 1 to 65535; "
WITHOUT = "allowed: s3://BUCKET/PATH, without a login"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("s3://KEY:planted-secret@bucket/path", f"'s3://bucket/path' {STORED}"),
        ("s3://bucket/path?secret=planted-secret", f"'s3://bucket/path' {STORED}"),
        ("sftp://planted-secret@host/path", f"'sftp://host/path' {STORED}"),
        ("ftp://me:planted-secret/@host/path", f"'ftp://***' {BARE}{WITHOUT}"),
        ("s3://bucket/path#planted-secret", f"'s3://bucket/path' {STORED}"),
        (
            "simplecache::s3://KEY:planted-secret@bucket/path",
            f"'simplecache::s3://bucket/path' {STORED}",
        ),
        (
            "filecache::simplecache::s3://KEY:planted-secret@bucket/path",
            f"'filecache::simplecache::s3://bucket/path' {STORED}",
        ),
        ("http://host:99999/x", f"'http://host:99999/x' {NOWHERE}{WITHOUT}"),
        ("ftp://[::1/x", f"'ftp://***' {NOWHERE}{WITHOUT}"),
        ("ftp://h:abc/x", f"'ftp://***' {NOWHERE}{WITHOUT}"),
    ],
)
def test_a_url_with_a_login_or_of_no_server_is_refused_and_told(url: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        Mirror(url)
    assert str(caught.value) == f"mirror {told}"


@pytest.mark.parametrize("url", ["s3://", "dir://"])
def test_a_url_of_nothing_is_refused(url: str) -> None:
    with pytest.raises(InputError, match=f"^mirror '{url}' cannot be used: "):
        Mirror(url)
