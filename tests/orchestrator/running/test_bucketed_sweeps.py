"""Whole sweeps whose storage is a bucket in bad weather: the table is that of a folder."""

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.executors.in_process import InProcess
from orchestrator.loop import Loop
from orchestrator.storage import bucket_sweep
from orchestrator.storage.bucket_sweep import BucketJournal
from orchestrator.storage.events import Event, SweepEnded, TrialFinished
from orchestrator.storage.ledger import Ledger, read_ledger
from orchestrator.storage.notes import read_notes, write_note
from orchestrator.storage.storage import Storage
from tests.buckets import Weather, disturbed_buckets, impatient, log_in, make_bucket
from tests.orchestrator.one_process import one_process
from trainables.common.errors import InputError
from trainables.data import sealed_within
from trainables.jobs import Job
from trainables.losses import LOSSES
from trainables.plugins import load_plugins
from trainables.store import cache, locks
from trainables.store.bucket import Bucket
from trainables.worker import Bench, Worker, inspect_machine, remove_nonce, write_nonce

ROOT = Path(__file__).parents[3]
SWEEP = """
name: bucketed
tasks:
  - name: d
    dataset: digits
    model: convnet
    protocol: {{base: digits, epochs: 2}}
    split: {{train_limit: 100, test_limit: 50}}
recipes: [mbls, mbls+ts]
search: {{trials: 2, accuracy_tolerance: null}}
seeds: [0]
resources: {{concurrent: 1}}
executor: local
storage: "{storage}"
tracking: {{uri: "folder:{folder}/runs"}}
"""
TABLE = ["table", "bucketed", "--format", "markdown", "--metrics", "acc,ece,nll"]


@pytest.fixture(scope="module")
def disturbed() -> Iterator[tuple[str, Weather]]:
    with disturbed_buckets() as found, one_process():
        yield found


