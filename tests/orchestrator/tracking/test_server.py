from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing

import pytest

from orchestrator.tracking import best_trials, ping, start_shipper, study_results
from orchestrator.tracking.champion import load_champion, promote
from tests.orchestrator.tiny_sweep import TASK, tiny_sweep
from trainables.data import PreparedData
from trainables.store.artifacts import ArtifactStore

HEADLESS = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}


class MlflowServer:
    """A tracking server that can be killed and started again on the same port."""

    def __init__(self, folder, database):
        self.folder, self.database = folder, database
        with closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        """Start it, unless it runs."""
        if self.process is not None:
            return
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--backend-store-uri", self.database]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        with open(self.folder / "server.log", "ab") as log:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **HEADLESS},
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self):
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def wait(self):
        end = time.monotonic() + 600
        while not ping(self.uri, timeout=2.0)[0]:
            assert time.monotonic() < end, (self.folder / "server.log").read_text()
            time.sleep(0.2)


@pytest.fixture(scope="module")
def server(tmp_path_factory, database):
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(database.removeprefix("sqlite:///"), folder / "server.db")
    running = MlflowServer(folder, f"sqlite:///{folder}/server.db")
    yield running
    running.kill()


def test_outages_of_the_server_lose_nothing_and_repeat_nothing(
    writer, server, snapshot, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONWARNINGS", "error::FutureWarning")
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"png")
    server.kill()
    shipper = start_shipper(writer.path, server.uri, poll_seconds=0.05)
    writer.start()
    study = writer.open("ce", trials=60)
    keys = [writer.trial(study, number, 1 / (number + 1)) for number in range(30)]
    server.start()
    server.wait()
    end = time.monotonic() + 600
    while len(snapshot(server.database, writer.sweep)["runs"]) < 10:
        assert time.monotonic() < end, shipper.log.read_text()
        time.sleep(0.02)
    server.kill()
    before = len(snapshot(server.database, writer.sweep)["runs"])
    assert before < 61
    keys += [writer.trial(study, number, 1 / (number + 1)) for number in range(30, 60)]
    writer.close(study, keys[-1], finished=60)
    writer.evaluate(keys[-1], study, test_ece=0.01, artifacts={"reliability.png": str(picture)})
    writer.clock = iter([time.time_ns() // 1_000_000 + 60_000])
    writer.end()
    assert not ping(server.uri, timeout=1.0)[0]
    server.start()
    assert shipper.wait_drained(600), shipper.log.read_text()
    tables = snapshot(server.database, writer.sweep)
    delivered = [row[2] for row in tables["tags"] if row[1] == "calsweep.key"]
    assert sorted(delivered) == sorted([study, *keys])
    assert {row[2] for row in tables["runs"]} == {"FINISHED"}
    losses = [(row[0], row[4]) for row in tables["metrics"] if row[1] == "train_loss"]
    assert len(losses) == len(set(losses)) == 120
    assert ping(server.uri)[0]
    (best,) = best_trials(server.uri, study.split("|")[0], "ce", sweep=writer.sweep)
    assert (best.trial.number, best.trial.test) == (59, {"ece": 0.01})
    stored = (server.folder / "artifacts").rglob("reliability.png")
    assert [path.read_bytes() for path in stored].count(b"png") == 1
    assert "gives no answer" in shipper.log.read_text()


def test_a_champion_goes_through_a_server_and_comes_back(server, tmp_path):
    server.start()
    server.wait()
    spec = tiny_sweep(tmp_path / "storage", uri=server.uri)
    results = {result.recipe: result for result in study_results(server.uri, "tiny")}
    result = results["ce+macal+ts"]
    (best,) = best_trials(server.uri, TASK, "ce+macal+ts")
    assert best.trial.run_id == result.run_ids[0]
    assert len(best_trials(server.uri, TASK, "ce", top=2)) == 1
    first = promote(best.trial.run_id, server.uri, spec.storage)
    again = promote(best.trial.run_id, server.uri, spec.storage)
    assert (first.version, first.new, again.version, again.new) == ("1", True, "1", False)
    network = load_champion(TASK, tmp_path / "fetched", server.uri)
    found = ArtifactStore(tmp_path / "storage" / "artifacts").find(
        "evaluate", result.predictions[0]
    )
    images = PreparedData.open(tmp_path / "storage" / "data" / result.fingerprint).test().values
    assert network(images).equal(found.tensors("test")["log_probs"])
