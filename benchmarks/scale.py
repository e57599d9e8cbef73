"""Measures the driver's cost for a sweep of many thousand trials, on simulated workers.

    python benchmarks/scale.py --trials 20000 --slots 1000 --studies 1000 --out page.md

``run_sweep`` runs the sweep with plan, search, journal, storage, tracking, measurement on test
data, an interruption in the middle, and resumption. Only the computation is simulated: in virtual
time, each trial reports three times and stores validation logits. The time of this simulation is
not counted. Afterwards the commands in ``--commands`` are timed on this sweep.
"""

import argparse
import heapq
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import torch
import yaml
from _page import load, options, publish, setting, table

from orchestrator.executors import Executor
from orchestrator.loop import Loop, Pause
from orchestrator.running import run as running
from orchestrator.search.study import StudySearch
from orchestrator.storage.storage import Storage
from orchestrator.sweep.plan import make_plan
from orchestrator.sweep.spec import SweepSpec, parse_sweep
from trainables.common.stages import ArtifactRef
from trainables.data import PreparedData
from trainables.jobs import Cost, EpochMetrics, Job, Measured, Report, StageWork, Status, TestWork
from trainables.methods import method_names
from trainables.metrics import calibration_report, evaluation_report
from trainables.store.artifacts import ArtifactStore, stage_key

QUESTION = "How much time and memory does a sweep of many thousand trials need?"
EPOCHS = 3
SECONDS = 60.0  # Mean virtual time of an epoch.
CLASSES, OUTPUTS = 10, 64
ASK = StudySearch.ask
COMMANDS = ("plan", "status", "table", "best", "report")


class Interrupted(KeyboardInterrupt):
    """Simulates Ctrl-C after a number of trials."""


@dataclass
class Driver:
    """The cost of the driver.

    Attributes:
        cpu: CPU seconds by kind of step.
        trials: Number of ended trials.
        steps: Longest wall-clock seconds of a step, by kind.
    """

    cpu: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    trials: int = 0
    steps: dict[str, float] = field(default_factory=dict)

    def timed(self, name: str, step: Callable[..., Any], *arguments: Any) -> Any:
        """Call a step of the driver and record its time."""
        began, wall = time.process_time(), time.perf_counter()
        try:
            return step(*arguments)
        finally:
            self.cpu[name] += time.process_time() - began
            spent = time.perf_counter() - wall
            self.steps[name] = max(self.steps.get(name, 0.0), spent)

    def each(self, *names: str) -> str:
        """Return the CPU milliseconds per trial of some steps; empty if no trial ended."""
        seconds = sum(self.cpu[name] for name in names)
        return f"{1e3 * seconds / self.trials:.2f}" if self.trials else ""


