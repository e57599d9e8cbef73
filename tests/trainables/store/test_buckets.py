import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from tests.buckets import KINDS, Weather, log_in, make_bucket, wait_until
from tests.own_process import OwnProcess
from trainables.common.errors import AwayError, InputError, StorageError
from trainables.common.paths import bucket_address, on_this_machine, storage_folder
from trainables.common.stages import ArtifactRef
from trainables.store import cache, locks
from trainables.store.artifacts import Artifact, ArtifactStore
from trainables.store.bucket import Bucket
from trainables.store.locks import Lease

KEY = "ab" * 32
DIALECTS = pytest.mark.parametrize("address", ["s3", "gs"], indirect=True)
TENSORS = {"weights": {"w": torch.arange(3.0)}}


@pytest.fixture
def weather(disturbed: tuple[str, Weather], monkeypatch: pytest.MonkeyPatch) -> Iterator[Weather]:
    server, weather = disturbed
    log_in(server, monkeypatch)
    monkeypatch.setattr("trainables.store.bucket.PAUSES", (0.01,) * 6)
    monkeypatch.setattr(cache, "LONGEST_PAUSE", 0.2)
    yield weather
    weather.away, weather.share = False, 0.0


@pytest.fixture
def address(disturbed: tuple[str, Weather], weather: Weather, request) -> str:
    return f"{getattr(request, 'param', 's3')}://{make_bucket(disturbed[0])}/some/place"


