"""Several requests at once to a server, and how far a piece has got meanwhile."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from orchestrator.tracking import _shipper, sync
from orchestrator.tracking._memory import delivered, delivered_runs
from orchestrator.tracking._server import UnreachableError
from trainables.errors import InputError

URI = "http://127.0.0.1:9"
TRIALS = 12


class FakeServer:
    """Keeps what it is told; ``log`` can be made to wait or to fail."""

    def __init__(self, uri):
        self.lock = threading.Lock()
        self.created, self.logged = [], []
        self.on_log = lambda: None

    def ensure_experiment(self, name, root):
        return SimpleNamespace(experiment_id="1", creation_time=0), not self.created

    def runs(self, experiments, tags, *_, **__):
        return [run for run in self.created if tags.items() <= run.data.tags.items()]

    def create_run(self, experiment, name, tags, started):
        with self.lock:
            info = SimpleNamespace(run_id=f"run-{len(self.created)}")
            self.created.append(SimpleNamespace(info=info, data=SimpleNamespace(tags=tags)))
        return info.run_id

    def log(self, run_id, change):
        if change.run in self.trials:
            self.on_log()
        self.logged.append(run_id)

    def set_status(self, run_id, status, time):
        pass


@pytest.fixture
def server(monkeypatch, writer):
    fake = FakeServer(URI)
    monkeypatch.setattr(_shipper, "Server", lambda uri: fake)
    writer.start()
    study = writer.open("ce", trials=TRIALS)
    fake.trials = [writer.trial(study, number, 0.1) for number in range(TRIALS)]
    return fake


def test_trials_are_delivered_several_at_once_after_their_study(server, writer):
    together = threading.Barrier(_shipper.LANES, timeout=20)
    server.on_log = together.wait
    assert sync(writer.path, URI).runs == TRIALS + 1
    study, *trials = server.created
    assert study.data.tags["calsweep.kind"] == "study"
    assert {run.data.tags["mlflow.parentRunId"] for run in trials} == {study.info.run_id}


def test_a_file_is_written_by_one_at_a_time(server, writer, tmp_path):
    inside, most = [], []

    def log():
        inside.append(1)
        most.append(len(inside))
        inside.pop()

    server.on_log = log
    sync(writer.path, f"sqlite:///{tmp_path}/mlflow.db")
    assert max(most) == 1
    assert len(most) == TRIALS


def test_an_outage_in_the_middle_loses_nothing_and_repeats_no_run(server, writer, monkeypatch):
    monkeypatch.setattr(_shipper, "PATIENCE_ONCE", 0.0)
    calls = []

    def log():
        calls.append(1)
        if len(calls) > TRIALS // 2:
            raise UnreachableError("gone")

    server.on_log = log
    with pytest.raises(InputError, match="gone"):
        sync(writer.path, URI)
    assert len(calls) < TRIALS
    server.on_log = lambda: None
    sync(writer.path, URI)
    keys = [run.data.tags["calsweep.key"] for run in server.created]
    assert len(keys) == len(set(keys)) == TRIALS + 1
    assert set(server.logged) == {run.info.run_id for run in server.created}


def test_progress_is_seen_within_a_piece(server, writer, monkeypatch):
    monkeypatch.setattr(_shipper, "SAVE_SECONDS", -1.0)
    monkeypatch.setattr(_shipper, "LANES", 1)
    seen = []

    def log():
        end = time.monotonic() + 20
        while len(delivered_runs(writer.path)) < len(seen) and time.monotonic() < end:
            time.sleep(0.001)
        seen.append((delivered(writer.path)[0], len(delivered_runs(writer.path))))

    server.on_log = log
    sync(writer.path, URI)
    places, runs = zip(*seen, strict=True)
    assert list(places) == sorted(places)
    assert 0 < places[-1] < delivered(writer.path)[1] == delivered(writer.path)[0]
    assert TRIALS - 1 <= runs[-1] <= TRIALS + 1