class Slots(Executor):
    """Simulates slots for trials in virtual time; nothing is computed.

    Args:
        store: Receives the outcomes.
        count: Number of slots.
        driver: Receives the driver's times.
        stop: Number of trials after which Ctrl-C is simulated; None for never.
    """

    def __init__(
        self, store: ArtifactStore, count: int, driver: Driver, stop: int | None = None
    ) -> None:
        self._store, self._count, self._driver, self._stop = store, count, driver, stop
        self._draw = np.random.default_rng(0)
        self._known: dict[str, Rows] = {}
        self.began: float | None = None  # Time of the first call of ``run``.

    def run(self, loop: Loop, sealed: bool = True) -> None:
        """Compute all jobs of a loop."""
        self.began = self.began or time.perf_counter()
        now, number = 0.0, 0
        coming: list[tuple[float, int, int, Job]] = []
        busy, asked = 0, True
        while True:
            while busy < self._count and asked:
                job = self._driver.timed("next", loop.next)
                if isinstance(job, Pause):
                    if job is Pause.DONE:
                        return
                    break
                busy, number = busy + 1, number + 1
                heapq.heappush(coming, (now + self._seconds(), number, 1, job))
            now, number, epoch, job = heapq.heappop(coming)
            ended = epoch == EPOCHS or isinstance(job.work, TestWork)
            report = self._ended(job) if ended else _running(job, epoch)
            self._driver.timed("take", loop.take, job, report)
            if not ended:
                heapq.heappush(coming, (now + self._seconds(), number, epoch + 1, job))
                asked = False
                continue
            busy, asked = busy - 1, True
            self._driver.trials += 1
            if self._driver.trials == self._stop:
                raise Interrupted

    def _seconds(self) -> float:
        return float(self._draw.exponential(SECONDS))

    def _ended(self, job: Job) -> Report:
        if isinstance(job.work, TestWork):
            return self._measured(job, job.work)
        assert isinstance(job.work, StageWork)
        return self._computed(job, job.work)

    def _computed(self, job: Job, work: StageWork) -> Report:
        request = work.request
        rows = self._validation(request.data)
        logits, metrics = rows.outputs[_drawn(request.key())]
        self._store.write(
            request.ref,
            {"validation": {"logits": logits, "labels": rows.labels}},
            {
                "request": request.plain(),
                "metrics": metrics,
                "history": [{"step": step, "metrics": metrics} for step in range(1, EPOCHS + 1)],
                "computed": {},
                "seconds": SECONDS,
            },
        )
        return Report(
            status=Status.FINISHED,
            metrics=metrics,
            epoch=EPOCHS,
            history=(EpochMetrics(EPOCHS, metrics),),
            artifact=request.key(),
            cost=Cost(seconds=SECONDS * EPOCHS, epoch_seconds=SECONDS, peak_memory=1e9),
            host=_host(job),
            node=_host(job),
        )

    def _measured(self, job: Job, work: TestWork) -> Report:
        prepared, rows = PreparedData.open(work.data), self._test(work.data)
        keys, metrics = {}, dict[str, float]()
        for name, upstream in (("default", work.default), ("chosen", work.artifact)):
            if upstream:
                keys[name] = stage_key("evaluate", upstream=upstream, data=prepared.key)
                log_probs, metrics = rows.outputs[_drawn(keys[name])]
                self._store.write(
                    ArtifactRef("evaluate", keys[name]),
                    {"test": {"log_probs": log_probs, "labels": rows.labels}},
                    {"metrics": metrics, "upstream": upstream, "computed": {}},
                )
        measured = Measured(keys.get("default"), SECONDS, {})
        return Report(
            status=Status.FINISHED,
            metrics=metrics,
            artifact=keys["chosen"],
            measured=measured,
            host=_host(job),
            node=_host(job),
        )

    def _validation(self, directory: str) -> "Rows":
        if directory not in self._known:
            labels = PreparedData.open(directory).search().validation.labels
            self._known[directory] = Rows(labels, test=False)
        return self._known[directory]

    def _test(self, directory: str) -> "Rows":
        place = f"test of {directory}"
        if place not in self._known:
            self._known[place] = Rows(PreparedData.open(directory).test().labels, test=True)
        return self._known[place]


class Rows:
    """Labels of N rows, and simulated outputs for K classes with their metrics.

    Attributes:
        labels: (N,).
        outputs: Pairs of logits (N, K), or log-probabilities of test rows, and their metrics.
    """

    def __init__(self, labels: np.ndarray, test: bool) -> None:
        self.labels = torch.from_numpy(labels.copy())
        self.outputs = [self._output(number, test) for number in range(OUTPUTS)]

    def _output(self, number: int, test: bool) -> tuple[torch.Tensor, dict[str, float]]:
        draw = torch.Generator().manual_seed(number)
        logits = torch.randn(len(self.labels), CLASSES, generator=draw)
        right = torch.rand(len(self.labels), generator=draw) < 0.9
        logits[torch.arange(len(self.labels)), self.labels] += 4 * right
        logits *= 1 + torch.rand(1, generator=draw)
        if test:
            log_probs = logits.log_softmax(1)
            return log_probs, evaluation_report(log_probs, self.labels)
        found = calibration_report(logits=logits, labels=self.labels)
        return logits, {f"val_{name}": value for name, value in found.items()}


def _drawn(key: str) -> int:
    return int(key[:8], 16) % OUTPUTS


def _host(job: Job) -> str:
    return f"node{job.number % 50}"


def _running(job: Job, epoch: int) -> Report:
    metrics = {f"val_{name}": 0.5 for name in ("acc", "ece", "aece", "cwece", "nll", "brier")}
    return Report(
        status=Status.RUNNING,
        metrics=metrics,
        epoch=epoch,
        history=(EpochMetrics(epoch, metrics),),
        host=_host(job),
        node=_host(job),
    )