class Machines:
    """Machines that share nothing but a bucket."""

    def __init__(self, folder: Path, address: str, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.address, self._patch = folder, address, patch
        self.notices: list[str] = []

    def store(self, name: str) -> ArtifactStore:
        self._patch.setenv("CALSWEEP_CACHE", str(self.folder / name))
        return ArtifactStore(storage_folder(self.address) / "artifacts", self.notices.append)


@pytest.fixture
def machines(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> Machines:
    return Machines(tmp_path, address, monkeypatch)


def write(store: ArtifactStore, key: str = KEY, mark: float = 1.0) -> Artifact:
    files = {**TENSORS, "mark": {"m": torch.tensor([mark])}}
    return store.write(ArtifactRef("train", key), files, {"metrics": {"val_ece": mark}})


@DIALECTS
def test_another_machine_finds_the_artifacts_in_the_bucket(machines):
    one = machines.store("one")
    write(one)
    one.settle()
    two = machines.store("two")
    assert two.contains(ArtifactRef("train", KEY))
    assert not two.holds(ArtifactRef("train", KEY))
    assert two.metrics(ArtifactRef("train", KEY)) == {"val_ece": 1.0}
    found = two.find(ArtifactRef("train", KEY))
    assert torch.equal(found.tensors("weights")["w"], TENSORS["weights"]["w"])


def test_two_writers_of_one_artifact_never_mix(machines):
    """Their files differ, in the seconds that they took, say."""
    stores = [machines.store(name) for name in ("one", "two")]
    for mark, store in enumerate(stores):
        write(store, mark=mark)
    for store in stores:
        store.settle()
    found = machines.store("three").find(ArtifactRef("train", KEY))
    assert found.record["metrics"]["val_ece"] == found.tensors("mark")["m"].item()


@pytest.mark.full
@DIALECTS
@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_passes(kind, machines, weather, monkeypatch):
    monkeypatch.setattr("tests.buckets.KINDS", (kind,))
    weather.share = 0.2
    one, keys = machines.store("one"), [f"{number:064x}" for number in range(6)]
    for number, key in enumerate(keys):
        write(one, key, float(number))
    one.settle()
    assert one.deliver() == 0
    two = machines.store("two")
    found = [two.find(ArtifactRef("train", key)) for key in keys]
    assert [each and each.record["metrics"]["val_ece"] for each in found] == [*range(6)]
    assert weather.seen[kind] > 0


def test_outage_is_queued_and_a_later_process_delivers(machines, weather):
    weather.away = True
    write(machines.store("one")).directory.exists()
    store = machines.store("one")
    assert store.find(ArtifactRef("train", KEY)) is not None
    with_notices = [text for text in machines.notices if machines.address in text]
    assert wait_until(lambda: bool(with_notices or machines.notices))
    assert machines.store("two").find(ArtifactRef("train", KEY)) is None
    weather.away = False
    assert machines.store("one").deliver() == 0
    assert machines.store("two").find(ArtifactRef("train", KEY)) is not None
    assert list((store.root.parent / "undelivered").iterdir()) == []


def test_deliver_counts_artifacts_that_wait_for_the_bucket(machines, weather, monkeypatch):
    monkeypatch.setattr(ArtifactStore.deliver, "__defaults__", ())
    weather.away = True
    store = machines.store("one")
    write(store)
    store.settle()  # A bucket that is away holds nobody up.
    assert store._cache.deliver(0.5) == 1


def test_a_note_that_disappears_while_notes_are_read_counts_as_sent(machines):
    store = machines.store("one")
    write(store)
    store.settle()
    # Listed as a note is that another thread removes before it is read.
    (store.root.parent / "undelivered" / "0").symlink_to("gone")
    assert store.deliver() == 0


@DIALECTS
def test_objects_that_do_not_match_are_never_used(machines):
    one = machines.store("one")
    write(one)
    one.settle()
    bucket = Bucket(machines.address)
    (weights,) = [name for name in bucket.names("artifacts") if "weights" in name]
    bucket.put(weights, b"half")
    two = machines.store("two")
    assert two.find(ArtifactRef("train", KEY)) is None
    assert not two.contains(ArtifactRef("train", KEY))
    assert "is damaged" in machines.notices[-1]
    write(two, mark=2.0)
    two.settle()
    found = machines.store("three").find(ArtifactRef("train", KEY))
    assert found.record["metrics"]["val_ece"] == 2.0


def test_artifact_without_its_manifest_is_none(machines):
    one = machines.store("one")
    write(one)
    one.settle()
    Bucket(machines.address).remove(f"artifacts/train/ab/{KEY}/manifest.json")
    assert machines.store("two").find(ArtifactRef("train", KEY)) is None


def test_manifest_leads_out_of_no_folder(machines, tmp_path):
    facts = {"../../stray": {"bytes": 1, "sha256": "0" * 64}}
    Bucket(machines.address).put(
        f"artifacts/train/ab/{KEY}/manifest.json", json.dumps(facts).encode()
    )
    assert machines.store("one").find(ArtifactRef("train", KEY)) is None
    assert list(tmp_path.rglob("stray*")) == []


def test_damage_here_is_mended_from_the_bucket(machines):
    store = machines.store("one")
    place = write(store).directory / "weights.safetensors"
    store.settle()
    place.write_bytes(b"x")
    found = store.find(ArtifactRef("train", KEY))
    assert torch.equal(found.tensors("weights")["w"], TENSORS["weights"]["w"])


@DIALECTS
def test_checkpoints_go_on_elsewhere(machines):
    one = machines.store("one")
    for epoch in (1, 2):
        one.checkpoint(ArtifactRef("train", KEY)).write({"epoch": epoch})
    one.settle()
    two = machines.store("two").checkpoint(ArtifactRef("train", KEY))
    assert two.exists()
    assert two.read() == {"epoch": 2}
    two.remove()
    assert not machines.store("three").checkpoint(ArtifactRef("train", KEY)).exists()


def test_local_copy_keeps_to_its_limit(machines, monkeypatch):
    monkeypatch.setenv("CALSWEEP_CACHE_GB", "0.0000001")
    store, keys = machines.store("one"), [f"{number:064x}" for number in range(3)]
    places = [write(store, key).directory for key in keys]
    store.settle()
    for place in places[:2]:
        os.utime(place / "manifest.json", (0, 0))
    store._cache._measured = -1e9
    write(store, "cd" * 32)
    store.settle()
    assert [place.exists() for place in places] == [False, False, True]
    assert store.find(ArtifactRef("train", keys[0])) is not None


@DIALECTS
def test_lease_is_one_process_s_alone(address):
    bucket = Bucket(address)
    taken: list[Lease] = []

    def take() -> None:
        lease = Lease(bucket, "leases/x")
        if lease.take():
            taken.append(lease)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 1
    taken[0].release()
    assert Lease(bucket, "leases/x").take()


@DIALECTS
def test_lease_of_a_silent_machine_passes_on(address, monkeypatch):
    for name, seconds in (("LOOK_SECONDS", 0.0), ("SILENT_SECONDS", 0.5), ("BEAT_SECONDS", 0.1)):
        monkeypatch.setattr(locks, name, seconds)
    bucket = Bucket(address)
    holder, other = Lease(bucket, "leases/x", "someone"), Lease(bucket, "leases/x")
    monkeypatch.setattr(locks, "_is_free", lambda told: bool(told.get("free")))
    assert holder.take()
    assert not wait_until(other.take, 1.0)  # It beats.
    assert other.alive
    holder._over.set()  # As if its machine stopped.
    assert wait_until(other.take, 5.0)
    assert Lease(bucket, "leases/x").holder() == ""
    holder._over.clear()
    holder.keep()
    threading.Thread(target=holder._beat, daemon=True).start()
    assert wait_until(lambda: holder.lost, 5.0)
    other.release()


def test_lease_of_a_dead_process_here_passes_on_at_once(address):
    script = (
        "import os, sys; from trainables.store.bucket import Bucket\n"
        "from trainables.store.locks import Lease\n"
        "assert Lease(Bucket(sys.argv[1]), 'leases/x').take(); os._exit(9)"
    )
    assert OwnProcess(script, address, environment=os.environ).code() == 9
    assert Lease(Bucket(address), "leases/x").take()


def test_lease_stays_with_a_process_here_though_the_clock_is_set(address, monkeypatch):
    held = Lease(Bucket(address), "leases/x")
    assert held.take()
    # What the system tells of its start moves with its clock.
    before = psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: before + 60)
    assert not Lease(Bucket(address), "leases/x").take()
    held.release()


def test_a_process_gets_the_lease_if_the_bucket_does_not_answer(address, weather):
    weather.away = True
    assert Lease(Bucket(address), "leases/x").take()


def test_refusal_is_one_line_and_no_secret(disturbed, weather, address):
    nowhere = Bucket(f"s3://bucket-{'0' * 12}/x")
    with pytest.raises(StorageError, match=r"^storage s3://bucket-0+/x: ") as refused:
        nowhere.put("a", b"b")
    weather.away = True
    with pytest.raises(AwayError) as away:
        Bucket(address).put("a", b"b")
    for told in (str(refused.value), str(away.value)):
        assert "\n" not in told
        assert "someone" not in told
        assert "secret" not in told


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_a_missing_bucket_is_not_asked_again(weather, kind):
    bucket = Bucket(f"{kind}://a-bucket-that-nobody-has-made/{'long/' * 20}x")
    for ask in (lambda: bucket.names("a"), lambda: bucket.put("a", b"x")):
        asked = len(weather.log)
        with pytest.raises(StorageError) as refused:
            ask()
        assert len(weather.log) == asked + 1
        assert str(refused.value) == (
            f"storage {bucket.address}: The specified bucket does not exist (NoSuchBucket)"
        )


def test_address_is_a_folder_of_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CALSWEEP_CACHE", str(tmp_path))
    folder = storage_folder("gs://bucket_1/a/b=c/")
    assert folder == tmp_path / "buckets" / "gs+bucket_1+a+b=c"
    assert bucket_address(folder) == "gs://bucket_1/a/b=c"
    assert bucket_address(tmp_path / "s3+bucket") is None
    elsewhere = Path("/home/other/.cache/calsweep/buckets/gs+bucket_1+a+b=c/data/x")
    assert on_this_machine(elsewhere) == folder / "data" / "x"
    assert on_this_machine(tmp_path / "data") == tmp_path / "data"
    monkeypatch.delenv("CALSWEEP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    assert storage_folder("s3://b1") == tmp_path / "own/calsweep/buckets/s3+b1"


@pytest.mark.parametrize(
    "storage", ["s3://", "s3://user:secret@bucket/x", "s3://bucket/../x", "s3:/bucket/x"]
)
def test_a_text_that_is_no_bucket_address_is_refused(storage):
    with pytest.raises(InputError, match=r"is not the address of a bucket; use s3://BUCKET") as no:
        storage_folder(storage)
    assert "secret" not in str(no.value)


def test_process_that_ends_while_it_sends_says_nothing(address, tmp_path):
    script = """
import atexit, sys, time
from pathlib import Path
from trainables.store.cache import Cache
atexit.register(time.sleep, 0.5)  # The thread that sends goes on for as long.
folder = Path(sys.argv[1])
cache = Cache(folder, sys.argv[2], print)
for number in range(60):
    (folder / str(number)).write_text("x")
    cache.keep(folder / str(number))
"""
    command = [sys.executable, "-c", script, str(tmp_path), address]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


@DIALECTS
def test_claim_needs_an_answer(address, weather, monkeypatch):
    lease = Lease(Bucket(address), "lock")
    weather.away = True
    with pytest.raises(AwayError, match="does not answer"):
        lease.claim(InputError)
    weather.away = False
    monkeypatch.setattr(locks, "LOOK_SECONDS", 0.0)
    lease.claim(InputError)
    assert lease.is_held()
    lease.release()
