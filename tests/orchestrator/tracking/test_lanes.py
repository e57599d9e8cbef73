import threading
import time

import pytest

from orchestrator.tracking import _shipper, sync
from orchestrator.tracking._process import Memory, delivered, delivered_runs
from orchestrator.tracking.tracker import Experiment, Run

URI = "http://127.0.0.1:9"
TRIALS = 12


class FakeTracker:
    """Keeps what it is told; ``log`` can be made to wait or to fail."""

    lanes = 4

    def __init__(self):
        self.lock = threading.Lock()
        self.created, self.logged = [], []
        self.questions = 0
        self.on_log = lambda: None

    def open_experiment(self, name, root):
        return Experiment("1", 0), not self.created

    def runs(self, query):
        self.questions += 1
        return [run for run in self.created if query.tags.items() <= run.tags.items()]

    def create_run(self, experiment, name, tags, started, parent):
        with self.lock:
            run_id = f"run-{len(self.created)}"
            self.created.append(Run(run_id, experiment, parent, "RUNNING", started, tags, {}))
        return run_id

    def log(self, run_id, change):
        if change.run in self.trials:
            self.on_log()
        self.logged.append(run_id)

    def set_status(self, run_id, status, time):
        pass


@pytest.fixture
def server(monkeypatch, writer):
    fake = FakeTracker()
    monkeypatch.setattr(_shipper, "open_tracker", lambda uri, create: fake)
    writer.start()
    study = writer.open("ce", trials=TRIALS)
    fake.trials = [writer.trial(study, number, 0.1) for number in range(TRIALS)]
    return fake


def test_trials_are_delivered_several_at_once_after_their_study(server, writer):
    together = threading.Barrier(server.lanes, timeout=300)
    server.on_log = together.wait
    assert sync(writer.path, URI).runs == TRIALS + 1
    study, *trials = server.created
    assert study.tags["calsweep.kind"] == "study"
    assert {run.parent for run in trials} == {study.id}


def test_chunks_follow_each_other_and_look_for_existing_runs_once(server, writer, monkeypatch):
    server.open_experiment = lambda name, root: (Experiment("1", 0), False)
    # The first piece is as long as that, to the byte.
    monkeypatch.setattr(_shipper, "CHUNK", len(writer.path.read_bytes().splitlines()[0]) + 1)
    assert sync(writer.path, URI).runs == TRIALS + 1
    assert server.questions == 1


def test_another_password_does_not_make_another_tracker(server, writer):
    assert sync(writer.path, "http://ada:first@127.0.0.1:9").events > 0
    assert sync(writer.path, "http://ada:second@127.0.0.1:9").events == 0
    assert sync(writer.path, "http://127.0.0.1:8").events > 0


@pytest.mark.parametrize("pieces", [1, 2])
def test_progress_is_saved_within_a_chunk(server, writer, monkeypatch, pieces):
    monkeypatch.setattr(_shipper, "CHUNK", writer.path.stat().st_size // pieces)
    monkeypatch.setattr(_shipper, "SAVE_SECONDS", -1.0)
    server.lanes = 1
    seen = []

    def log():
        end = time.monotonic() + 300
        while len(delivered_runs(writer.path)) < len(seen) and time.monotonic() < end:
            time.sleep(0.001)
        seen.append((delivered(writer.path)[0], len(delivered_runs(writer.path))))

    server.on_log = log
    sync(writer.path, URI)
    places, runs = zip(*seen, strict=True)
    assert list(places) == sorted(places)
    assert 0 < places[-1] < delivered(writer.path)[1] == delivered(writer.path)[0]
    assert TRIALS - 1 <= runs[-1] <= TRIALS + 1
    assert Memory.load(writer.path).ahead == 0


@pytest.mark.parametrize(("size", "told"), [(400, (150, 400)), (120, (120, 120)), (None, (0, 0))])
def test_delivered_bytes_are_at_most_the_size_of_the_journal(tmp_path, size, told):
    journal = tmp_path / "journal.jsonl"
    if size is not None:
        journal.write_bytes(b"x" * size)
    Memory("store", "5eed", offset=100, runs={"k": "r"}, ahead=50, last=7).save(journal)
    assert delivered(journal) == told
    assert Memory.load(journal) == Memory("store", "5eed", 100, {"k": "r"}, 50, 7)


@pytest.mark.parametrize("content", ['{"offset": 3', "[1]", '{"unknown": 1}', "\udcff", "7"])
def test_a_damaged_memory_is_ignored(tmp_path, content, caplog):
    file = tmp_path / "shipped.json"
    file.write_bytes(content.encode(errors="surrogateescape"))
    assert Memory.load(tmp_path / "journal.jsonl") == Memory()
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"{file} is damaged; delivering from the start"]
