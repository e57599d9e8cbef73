"""Runs one small sweep twice, undisturbed and under random SIGKILLs, and compares what is left.

As a script it is the long form: ``python tests/chaos/harness.py --kills 20 --out FILE.md``.
"""

import argparse
import contextlib
import os
import platform
import random
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from orchestrator.storage.events import Event, TrialFinished
from orchestrator.storage.journal import read_events
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.results import results_of
from orchestrator.sweep.plan import make_plan
from orchestrator.sweep.spec import load_sweep

NODES = Path(__file__).with_name("nodes.py")
NAME = "storm"
SWEEP = """
name: {name}
tasks:
  - name: digits/convnet/storm
    dataset: digits
    model: convnet
    protocol: {{base: digits, epochs: {epochs}}}
recipes: [ce, ls, mbls, ce+ts, mbls+ts, ce+macal, mbls+macal, mbls+macal+ts]
search:
  trials: {trials}
  accuracy_tolerance: 0.05
  fixed: {{macal: {{epochs: 6, lr: 0.1, q0: 0.1, sparsity: fixed}}}}
seeds: [0, 1]
resources: {{checkpoint_seconds: 0, max_failures: 50, concurrent: 2}}
tracking: {{uri: "{tracking}"}}
storage: {storage}
"""
VICTIMS = ("driver", "worker", "node", "server")
RESUMES = re.compile(r"resumes after epoch (\d+) of (\d+)")
PATIENCE = 1800.0


@dataclass
class Kill:
    """One SIGKILL.

    Attributes:
        victim: One of ``VICTIMS``.
        unsaved: Seconds since the oldest of the last checkpoints of the trials that were running:
            what a kill of them all would cost.
        restart: Seconds until as many trials ran as before and one of them reported.
    """

    victim: str
    unsaved: float
    restart: float = 0.0


@dataclass
class Weather:
    """How much is killed, and when."""

    kills: int = 0
    seed: int = 0
    pause: tuple[float, float] = (2.0, 5.0)
    done: list[Kill] = field(default_factory=list)


@dataclass(frozen=True)
class Ending:
    """What a sweep left behind."""

    seconds: float
    table: bytes
    events: list[Event]
    results: list[Any]
    runs: list[Any]
    planned: int
    log: str