def sweep(folder: Path, trials: int, studies: int) -> SweepSpec:
    """Return a sweep with about ``studies`` studies: methods alone and refined, several tasks."""
    searched = [name for name in method_names() if _searches(name)]
    recipes = [*searched, *(f"{name}+macal" for name in searched)]
    tasks = max(1, round(studies / (len(recipes) + 1)))
    text = yaml.safe_dump(
        {
            "name": "scale",
            "tasks": [
                {
                    "name": f"task{number}",
                    "dataset": "digits",
                    "model": "convnet",
                    "protocol": {"base": "digits", "name": f"p{number}", "epochs": number + 3},
                }
                for number in range(tasks)
            ],
            "recipes": ["ce", *recipes],
            "search": {"trials": max(1, trials // studies)},
            "seeds": [0],
            "storage": str(folder / "storage"),
            "data_root": str(folder / "data"),
        }
    )
    (folder / "sweep.yaml").write_text(text, encoding="utf-8")
    return parse_sweep(text, "scale")


def _searches(method: str) -> bool:
    text = (
        "{name: x, tasks: [{dataset: digits, model: convnet, protocol: digits}], "
        f"recipes: [{method}], search: {{trials: 2}}}}"
    )
    (study,) = [each for each in make_plan(parse_sweep(text, "x")) if each.row]
    return study.trials == 2 and method != "ce"


@dataclass(frozen=True)
class Part:
    """One run of the sweep, up to an interruption or its end."""

    name: str
    driver: Driver
    seconds_before: float
    grown: float


@contextmanager
def on_slots(slots: Slots, driver: Driver) -> Iterator[None]:
    """Make ``run_sweep`` compute on ``slots`` within the block."""

    @contextmanager
    def opened(*_: Any) -> Iterator[Slots]:
        yield slots

    with (
        mock.patch.object(running, "open_executor", opened),
        mock.patch.object(StudySearch, "ask", lambda *given: driver.timed("ask", ASK, *given)),
    ):
        yield


def run_part(name: str, spec: SweepSpec, slots: int, stop: int | None) -> Part:
    """Run the sweep once."""
    driver = Driver()
    executor = Slots(Storage.of(spec).store(), slots, driver, stop)
    before, started = _memory(), time.perf_counter()
    with on_slots(executor, driver):
        running.run_sweep(spec)
    began = executor.began or time.perf_counter()
    return Part(name, driver, began - started, _memory() - before)


def _memory() -> float:
    return psutil.Process().memory_info().rss / 1e6


def asked(folder: Path, command: str) -> tuple[float, float, float]:
    """Return wall-clock seconds, CPU seconds and peak megabytes of a command."""
    named = {"plan": ["sweep.yaml"]}.get(command, ["scale", "--storage", "storage"])
    line = [sys.executable, "-m", "calsweep", command, *named]
    started = time.perf_counter()
    process = subprocess.Popen(
        line, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    told = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"calsweep {command}: {told[-500:]}")
    wall = time.perf_counter() - started
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3


def measure(wanted: argparse.Namespace) -> None:
    """Run everything and publish the page."""
    with tempfile.TemporaryDirectory(dir=wanted.folder, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        spec = sweep(folder, wanted.trials, wanted.studies)
        plan = make_plan(spec)
        started = time.perf_counter()
        parts = [
            run_part("until it is interrupted halfway", spec, wanted.slots, plan.trials // 2),
            run_part("resumed, to the end", spec, wanted.slots, None),
            run_part("run again after the end", spec, wanted.slots, None),
        ]
        whole = time.perf_counter() - started
        commands = [(command, *asked(folder, command)) for command in wanted.commands]
        journal = (folder / "storage/sweeps/scale/journal.jsonl").stat().st_size / 1e6
    place = (
        f"{len(list(plan))} studies, {plan.trials} trials, {wanted.slots} at once; "
        f"{setting('torch', 'optuna')}; load average {load()}; {whole:.0f} s in total; "
        f"the journal takes {journal:.0f} MB."
    )
    asking = [(f"`{c}`", f"{w:.1f}", f"{cpu:.1f}", f"{mb:.0f}") for c, w, cpu, mb in commands]
    files = {"-commands": (("command", "seconds", "of the processor", "most memory, MB"), asking)}
    publish(QUESTION, _parts_table(parts), place, wanted.out, files)


def _parts_table(parts: list[Part]) -> list[str]:
    columns = ["part", "trials and measurements", "ms of the driver's CPU each", "of which Optuna"]
    columns += [
        "longest call, s: choose the next job",
        "process a report",
        "seconds until the first job",
        "growth of the driver, MB",
    ]
    rows = [
        (
            part.name,
            part.driver.trials,
            part.driver.each("next", "take"),
            part.driver.each("ask"),
            f"{part.driver.steps.get('next', 0):.3f}",
            f"{part.driver.steps.get('take', 0):.3f}",
            f"{part.seconds_before:.1f}",
            f"{part.grown:.0f}",
        )
        for part in parts
    ]
    return table(columns, rows)


def main() -> None:
    """Print the page."""
    parser = options(__doc__)
    parser.add_argument("--trials", type=int, default=20_000)
    parser.add_argument("--slots", type=int, default=1_000)
    parser.add_argument("--studies", type=int, default=1_000)
    parser.add_argument("--folder", type=Path, help="where the sweep's files go for the time")
    parser.add_argument("--commands", nargs="+", default=COMMANDS)
    wanted = parser.parse_args()
    measure(wanted)


if __name__ == "__main__":
    main()
