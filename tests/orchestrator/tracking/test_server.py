import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing

import pytest

from orchestrator.tracking import (
    best_trials,
    contract,
    open_tracker,
    ping,
    start_shipper,
    study_results,
)

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


@pytest.mark.full
def test_outages_of_the_server_lose_nothing_and_repeat_nothing(
    writer, server, snapshot, tmp_path, monkeypatch
):
    """Nor does the death of who delivers, in their midst."""
    monkeypatch.setenv("PYTHONWARNINGS", "error::FutureWarning")
    picture = writer.picture("picture.png")
    shipper = start_shipper(writer.path, server.uri, tmp_path, poll_seconds=0.05)
    writer.start()
    study = writer.open("ce", trials=24)
    keys = [writer.trial(study, number, 1 / (number + 1)) for number in range(12)]
    end = time.monotonic() + 600
    while "gives no answer" not in shipper.log.read_text():
        assert time.monotonic() < end, shipper.log.read_text()
        time.sleep(0.02)
    server.start()
    server.wait()
    while len(snapshot(server.database, writer.sweep)["runs"]) < 5:
        assert time.monotonic() < end, shipper.log.read_text()
        time.sleep(0.02)
    server.kill()
    os.kill(shipper.process.pid, signal.SIGKILL)
    before = len(snapshot(server.database, writer.sweep)["runs"])
    assert before < 25
    keys += [writer.trial(study, number, 1 / (number + 1)) for number in range(12, 24)]
    writer.close(study, keys[-1], finished=24)
    writer.evaluate(keys[-1], study, test_ece=0.01, artifacts={"reliability.png": str(picture)})
    writer.clock = iter([time.time_ns() // 1_000_000 + 60_000])
    writer.end()
    assert not ping(server.uri, timeout=1.0)[0]
    shipper.process.wait()
    assert shipper.revive()
    server.start()
    assert shipper.wait_drained(600), shipper.log.read_text()
    tables = snapshot(server.database, writer.sweep)
    delivered = [row[2] for row in tables["tags"] if row[1] == "calsweep.key"]
    assert sorted(delivered) == sorted([study, *keys])
    assert {row[2] for row in tables["runs"]} == {"FINISHED"}
    losses = [(row[0], row[4]) for row in tables["metrics"] if row[1] == "train_loss"]
    assert len(losses) == len(set(losses)) == 48
    assert ping(server.uri)[0]
    (best,) = best_trials(server.uri, study.split("|")[0], "ce", sweep=writer.sweep)
    assert (best.trial.number, best.trial.test) == (23, {"ece": 0.01})
    (result,) = study_results(server.uri, writer.sweep)
    assert (result.run_ids, result.test) == ((best.trial.run_id,), ({"ece": 0.01},))
    stored = (server.folder / "artifacts").rglob("reliability.png")
    assert [path.read_bytes() for path in stored].count(b"png") == 1


@pytest.mark.full
def test_a_server_fulfils_the_contract_of_trackers(server, tmp_path):
    server.start()
    server.wait()
    tracker = open_tracker(server.uri)
    contract.sorts_runs_by_metrics_then_by_age(tracker, tmp_path)
    contract.replaces_a_champion(tracker, tmp_path)