@pytest.fixture(scope="module")
def wanted(disturbed: object, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return the storage of the same sweep in a folder, and how its trials ended."""
    folder = tmp_path_factory.mktemp("folder")
    assert main(["run", write_sweep(folder, str(folder / "storage"))]) == 0
    return folder / "storage", ends(read_ledger(folder / "storage/sweeps/bucketed/journal.jsonl"))


def write_sweep(folder: Path, storage: str) -> str:
    file = folder / "sweep.yaml"
    file.write_text(SWEEP.format(storage=storage, folder=folder))
    return str(file)


def ends(ledger: Ledger) -> list[str]:
    trials = ledger.trials.values()
    return sorted(
        f"{t.study} {t.role} {t.number} {t.status} {t.objective} {sorted(t.test.items())}"
        for t in trials
    )


@pytest.fixture
def weather(disturbed: tuple[str, Weather], monkeypatch: pytest.MonkeyPatch) -> Iterator[Weather]:
    with weathered(disturbed, monkeypatch) as found:
        yield found


@contextmanager
def weathered(disturbed: tuple[str, Weather], patch: pytest.MonkeyPatch) -> Iterator[Weather]:
    log_in(disturbed[0], patch)
    journal = bucket_sweep.__name__
    impatient(patch, **{f"{journal}.SEAL_SECONDS": 0.05, f"{journal}.LAST_SECONDS": 1.0})
    yield disturbed[1]
    disturbed[1].away, disturbed[1].share = False, 0.0


def settle(server: str, folder: Path, patch: pytest.MonkeyPatch) -> str:
    """Work in a folder, with its cache; return an address in a bucket of its own."""
    patch.chdir(folder)
    patch.setenv("CALSWEEP_CACHE", str(folder / "one"))
    patch.setenv("PYTHONPATH", str(ROOT))  # For other processes.
    return f"s3://{make_bucket(server)}/of/us"


@pytest.fixture
def address(
    disturbed: tuple[str, Weather],
    weather: Weather,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    return settle(disturbed[0], tmp_path, monkeypatch)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what moves the test to a machine that has nothing."""
    return lambda: monkeypatch.setenv("CALSWEEP_CACHE", str(tmp_path / "two"))


def journal_of(address: str) -> Ledger:
    """Return what the bucket's journal tells, wherever the sweep ran."""
    folder = Storage(address).sweep("bucketed")
    folder.fetch()
    return read_ledger(folder.journal)


def test_links_out_of_a_sweep_are_not_sent(address, tmp_path, caplog):
    """The folder may belong to somebody else, and the linked file may be private."""
    sweep = Storage(address).sweep("one")
    sweep.chosen.mkdir(parents=True)
    (tmp_path / "secret").write_text("private")
    (sweep.chosen / "link.png").symlink_to(tmp_path / "secret")
    (sweep.chosen / "real.png").write_text("png")
    (sweep.chosen / "inside.png").symlink_to("real.png")
    (sweep.path / "ray-token").write_text("private")
    (sweep.chosen / "token.png").symlink_to("../ray-token")
    assert sweep.bucket.share() == 0
    sent = [f"sweeps/one/chosen/{name}" for name in ("inside.png", "real.png")]
    assert sorted(sweep.bucket.bucket.names("sweeps/one")) == sent
    fault = "is not uploaded: it links to a file outside the sweep"
    named = [f"{sweep.chosen}/{name} {fault}" for name in ("link.png", "token.png")]
    assert sorted(caplog.messages) == named


def test_a_note_of_one_machine_is_read_on_another(address, elsewhere):
    for text in ("first", "second"):
        write_note(Storage(address).sweep("one"), "sweep", text)
    elsewhere()
    sweep = Storage(address).sweep("one")
    assert read_notes(sweep) == {}
    sweep.fetch()
    assert read_notes(sweep) == {"sweep": "second"}


class TwoMachines(InProcess):
    """Computes every other job on another machine; the driver's is a third."""

    def run(self, loop: Loop, sealed: bool = True) -> None:
        machines = cycle(["one node", "another"])
        with sealed_within() if sealed else nullcontext():
            while isinstance(job := loop.next(), Job):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setenv("CALSWEEP_CACHE", next(machines))
                    worker = Worker(Bench(self.storage, sealed=sealed))
                    worker.open(job)
                    while not (report := worker.step()).ended:
                        pass
                loop.take(job, report)


@dataclass(frozen=True)
class Swept:
    """A sweep in a bucket, its driver's folder, and what was said."""

    address: str
    folder: Path
    said: str


@pytest.fixture(scope="module")
def swept(disturbed: tuple[str, Weather], tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """Compute the sweep on two machines in bad weather."""
    folder, said = tmp_path_factory.mktemp("swept"), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        weathered(disturbed, patch) as weather,
        redirect_stdout(said),
        redirect_stderr(said),
    ):
        address = settle(disturbed[0], folder, patch)
        patch.setattr("tests.orchestrator.one_process.InProcess", TwoMachines)
        file = Path(write_sweep(folder, address))
        file.write_text(file.read_text().replace("executor: local\n", ""))
        weather.share = 0.1
        assert main(["run", str(file), "--address", "auto"]) == 0
    return Swept(address, folder, said.getvalue())


@pytest.mark.full
def test_bad_weather_changes_nothing(wanted, swept, weather, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CALSWEEP_CACHE", str(tmp_path / "two"))
    assert main([*TABLE, "--storage", str(wanted[0])]) == 0
    table = capfd.readouterr().out
    weather.share = 0.15
    assert f"artifacts: {swept.address}/artifacts" in swept.said
    assert main([*TABLE, "--storage", swept.address]) == 0
    assert capfd.readouterr().out == table
    for command in (
        ["best", "bucketed", "--task", "d", "--recipe", "mbls"],
        ["status", "bucketed"],
        ["status"],
        ["logs", "bucketed"],
        ["report", "bucketed"],
        ["compare", "bucketed", "--baseline", "mbls"],
        ["run", "--resume", "bucketed"],
        [*TABLE],
    ):
        assert main([*command, "--storage", swept.address]) == 0, command
    told = capfd.readouterr()
    assert told.out.endswith(table)
    assert "mbls" in told.out
    assert ends(journal_of(swept.address)) == wanted[1]
    assert set(weather.seen) > {"500", "503", "throttled", "torn", "lost", "cut"}
    assert "a-secret" not in swept.said + told.out + told.err
    paths = [path for folder in (swept.folder, tmp_path) for path in folder.rglob("*")]
    assert not [path for path in paths if "s3:" in path.name]
    files = [path for path in paths if path.is_file()]
    assert not [path for path in files if b"a-secret-that" in path.read_bytes()]


CRASH = """
import os, sys
from orchestrator.cli import main
from orchestrator.storage import bucket_sweep
from orchestrator.storage.events import TrialFinished
from tests.orchestrator.one_process import one_process

real, ended = bucket_sweep.BucketJournal.append, []
bucket_sweep.SEAL_SECONDS = 0.05

def append(journal, event, durable=True):
    real(journal, event, durable)
    ended.append(isinstance(event, TrialFinished))
    if sum(ended) == 2:
        os._exit(9)

bucket_sweep.BucketJournal.append = append
with one_process():
    main(["run", sys.argv[1]])
"""


@pytest.mark.full
def test_another_machine_continues_a_sweep_after_a_crash(
    wanted: tuple[Path, list[str]],
    weather: Weather,
    address: str,
    elsewhere: Callable[[], None],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    weather.share = 0.05
    run = [sys.executable, "-c", CRASH, write_sweep(tmp_path, address)]
    assert subprocess.run(run, timeout=600).returncode == 9
    elsewhere()
    assert main(["status", "bucketed", "--storage", address]) == 0
    assert main(["run", "--resume", "bucketed", "--storage", address]) == 0
    assert ends(journal_of(address)) == wanted[1]
    # What the first machine had not sealed yet is put aside there, not mixed in.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CALSWEEP_CACHE", str(tmp_path / "one"))
        assert ends(journal_of(address)) == wanted[1]


@pytest.mark.full
def test_a_plugin_travels_with_the_bucket(address, tmp_path, elsewhere):
    shutil.copy(ROOT / "examples/plugin/calsweep_example/gce.py", tmp_path / "gce.py")
    file = Path(write_sweep(tmp_path, address))
    swept = file.read_text().replace("[mbls, mbls+ts]", "[gce]\nplugins: [./gce.py]")
    file.write_text(swept.partition("tracking")[0])
    assert main(["run", str(file)]) == 0
    (plugin,) = Storage(address).load_spec("bucketed").plugins
    (tmp_path / "gce.py").unlink()
    elsewhere()
    for use in (
        lambda: Bench(Storage(address).artifacts, sealed=False, plugins=[plugin]),
        lambda: main(["run", "--resume", "bucketed", "--storage", address]),
    ):
        load_plugins((), installed=True)
        assert "gce" not in LOSSES
        assert use() != 2
        assert "gce" in LOSSES


@pytest.mark.full
def test_files_unsent_because_of_an_outage_are_listed_and_uploaded_later(
    wanted: tuple[Path, list[str]],
    weather: Weather,
    address: str,
    elsewhere: Callable[[], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    real, ended = BucketJournal.append, list[Event]()

    def append(journal: BucketJournal, event: Event, durable: bool = True) -> None:
        ended.extend([event] if isinstance(event, TrialFinished) else [])
        weather.away = len(ended) >= 2  # In the middle of the search, for good.
        real(journal, event, durable)

    monkeypatch.setattr(BucketJournal, "append", append)
    monkeypatch.setattr(cache.Cache.deliver, "__defaults__", (1.0,))
    assert main(["run", write_sweep(tmp_path, address)]) == 1  # The report needs the bucket.
    place = f"{address}/sweeps/bucketed"
    told = capfd.readouterr()
    assert f"not in {address} yet: " in told.err
    assert " and the end of the journal; on this machine" in " ".join(told.err.split())
    assert f"`calsweep storage sync {place}`" in " ".join(told.err.split())
    weather.away = False
    # What an outage kept from being passed on is free once it has been silent for 35 seconds.
    monkeypatch.setattr(locks, "SILENT_SECONDS", 1.0)
    assert main(["storage", "sync", place]) == 0
    assert f"everything of bucketed on this machine has reached {address}" in capfd.readouterr().out
    elsewhere()
    assert ends(journal_of(address)) == wanted[1]
    assert main(["compare", "bucketed", "--baseline", "mbls", "--storage", address]) == 0


def test_machines_share_nothing_but_the_bucket(wanted, swept, weather, tmp_path, monkeypatch):
    for machine in ("one node", "another"):
        assert list((swept.folder / machine).rglob("manifest.json"))
    here, nonces = Storage(swept.address), []
    nonce = write_nonce(here.artifacts)
    for machine in ("one", "two"):
        monkeypatch.setenv("CALSWEEP_CACHE", str(tmp_path / machine))
        nonces.append(inspect_machine(str(here.artifacts), nonce, 0).nonce)
    remove_nonce(here.artifacts, nonce)
    assert ends(journal_of(swept.address)) == wanted[1]
    assert "" != nonces[0] == nonces[1]


@pytest.mark.long
def test_nodes_of_a_cluster_share_nothing_but_the_bucket(wanted, capfd):
    assert main([*TABLE, "--storage", str(wanted[0])]) == 0
    table = capfd.readouterr().out
    sweep = SWEEP.replace("executor: local\n", "").replace("{{concurrent: 1}}", "{{}}")
    sweep = sweep.replace("folder:{folder}/runs", "http://127.0.0.1:9")  # Nothing listens there.
    run = [sys.executable, "-m", "tests.orchestrator.running.bucketed_nodes", sweep]
    # An earlier test of this process may have left what its own Ray was started with.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        run, stdout=subprocess.PIPE, text=True, timeout=600, check=True, cwd=ROOT, env=clean
    )
    assert done.stdout.endswith(f"{table}0 True\n")


def test_driver_that_was_replaced_stops(weather, address, tmp_path, elsewhere):
    event = SweepEnded(status="finished")
    first = Storage(address).sweep("bucketed")
    with first.owned(), first.open_journal() as one:
        one.append(event)
        assert one.delivered()
        elsewhere()
        second = Storage(address).sweep("bucketed")
        assert second.is_owned()
        assert second.bucket is not None
        second.fetch()
        with BucketJournal(second.journal, second.bucket, second.bucket.lease()) as two:
            two.append(event)
            assert two.delivered()
        one.append(event)
        assert not one.delivered()
        with pytest.raises(InputError, match=r"^sweep 'bucketed' was taken over by .*; this run"):
            one.append(event)
    assert len(second.bucket.segments()) == 2


def test_sweep_that_runs_elsewhere_is_left_alone(
    weather: Weather,
    address: str,
    tmp_path: Path,
    elsewhere: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.1)
    with Storage(address).sweep("bucketed").owned():
        elsewhere()
        assert main(["run", write_sweep(tmp_path, address)]) == 2
    assert "sweep 'bucketed' is being run by " in capfd.readouterr().err


def test_bucket_that_is_not_there_is_one_line(weather, tmp_path, address, capfd):
    nowhere = f"s3://bucket-{'0' * 12}/x"
    assert main(["run", write_sweep(tmp_path, nowhere)]) == 2
    told = capfd.readouterr().err.splitlines()[-1]
    assert told.startswith(f"calsweep: storage {nowhere}: ")
    weather.away = True
    assert main(["table", "bucketed", "--storage", address]) == 2
    assert capfd.readouterr().err.startswith(f"calsweep: storage {address}: ")


def test_doctor_checks_a_bucket_and_its_conditional_writes(weather: Weather, address: str) -> None:
    from orchestrator.cli._doctor import _storage

    assert _storage(address).detail == f"{address} is writable and supports conditional writes"


@pytest.mark.full
def test_gc_keeps_the_same_artifacts_in_a_bucket_as_in_a_folder(
    wanted: tuple[Path, list[str]],
    swept: Swept,
    weather: Weather,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The last test of the sweep in bad weather, which is dropped."""
    folder, address = tmp_path / "copy", swept.address
    shutil.copytree(wanted[0], folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CALSWEEP_CACHE", str(tmp_path / "two"))
    weather.share = 0.05
    capfd.readouterr()
    told = []
    for storage in (str(folder), address):
        assert main(["storage", "gc", "--storage", storage]) == 0
        rows = [line.split() for line in capfd.readouterr().out.splitlines()]
        told.append([row[:2] + row[3:4] for row in rows if row and row[0] != "sweeps"])
    assert told[0][:-1] == told[1][:-1]
    assert ["train", "1", "1"] in told[0]
    bucket = Bucket(address)
    assert {path.parent.name for path in folder.glob("artifacts/*/*/*/manifest.json")} == {
        name.split("/")[3] for name in bucket.names("artifacts")
    }
    assert main(["table", "bucketed", "--storage", address]) == 0
    assert main(["run", "--resume", "bucketed", "--storage", address]) == 0
    assert ends(journal_of(address)) == wanted[1]
    assert main(["storage", "gc", "--storage", address, "--drop", "bucketed"]) == 0
    assert not [name for name in bucket.names("") if not name.startswith("data/")]