class Cluster:
    """Ray on several nodes, which can be killed and added; jobs find ``programs`` first."""

    def __init__(
        self, log: Path, *options: str, programs: Path = Path(sys.executable).parent
    ) -> None:
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }
        self.process = subprocess.Popen(
            [sys.executable, str(NODES), *(options or ("2",))],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
        )
        answer = self._answer()
        assert answer.startswith("address "), log.read_text()
        self.address, *jobs = answer.split()[1:]
        self.job_server = f"http://127.0.0.1:{jobs[0]}" if jobs else ""

    def command(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        assert self._answer() == "done"

    def workers(self) -> list[psutil.Process]:
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [process for process in found if is_trial(process)]

    def end(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate("end\n", timeout=600)

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


class TrackingServer:
    """An MLflow server on the loopback, which can be killed and started again."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._folder, self._environment = folder, environment
        self.start()

    def start(self) -> None:
        options = {
            "--backend-store-uri": f"sqlite:///{self._folder / 'mlflow.db'}",
            "--artifacts-destination": str(self._folder / "served"),
            "--host": "127.0.0.1",
            "--port": str(self.port),
            "--workers": "1",
        }
        flat = [text for pair in options.items() for text in pair]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *flat],
            env=self._environment,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def wait(self) -> None:
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=2).close()
                return
            except OSError:
                assert time.monotonic() < deadline, "the tracking server does not start"
                time.sleep(0.2)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def is_trial(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(text.startswith("ray::") and "Trainable" in text for text in process.cmdline())
    return False


class Storm:
    """One run of the sweep, with the weather that it is given."""

    def __init__(self, folder: Path, weather: Weather, trials: int, epochs: int) -> None:
        folder.mkdir(parents=True)
        self.folder, self.weather = folder, weather
        self.cluster = Cluster(folder / "nodes.log")
        self.server = TrackingServer(folder, self.cluster.environment)
        self.storage = folder / "storage"
        self.sweep = write_sweep(folder, self.server.uri, trials, epochs)
        self.log = (folder / "driver.log").open("a")
        self._random = random.Random(weather.seed)
        self._struck = 0.0

    @property
    def journal(self) -> Path:
        return journal_of(self.folder)

    def run(self) -> Ending:
        self.server.wait()
        started = time.monotonic()
        driver = self._driver(str(self.sweep))
        for number in range(self.weather.kills):
            self._let_it_work(driver)
            if driver.poll() is not None:
                break
            driver = self._strike(VICTIMS[number % len(VICTIMS)], driver)
        assert driver.wait(timeout=PATIENCE) == 0, (self.folder / "driver.log").read_text()[-3000:]
        seconds = time.monotonic() - started
        self.server.wait()
        log = (self.folder / "driver.log").read_text()
        return ending(self.folder, self.server.uri, seconds, log)

    def close(self) -> None:
        self.log.close()
        self.server.kill()
        self.cluster.end()

    def _driver(self, *arguments: str) -> subprocess.Popen[Any]:
        command = [sys.executable, "-m", "orchestrator", "run", *arguments]
        return subprocess.Popen(
            [*command, "--address", self.cluster.address],
            env=self.cluster.environment,
            stdout=self.log,
            stderr=self.log,
        )

    def _let_it_work(self, driver: subprocess.Popen[Any]) -> None:
        self._wait_for_trials(driver, 1)
        time.sleep(self._random.uniform(*self.weather.pause))

    def _wait_for_trials(self, driver: subprocess.Popen[Any], count: int) -> float:
        """Wait until so many trials run, at most while the driver does; return for how long."""
        started = time.monotonic()
        while len(self.cluster.workers()) < count and driver.poll() is None:
            assert time.monotonic() - started < PATIENCE, "no trial runs"
            time.sleep(0.1)
        return time.monotonic() - started

    def _wait_for_a_report(self, driver: subprocess.Popen[Any], told: int) -> None:
        """Wait until the journal holds an epoch after its first ``told`` bytes."""
        while driver.poll() is None:
            with self.journal.open("rb") as events:
                events.seek(told)
                if b'"epoch"' in events.read():
                    return
            time.sleep(0.1)

    def _strike(self, victim: str, driver: subprocess.Popen[Any]) -> subprocess.Popen[Any]:
        running = len(self.cluster.workers())
        kill = Kill(victim, self._unsaved())
        self.log.write(f"--- {victim} killed\n")
        self.log.flush()
        started, told = time.monotonic(), self.journal.stat().st_size
        driver = self._kill(victim, driver)
        self._wait_for_trials(driver, running)
        self._wait_for_a_report(driver, told)
        kill.restart = time.monotonic() - started
        self._struck = time.time()
        self.weather.done.append(kill)
        return driver

    def _unsaved(self) -> float:
        """Return the age of the oldest checkpoint written since trials last began to run."""
        times = [
            path.stat().st_mtime
            for path in (self.storage / "artifacts" / "checkpoints").rglob("*.pt")
        ]
        return max((time.time() - at for at in times if at > self._struck), default=0.0)

    def _kill(self, victim: str, driver: subprocess.Popen[Any]) -> subprocess.Popen[Any]:
        if victim == "driver":
            driver.kill()
            driver.wait()
            return self._driver("--resume", NAME, "--storage", str(self.storage))
        if victim == "worker":
            self._kill_a_worker()
        elif victim == "node":
            self.cluster.command(f"kill {self._random.randrange(2)}")
            self.cluster.command("add")
        else:
            self.server.kill()
            self.server.start()
        return driver

    def _kill_a_worker(self) -> None:
        workers = self.cluster.workers()
        if workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._random.choice(workers).kill()


def write_sweep(folder: Path, tracking: str, trials: int, epochs: int) -> Path:
    """Write the sweep's file; its storage lies beside it."""
    path, storage = folder / "sweep.yaml", folder / "storage"
    values = {"name": NAME, "tracking": tracking, "storage": storage}
    path.write_text(SWEEP.format(**values, trials=trials, epochs=epochs))
    return path


def journal_of(folder: Path) -> Path:
    return folder / "storage" / "sweeps" / NAME / "journal.jsonl"


def ending(folder: Path, tracking: str, seconds: float, log: str) -> Ending:
    """Read what the sweep of a folder left behind."""
    from mlflow import MlflowClient

    journal = journal_of(folder)
    events = read_events(journal)[0]
    client = MlflowClient(tracking)
    experiment = client.get_experiment_by_name(NAME)
    assert experiment is not None
    return Ending(
        seconds,
        (journal.parent / "table.md").read_bytes(),
        events,
        results_of(Ledger(events)),
        list(client.search_runs([experiment.experiment_id], max_results=5000)),
        make_plan(load_sweep(str(folder / "sweep.yaml"))).trials,
        log,
    )


@contextlib.contextmanager
def storm(folder: Path, weather: Weather, trials: int, epochs: int) -> Iterator[Storm]:
    found = Storm(folder, weather, trials, epochs)
    try:
        yield found
    finally:
        found.close()


def run(folder: Path, weather: Weather, trials: int, epochs: int) -> Ending:
    with storm(folder, weather, trials, epochs) as whole:
        return whole.run()


def test_figures(ending: Ending) -> list[Any]:
    """Return every recipe's test metrics, exactly."""
    return [(result.recipe, result.test) for result in ending.results]


def finished_keys(ending: Ending) -> list[str]:
    return [event.key for event in ending.events if isinstance(event, TrialFinished)]


def faults(calm: Ending, stormy: Ending) -> list[str]:
    """Return what is not as it must be after a storm."""
    keys = Counter(finished_keys(stormy))
    tracked = Counter(run.data.tags["calsweep.key"] for run in stormy.runs)
    statuses = {run.info.status for run in stormy.runs}
    reasons = {event.reason for event in stormy.events if isinstance(event, TrialFinished)} - {""}
    found = {
        "the tables differ": calm.table != stormy.table,
        "the test figures differ": test_figures(calm) != test_figures(stormy),
        "a trial ended twice": max(keys.values()) > 1,
        "the budget was not spent exactly": len(keys) != stormy.planned,
        "a run is logged twice": max(tracked.values()) > 1,
        f"runs are {statuses}, {reasons}": statuses != {"FINISHED"},
        "a trial is not tracked": not set(keys) <= set(tracked),
    }
    return [what for what, wrong in found.items() if wrong]


def report(calm: Ending, stormy: Ending, weather: Weather) -> str:
    """Return the outcome as Markdown."""
    counts = Counter(kill.victim for kill in weather.done)
    resumed = [tuple(map(int, pair)) for pair in RESUMES.findall(stormy.log)]
    killed = ", ".join(f"{victim} {counts[victim]}" for victim in VICTIMS)
    lines = [
        f"- kills (SIGKILL): {len(weather.done)} ({killed}), seed {weather.seed}",
        f"- trials planned {stormy.planned}, ended once each: {len(finished_keys(stormy))}",
        f"- MLflow runs: {len(stormy.runs)}, statuses {dict(statuses_of(stormy))}",
        f"- table byte-identical: {calm.table == stormy.table}; test figures exactly equal: "
        f"{test_figures(calm) == test_figures(stormy)}",
        *_times(calm, stormy, weather),
        f"- stages that resumed from a checkpoint: {len(resumed)}; epochs they did not repeat: "
        f"{sum(epoch for epoch, _ in resumed)}",
        f"- oldest last checkpoint of a running trial at a kill: "
        f"{max((kill.unsaved for kill in weather.done), default=0.0):.1f} s (one is written every "
        "2 s, or every epoch where that is longer)",
        f"- faults: {faults(calm, stormy) or 'none'}",
    ]
    return "\n".join(lines)


def _times(calm: Ending, stormy: Ending, weather: Weather) -> list[str]:
    restarts = {
        victim: [kill.restart for kill in weather.done if kill.victim == victim]
        for victim in VICTIMS
    }
    waited = sum(sum(seconds) for seconds in restarts.values())
    means = ", ".join(
        f"{victim} {sum(seconds) / len(seconds):.1f}"
        for victim, seconds in restarts.items()
        if seconds
    )
    return [
        f"- seconds: undisturbed {calm.seconds:.0f}; under kills {stormy.seconds:.0f}, of which "
        f"{waited:.0f} until as many trials ran as before each kill and one reported; without them "
        f"{(stormy.seconds - waited) / calm.seconds:.2f} times the undisturbed run",
        f"- mean seconds until then: {means}",
    ]


def statuses_of(ending: Ending) -> Counter[str]:
    return Counter(run.info.status for run in ending.runs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weather = Weather(wanted.kills, wanted.seed)
        calm = run(folder / "calm", Weather(), wanted.trials, wanted.epochs)
        stormy = run(folder / "stormy", weather, wanted.trials, wanted.epochs)
        text = f"# Chaos: one sweep under random kills\n\n{report(calm, stormy, weather)}\n"
        text += (
            f"- {os.cpu_count()} CPU cores, Python {platform.python_version()}, "
            f"ray {version('ray')}, two worker nodes; {wanted.epochs} epochs a training; load "
            f"average over the last 15 minutes {os.getloadavg()[2]:.1f}\n"
        )
        text += "\n" + stormy.table.decode()
    sys.stdout.write(text)
    if wanted.out:
        wanted.out.write_text(text)
    return len(faults(calm, stormy))


if __name__ == "__main__":
    sys.exit(main())
