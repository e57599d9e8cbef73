import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError

from tests.buckets import disturbed_buckets, log_in, make_bucket
from tests.network_folder import Client
from tests.own_process import OwnProcess, run_script
from trainables.common.errors import StorageError
from trainables.common.files import damage
from trainables.common.paths import storage_folder
from trainables.common.stages import ArtifactRef
from trainables.store import artifacts
from trainables.store.artifacts import Artifact, ArtifactStore, stage_key

KEY = stage_key("train", seed=0)
FILES = {"weights": {"w": torch.arange(6.0).view(2, 3)}, "validation": {"logits": torch.ones(4, 2)}}
RECORD = {"metrics": {"val_ece": 0.125}, "request": {"seed": 0}}
DETERMINANTS: dict[str, Any] = {
    "parts": {"mbls": {"margin": 6.0, "weight": 0.1}},
    "model": "convnet",
    "protocol": {"epochs": 3, "milestones": [1, 2]},
    "seed": 0,
    "upstream": None,
}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with disturbed_buckets() as (address, _):
        yield address


@pytest.fixture(params=["folder", "bucket"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ArtifactStore:
    if request.param == "folder":
        return ArtifactStore(tmp_path / "store")
    log_in(request.getfixturevalue("server"), monkeypatch)
    monkeypatch.setenv("CALSWEEP_CACHE", str(tmp_path))
    address = f"s3://{make_bucket(os.environ['AWS_ENDPOINT_URL'])}/x"
    return ArtifactStore(storage_folder(address) / "artifacts")


def put(store: ArtifactStore) -> Artifact:
    return store.write(ArtifactRef("train", KEY), FILES, RECORD)


@pytest.mark.parametrize(
    "change",
    [
        {"parts": {"mbls": {"margin": 6.5, "weight": 0.1}}},
        {"parts": {"ls": {"margin": 6.0, "weight": 0.1}}},
        {"parts": {"mbls": {"margin": 6.0}}},
        {"model": "resnet8"},
        {"protocol": {"epochs": 4, "milestones": [1, 2]}},
        {"protocol": {"epochs": 3, "milestones": [2, 1]}},
        {"seed": 1},
        {"seed": True},
        {"seed": "0"},
        {"upstream": "a"},
        {"extra": None},
    ],
)
def test_every_determinant_changes_the_key(change):
    assert stage_key("train", **{**DETERMINANTS, **change}) != stage_key("train", **DETERMINANTS)


def test_stage_and_schema_change_the_key(monkeypatch):
    before = stage_key("train", **DETERMINANTS)
    assert stage_key("refine", **DETERMINANTS) != before
    assert stage_key("train", **DETERMINANTS, schema=0) != before
    monkeypatch.setattr(artifacts, "SCHEMA_VERSION", artifacts.SCHEMA_VERSION + 1)
    assert stage_key("train", **DETERMINANTS) != before


def test_order_and_spelling_of_numbers_do_not_change_the_key():
    turned = dict(reversed(DETERMINANTS.items()))
    turned["parts"] = {"mbls": {"weight": 0.1, "margin": 6}}
    turned["protocol"] = {"milestones": (1.0, 2), "epochs": 3.0}
    assert stage_key("train", **turned) == stage_key("train", **DETERMINANTS)
    assert len(stage_key("train")) == 64


def test_the_key_is_the_same_on_every_machine():
    known = "f4601e93d8349cfc9a49ea56fd9e4859fcbcec6cb9ffbcabe6bd1108f781d6a2"
    assert stage_key("train", **DETERMINANTS) == known


def test_stage_keys_distinguish_flags_from_numbers():
    assert stage_key("train", nesterov=True) != stage_key("train", nesterov=1)
    assert stage_key("train", nesterov=False) != stage_key("train", nesterov=0.0)


def test_a_stage_key_refuses_values_that_json_cannot_hold():
    with pytest.raises(TypeError):
        stage_key("train", data=Path("."))
    with pytest.raises(ValueError, match="JSON"):
        stage_key("train", lr=float("nan"))


def test_a_stored_artifact_is_found_again(store):
    assert store.find(ArtifactRef("train", KEY)) is None
    assert not store.contains(ArtifactRef("train", KEY))
    put(store)
    found = store.find(ArtifactRef("train", KEY))
    assert store.contains(ArtifactRef("train", KEY))
    assert found.record == RECORD
    assert torch.equal(found.tensors("weights")["w"], FILES["weights"]["w"])
    assert torch.equal(found.tensors("validation")["logits"], FILES["validation"]["logits"])
    assert store.find(ArtifactRef("refine", KEY)) is None
    store.write(ArtifactRef("refine", KEY), FILES, RECORD)
    assert [
        getattr(store.find(ArtifactRef(stage, KEY)), "stage", "") for stage in ("refine", "train")
    ] == ["refine", "train"]


@pytest.mark.parametrize("store", ["folder"], indirect=True)
def test_artifact_without_a_manifest_is_none(store):
    (put(store).directory / "manifest.json").unlink()
    assert not store.contains(ArtifactRef("train", KEY))


@pytest.mark.parametrize("store", ["folder"], indirect=True)
def test_artifacts_have_the_paths_that_later_versions_expect(store):
    place = store.root / "train" / KEY[:2]
    assert store.path(ArtifactRef("train", KEY)) == put(store).directory == place / KEY
    assert store.lock(ArtifactRef("train", KEY)).path == place / f"{KEY}.lock"
    assert (
        store.checkpoint(ArtifactRef("train", KEY)).path
        == store.root / "checkpoints" / "train" / f"{KEY}.pt"
    )
    assert store.metrics(ArtifactRef("train", KEY)) == RECORD["metrics"]
    assert store.deliver() == 0


def test_tensors_of_any_layout_are_stored(store):
    images = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    slices = torch.rand(6, 4)[::2].requires_grad_()
    stored = store.write(
        ArtifactRef("train", KEY), {"weights": {"images": images, "slices": slices}}, {}
    )
    weights = stored.tensors("weights")
    assert torch.equal(weights["images"], images)
    assert torch.equal(weights["slices"], slices)


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda d: os.truncate(d / "weights.safetensors", 20),
    "flipped byte of the record": lambda d: flip_a_byte(d / "record.json"),
    "missing tensors": lambda d: (d / "validation.safetensors").unlink(),
    "missing manifest": lambda d: (d / "manifest.json").unlink(),
    "file instead of a folder": lambda d: (d.rename(d.with_name("aside")), d.write_text("x")),
}


@pytest.mark.parametrize("store", ["folder"], indirect=True)
@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_noticed_logged_removed_and_repaired(store, kind, caplog):
    directory = put(store).directory
    DAMAGE[kind](directory)
    why = damage(directory, ["record.json"])
    assert why
    with caplog.at_level(logging.WARNING):
        assert store.find(ArtifactRef("train", KEY)) is None
    told = f"artifact {directory} is damaged ({why}): it counts as missing"
    assert [record.getMessage() for record in caplog.records] == [told]
    assert not directory.exists()
    assert not store.contains(ArtifactRef("train", KEY))
    put(store)
    found = store.find(ArtifactRef("train", KEY))
    assert torch.equal(found.tensors("weights")["w"], FILES["weights"]["w"])


def test_a_reader_changes_neither_times_nor_damaged_artifacts(tmp_path):
    told: list[str] = []
    store = ArtifactStore(tmp_path / "store", told.append)
    stored = put(store)

    def state():
        return {path: path.stat().st_mtime_ns for path in stored.directory.rglob("*")}

    for damaged in (False, True):
        for path in stored.directory.iterdir():
            os.utime(path, ns=(1, 1))
        if damaged:
            flip_a_byte(stored.directory / "weights.safetensors")
        before = state()
        found = store.reader().find(stored.ref)
        assert (found is None) == damaged
        assert state() == before
    assert "is damaged" in store.fault(stored.ref)
    assert told == []
    assert store.find(stored.ref) is None
    assert not stored.directory.exists()


def test_an_empty_key_finds_no_artifact(store):
    """As of a trial that still runs: the folder of a whole stage is not a damaged artifact."""
    kept = put(store)
    assert store.find(ArtifactRef("train", "")) is None
    assert not store.contains(ArtifactRef("train", ""))
    assert store.find(ArtifactRef("train", kept.key)) == kept


@pytest.mark.parametrize("store", ["folder"], indirect=True)
def test_writing_an_artifact_replaces_a_damaged_one(store):
    flip_a_byte(put(store).directory / "weights.safetensors")
    put(store)
    assert store.find(ArtifactRef("train", KEY)) is not None


@pytest.mark.parametrize("store", ["folder"], indirect=True)
def test_an_artifact_that_another_process_repaired_meanwhile_stays(store, monkeypatch):
    directory = put(store).directory
    judged = []

    def damage_once(path: Path) -> str:
        judged.append(path)
        return "flipped" if len(judged) == 1 else ""

    monkeypatch.setattr(artifacts, "_damage", damage_once)
    assert store.find(ArtifactRef("train", KEY)) is None
    monkeypatch.undo()
    assert judged == [directory, directory]
    assert store.find(ArtifactRef("train", KEY)) is not None


@pytest.mark.parametrize("store", ["folder"], indirect=True)
def test_artifacts_come_and_go_under_one_lock(store, monkeypatch):
    """Else what one process has just mended may be removed by another that saw it damaged."""
    real, held = artifacts._remove_damaged, list[bool]()

    def look(path: Path) -> None:
        try:
            with FileLock(store.root / ".changing.lock", timeout=0):
                held.append(False)
        except Timeout:
            held.append(True)
        real(path)

    monkeypatch.setattr(artifacts, "_remove_damaged", look)
    flip_a_byte(put(store).directory / "weights.safetensors")
    assert store.find(ArtifactRef("train", KEY)) is None
    put(store)
    assert held == [True] * 3


def test_the_first_writer_wins_and_leaves_no_draft(store):
    first = put(store)
    stamp = (first.directory / "manifest.json").stat().st_mtime_ns
    put(store)
    assert (first.directory / "manifest.json").stat().st_mtime_ns == stamp
    assert drafts(store) == []


def test_a_draft_is_next_to_its_artifact_with_the_suffix_tmp(store, monkeypatch):
    seen, real = list[Path](), artifacts.seal

    def look(draft: Path) -> None:
        seen.append(draft)
        real(draft)

    monkeypatch.setattr(artifacts, "seal", look)
    (directory,) = {put(store).directory, put(store).directory}
    assert [(draft.parent, draft.suffix) for draft in seen] == [(directory.parent, ".tmp")] * 2
    assert len({directory, *seen}) == 3


def drafts(store: ArtifactStore) -> list[Path]:
    return list(store.root.rglob("*.tmp"))


def no_space(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def no_space_in_safetensors(*_: object, **__: object) -> None:
    raise SafetensorError("Error while serializing: I/O error: No space left on device")


@pytest.mark.parametrize(
    ("target", "raising"),
    [
        ("safetensors.save_file", no_space),
        ("safetensors.save_file", no_space_in_safetensors),
        ("seal", no_space),
        ("place_folder", no_space),
        ("Path.mkdir", no_space),
        ("Path.write_text", no_space),
    ],
)
def test_a_full_disk_is_named_and_leaves_nothing_behind(store, monkeypatch, target, raising):
    with monkeypatch.context() as patched:
        patched.setattr(f"trainables.store.artifacts.{target}", raising)
        with pytest.raises(StorageError, match="No space left") as caught:
            put(store)
    assert str(store.path(ArtifactRef("train", KEY))) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert drafts(store) == []
    assert store.find(ArtifactRef("train", KEY)) is None
    put(store)
    assert store.find(ArtifactRef("train", KEY)) is not None


def test_a_disk_that_is_really_full(tmp_path):
    """Run in a process of its own, whose files may not grow beyond 64 KiB."""
    script = f"""
import resource, signal, sys, torch
from pathlib import Path
from trainables.common.stages import ArtifactRef
from trainables.store.artifacts import ArtifactStore
from trainables.common.errors import InputError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
store = ArtifactStore(Path({str(tmp_path)!r}))
try:
    store.write(ArtifactRef("train", "ab" * 32), {{"weights": {{"w": torch.zeros(100_000)}}}}, {{}})
except InputError as error:
    print(error)
print(len(list(store.root.rglob("*.tmp"))), store.find(ArtifactRef("train", "ab" * 32)))
store.write(ArtifactRef("train", "cd" * 32), {{"weights": {{"w": torch.zeros(100)}}}}, {{}})
print(store.find(ArtifactRef("train", "cd" * 32)) is not None)
"""
    message, left, fits = run_script(script).splitlines()
    assert message.startswith(f"cannot write artifact {tmp_path}/train/ab/abab")
    assert left == "0 None"
    assert fits == "True"


def test_a_record_that_json_cannot_hold_leaves_no_files(store):
    with pytest.raises(ValueError, match="JSON"):
        store.write(ArtifactRef("train", KEY), FILES, {"metrics": {"val_ece": float("nan")}})
    assert drafts(store) == []
    assert store.find(ArtifactRef("train", KEY)) is None


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "store").write_text("a file")
    store = ArtifactStore(tmp_path / "store")
    place = store.path(ArtifactRef("train", KEY))
    with pytest.raises(StorageError) as refusal:
        put(store)
    told = str(refusal.value)
    assert told.startswith(f"cannot write artifact {place}: [Errno {errno.ENOTDIR}] ")


COMPUTE = """
import sys, time, torch
from pathlib import Path
from trainables.common.stages import ArtifactRef
from trainables.store.artifacts import ArtifactStore
store = ArtifactStore(Path(sys.argv[1]))
Path(sys.argv[1], sys.argv[2]).touch()
while not Path(sys.argv[1], sys.argv[3]).exists():
    time.sleep(0.01)
with store.lock(ArtifactRef("train", "ab" * 32)):
    found = store.find(ArtifactRef("train", "ab" * 32))
    computed = found is None
    if computed:
        time.sleep(0.2)
        files = {"weights": {"w": torch.ones(3)}}
        found = store.write(ArtifactRef("train", "ab" * 32), files, {"by": sys.argv[2]})
print(computed, found.record["by"], float(found.tensors("weights")["w"].sum()))
"""


def test_one_of_two_processes_computes_an_artifact_and_both_get_the_result(tmp_path):
    pairs = (("one", "two"), ("two", "one"))
    processes = [OwnProcess(COMPUTE, str(tmp_path), *names) for names in pairs]
    outputs = [process.output().split() for process in processes]
    (winner,) = {by for _, by, _ in outputs}
    computed = ["True", "False"] if winner == "one" else ["False", "True"]
    assert outputs == [[each, winner, "3.0"] for each in computed]


def test_writers_without_a_lock_never_show_half_an_artifact(store):
    seen: list[Artifact | None] = []

    def write() -> None:
        for _ in range(5):
            put(store)
            seen.append(store.find(ArtifactRef("train", KEY)))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 20
    assert None not in seen
    assert drafts(store) == []


def test_a_lock_is_free_again_when_its_process_dies(store):
    script = (
        "import os, sys; from pathlib import Path\n"
        "from trainables.common.stages import ArtifactRef\n"
        "from trainables.store.artifacts import ArtifactStore\n"
        f"ArtifactStore(Path(sys.argv[1])).lock(ArtifactRef('train', {KEY!r})).take(); "
        "os._exit(9)"
    )
    assert OwnProcess(script, str(store.root), environment=os.environ).code() == 9
    lock = store.lock(ArtifactRef("train", KEY))
    assert lock.take()
    with lock:
        assert store.find(ArtifactRef("train", KEY)) is None


def test_an_artifact_of_another_machine_is_seen_at_once(tmp_path: Path) -> None:
    """Though this machine has just asked for it, and remembers that it was missing."""
    store, client, ref = ArtifactStore(tmp_path / "store"), Client(), ArtifactRef("train", KEY)
    ways: list[Callable[[ArtifactRef], object]] = [store.find, store.holds, store.contains]
    for way in ways:
        with client.reading():
            assert not way(ref)
    put(store)
    path = store.path(ref)
    for way in ways:
        for folder in (path, path.parent, path.parent.parent, store.root):
            client.missing.add(folder)
            with client.reading():
                assert not path.exists()
                assert way(ref)
