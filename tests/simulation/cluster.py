"""A cluster in one process: virtual time, and faults that a seed decides.

Loop, search, worker and retry rule are the real ones. What is pretended is what takes time or
breaks: stages, processes, nodes, the network between them and the disk.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch

from orchestrator.executors._base import Executor
from orchestrator.executors._silence import Silence
from orchestrator.loop import Loop, Pause
from orchestrator.storage.events import Event
from trainables.common.errors import InputError
from trainables.common.stages import ArtifactRef
from trainables.jobs import FaultKind, Job, Measured, Report, Status, TestWork, hung, lost
from trainables.stages import StageRequest, StageRun, TaskData
from trainables.store.artifacts import Artifact, ArtifactStore
from trainables.store.locks import PATIENCE_SECONDS
from trainables.worker import Bench, Computation, Worker

LONGEST = 50_000.0  # Virtual seconds after which a run counts as waiting for ever.
# Undisturbed, every study chooses a trial, two trials fail, and the guard changes further seeds.
SALT = 150
HANG_SECONDS = 60.0  # Virtual ones, of a limit that is given.
LOOK_SECONDS = 5.0  # Between two looks at which processes hang.
EPOCHS, EPOCH_SECONDS = 3, 1.0  # Of a stage, and of an epoch by the clock of its process.
DETECTED = 5.0  # Virtual seconds until the end of a process is noticed, at most.


class Killed(BaseException):
    """The process that computes is gone at once, as by SIGKILL."""


@dataclass(frozen=True)
class Faults:
    """How often what goes wrong: each a share of the moments at which it may.

    Attributes:
        kill: Of a worker's operations on the store.
        lose, double: Of the reports: the connection breaks, or it comes twice.
        hang: Of the steps: a process stops in it, with all that it holds.
        node: Of the reports: a node goes, and another comes.
        gpu: Of the nodes: whatever computes there is failed by the machine.
        memory: Of the configurations: they need more than a share of a GPU.
        diverge: Of the configurations.
    """

    kill: float = 0.02
    lose: float = 0.03
    double: float = 0.05
    hang: float = 0.01
    node: float = 0.02
    gpu: float = 0.4
    memory: float = 0.1
    diverge: float = 0.1


NO_FAULTS = Faults(0, 0, 0, 0, 0, 0)  # What a configuration does, it does undisturbed too.


class World:
    """Virtual time, in seconds, and what happens in it."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self.random, self.faults, self.now = Random(seed), faults, 0.0
        self._coming: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.at_work: Process | None = None  # Whose operations these are.
        self.lives = 0  # How many drivers began.
        self.attempts: list[Attempt] = []
        self.written: list[
            tuple[int, Event]
        ] = []  # By which driver; with what a power cut removed.
        self.hung = False  # Whether a process ever stood still with all it held.
        self.stopped = 0  # How many did while a driver was there to notice it.

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.at(self.now + seconds, action)

    def at(self, time: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._coming, (time, self._count, action))

    def go_on(self) -> None:
        """Come to what happens next.

        Raises:
            RuntimeError: If nothing does, or it takes for ever.
        """
        if not self._coming or self.now > LONGEST:
            raise RuntimeError(f"at {self.now:.0f} s somebody waits for ever")
        self.now, _, action = heapq.heappop(self._coming)
        action()

    def happens(self, share: float) -> bool:
        return self.random.random() < share

    def operation(self) -> None:
        if self.at_work is not None and self.happens(self.faults.kill):
            raise Killed


@dataclass(eq=False)
class Attempt:
    """One start of a job on a process.

    Attributes:
        job: The job.
        life: Which driver started it, from 1.
        fault: Why it may be started again: a fault of the machine, or of its memory.
        last: The last report on it while it ran that the driver received.
        ended: Whether the driver received its end.
        epochs: How many it computed.
    """

    job: Job
    life: int
    fault: FaultKind | None = None
    last: Report | None = None
    ended: bool = False
    epochs: int = 0

    def receive(self, report: Report) -> None:
        if not self.ended:
            self.ended, self.last = report.ended, self.last if report.ended else report

    @property
    def loop(self) -> tuple[int, bool, str]:
        return self.life, isinstance(self.job.work, TestWork), self.job.key


@dataclass
class _Lock:
    """The lock of an artifact."""

    world: World
    holder: Process | None = None
    heard: float = 0.0

    def take(self) -> bool:
        self.world.operation()
        if self.holder is not None and self.holder is not self.world.at_work:
            return self.world.now - self.heard > PATIENCE_SECONDS
        self.holder, self.heard = self.world.at_work, self.world.now
        return True

    def keep(self) -> None:
        if self.holder is self.world.at_work:
            self.heard = self.world.now

    def release(self) -> None:
        if self.holder is self.world.at_work:
            self.holder = None


@dataclass
class _Checkpoint:
    """The state of a stage, on a disk that outlives every process."""

    world: World
    content: dict[str, Any] | None = None

    def exists(self) -> bool:
        return self.content is not None

    def write(self, content: dict[str, Any]) -> None:
        self.world.operation()
        self.content = content

    def read(self) -> dict[str, Any]:
        assert self.content is not None
        return self.content

    def remove(self) -> None:
        self.world.operation()
        self.content = None


class MemoryStore(ArtifactStore):
    """Artifacts that outlive every process of a world, but not the world."""

    def __init__(self, world: World) -> None:
        super().__init__(Path("/nowhere"))
        self._world = world
        self.found: dict[tuple[str, str], Artifact] = {}
        self._locks: dict[str, _Lock] = {}
        self._checkpoints: dict[str, _Checkpoint] = {}
        self.written: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()

    def find(self, ref: ArtifactRef) -> Artifact | None:
        return self.found.get(ref)

    def contains(self, ref: ArtifactRef) -> bool:
        return ref in self.found

    holds = contains

    def write(
        self, ref: ArtifactRef, tensors: Mapping[str, Any], record: Mapping[str, Any]
    ) -> Artifact:
        """Keep an outcome."""
        self._world.operation()
        found = self.found.setdefault(ref, Artifact(ref, self.root, record))
        self.written[ref.key] += 1
        self._world.operation()
        return found

    def lose(self, share: float) -> None:
        """Lose a share of the artifacts, as by damage to their files."""
        gone = [place for place in self.found if self._world.happens(share)]
        for place in gone:
            del self.found[place]
            self.lost[place[1]] += 1

    def lock(self, ref: ArtifactRef) -> Any:
        return self._locks.setdefault(ref.key, _Lock(self._world))

    def checkpoint(self, ref: ArtifactRef) -> Any:
        return self._checkpoints.setdefault(ref.key, _Checkpoint(self._world))

    def release_all(self, process: Process) -> None:
        for lock in self._locks.values():
            lock.holder = None if lock.holder is process else lock.holder


def draws(key: str) -> Random:
    return Random(int(hashlib.sha256(f"{SALT} {key}".encode()).hexdigest()[:12], 16))


class _Run(StageRun):
    """A stage whose figures its key decides; those of the same pass are stored with it."""

    epochs = EPOCHS

    def __init__(self, bench: SimulatedBench, request: StageRequest):
        super().__init__(request, bench.store, bench.task("", False))
        self._bench, self._world = bench, bench.world
        self._name = told(request.plain())
        draw = draws(self._name)
        self._diverges = draw.random() < self._world.faults.diverge
        self._large = draw.random() < self._world.faults.memory

    def run_epoch(self) -> dict[str, float]:
        process = self._world.at_work
        assert process is not None
        assert process.attempt is not None
        self._world.operation()
        if process.node.broken:
            process.attempt.fault = FaultKind.MACHINE
            raise OSError(5, "Input/output error")
        if self._large and 0 < process.gpus < 1:
            process.attempt.fault = FaultKind.MEMORY
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.epoch += 1
        if self._diverges and self.epoch == 2:
            raise ArithmeticError("train_loss became nan in epoch 2")
        process.attempt.epochs += 1
        self._bench.computed += EPOCH_SECONDS
        return figures(self._name, self.epoch)

    def finish(self, *told: Any) -> Artifact:
        for other in self.request.members:
            run = _Run(self._bench, other)
            if other is not self.request and not run._diverges:
                told_epochs = [figures(run._name, epoch) for epoch in (1, 2, 3)]
                history = [{"step": e, "metrics": m} for e, m in enumerate(told_epochs, 1)]
                StageRun.finish(run, told_epochs[-1], history)
        return super().finish(*told)

    def outcome(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {}

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]


def told(request: Mapping[str, Any]) -> str:
    upstream = request["upstream_request"]
    below = told(upstream) if upstream else ""
    return f"{request['stage']} {sorted(request['parts'].items())} {request['seed']} {below}"


def figures(stage: str, epoch: int) -> dict[str, float]:
    draw = draws(f"{stage} {epoch}")
    return {"val_ece": draw.choice((0.01, 0.02)), "val_acc": draw.choice((0.9, 0.95, 0.955))}


class _Test(Computation):
    """A measurement whose figures the artifact's key decides."""

    def __init__(self, bench: SimulatedBench, work: TestWork) -> None:
        super().__init__(bench, work.artifact.key)
        self._work = work

    def advance(self) -> Status:
        if self.bench.store.find(self._work.artifact) is None:
            raise InputError(f"artifact {self._work.artifact.key} is missing or damaged")
        self.metrics = {"ece": draws(f"test {self._work.artifact.key}").random()}
        for one in filter(None, (self._work.artifact, self._work.default)):
            self.bench.store.write(ArtifactRef("evaluate", f"of {one.key}"), {}, {})
        return Status.FINISHED

    def outcome(self) -> dict[str, Any]:
        default = f"of {self._work.default.key}" if self._work.default else None
        measured = Measured(default, 1.0, {})
        return {"artifact": f"of {self._work.artifact.key}", "measured": measured}


class _Meter:
    """Measures nothing, in no time."""

    def epoch(self) -> Any:
        return nullcontext()

    def report(self) -> dict[str, float]:
        return {"epoch_seconds": 1.0, "peak_memory": 1.0}


class SimulatedBench(Bench):
    """A bench in virtual time."""

    def __init__(self, world: World, store: MemoryStore) -> None:
        self.notices: list[str] = []
        self.store, self.world, self.waits, self.logs, self._code = store, world, 0.0, None, None
        self.report_seconds, self.checkpoint_seconds = -1.0, 0.0  # After every epoch.
        self.computed = 0.0  # Seconds of its epochs; no time passes for the others.
        self.device = torch.device("cpu")
        self.meter: Any = _Meter()
        self.processes, self._altered = 1, None

    def use(self, device: torch.device, processes: int = 1) -> None:
        """Stay where it is."""

    def clock(self) -> float:
        return self.world.now + self.computed

    def pause(self, seconds: float) -> None:
        self.waits = seconds

    def task(self, directory: str, graph: bool) -> Any:
        return self

    def open_run(self, request: StageRequest, data: TaskData) -> StageRun:
        return _Run(self, request)


class _Worker(Worker):
    def _begin(self, job: Job) -> Computation:
        if isinstance(job.work, TestWork) and isinstance(self._bench, SimulatedBench):
            return _Test(self._bench, job.work)
        return super()._begin(job)


@dataclass(eq=False)
class Node:
    """A machine with room for some processes; a broken one fails whatever computes there."""

    name: str
    broken: bool
    processes: list[Process] = field(default_factory=list)


@dataclass(eq=False)
class Process:
    """A worker's process; one without a job waits for the next."""

    node: Node
    bench: SimulatedBench
    sealed: bool
    alive: bool = True
    hangs: bool = False
    attempt: Attempt | None = None
    arrival: float = 0.0  # Of its last report: they come in order.

    def __post_init__(self) -> None:
        self.worker = _Worker(self.bench, self.node.name)

    @property
    def job(self) -> Job | None:
        return self.attempt.job if self.attempt else None

    @property
    def gpus(self) -> float:
        return self.job.gpus if self.job else 0.0


class Simulated(Executor):
    """Computes the jobs of a loop on pretended nodes.

    Args:
        world: Decides what goes wrong, and when.
        store: The artifacts.
        nodes: How many there are, with two processes each.
    """

    def __init__(self, world: World, store: MemoryStore, nodes: int = 2) -> None:
        self._world, self._store, self._count = world, store, nodes
        self._nodes = [Node(f"node{number}", False) for number in range(nodes)]
        self._held: list[Job] = []
        self._silence = Silence["Process"](HANG_SECONDS, lambda: world.now)
        self._loop: Loop | None = None
        self._sealed = True
        world.lives += 1

    def run(self, loop: Loop, sealed: bool = True) -> None:
        """Compute until the loop is done."""
        self.abandon(at_once=True)  # No process computes for both.
        self._loop, self._sealed = loop, sealed
        for node in self._nodes:
            self._populate(node)
        self._look(loop)
        while not self._give_out(loop):
            self._world.go_on()

    def _look(self, loop: Loop) -> None:
        """End the processes that hang, now and every few seconds while this loop runs."""
        if self._loop is not loop:
            return
        for process, seconds in self._silence.hung().items():
            assert process.attempt is not None
            silent = Report(status=Status.RUNNING, host=process.node.name, node=process.node.name)
            last = process.attempt.last or silent
            self._end(process, hung(process.attempt.job, last, seconds))
        self._world.after(LOOK_SECONDS, partial(self._look, loop))

    def abandon(self, at_once: bool) -> None:
        """Lose the driver: its processes go too, at once or some time later."""
        self._loop = None
        for process in [process for node in self._nodes for process in node.processes]:
            if at_once:
                self._end(process)
            else:
                process.hangs = self._world.happens(0.1) or process.hangs
                self._world.hung |= process.hangs
                later = self._world.random.choice((0.0, 3.0, 30.0, 2000.0))
                self._world.after(later, partial(self._end, process))

    def _new_node(self) -> Node:
        self._count += 1
        sound = any(not node.broken for node in self._nodes)  # Else nothing could end well.
        return Node(f"node{self._count}", sound and self._world.happens(self._world.faults.gpu))

    def _populate(self, node: Node) -> None:
        for _ in range(2 - len(node.processes)):
            bench = SimulatedBench(self._world, self._store)
            node.processes.append(Process(node, bench, self._sealed))

    def _give_out(self, loop: Loop) -> bool:
        """Start what can start; return True once the loop is done."""
        while free := [p for node in self._nodes for p in node.processes if p.job is None]:
            job = self._held.pop() if self._held else loop.next()
            if isinstance(job, Pause):
                return job is Pause.DONE
            process = self._place(job, free)
            if process is None:
                self._held.append(job)
                return False
            self._start(process, job)
        return False

    def _place(self, job: Job, free: list[Process]) -> Process | None:
        """Return where a job can start: not where it failed if it can be elsewhere."""
        if job.alone:
            free = [p for p in free if all(other.job is None for other in p.node.processes)]
        elsewhere = [p for p in free if p.node.name not in job.avoided]
        others = any(node.name not in job.avoided for node in self._nodes)
        found = elsewhere if others else free
        return self._world.random.choice(found) if found else None

    def _start(self, process: Process, job: Job) -> None:
        assert process.sealed is not isinstance(job.work, TestWork)
        attempt = process.attempt = Attempt(job, self._world.lives)
        self._world.attempts.append(attempt)
        self._silence.heard(process)
        if self._works(process, lambda: process.worker.open(job)):
            self._step_later(process, attempt)

    def _step_later(self, process: Process, attempt: Attempt) -> None:
        seconds = self._world.random.expovariate(1.0) + process.bench.waits
        process.bench.waits = 0.0
        self._world.after(seconds, lambda: self._step(process, attempt))

    def _works(self, process: Process, action: Callable[[], None]) -> bool:
        """Do something in a process; return False if that was its end."""
        self._world.at_work = process
        try:
            action()
        except Killed:
            self._end(process)
            return False
        finally:
            self._world.at_work = None
        return True

    def _step(self, process: Process, attempt: Attempt) -> None:
        if not process.alive or process.hangs or process.attempt is not attempt:
            return
        if self._world.happens(self._world.faults.hang):
            process.hangs = True
            self._world.stopped += self._loop is not None
            self._world.hung |= self._loop is None  # Nobody notices it.
            return
        reports: list[Report] = []
        if not self._works(process, lambda: reports.append(process.worker.step())):
            return
        (report,) = reports
        if self._world.happens(self._world.faults.lose):
            self._end(process)
            return
        self._send(process, attempt, report)
        if not report.ended:
            self._step_later(process, attempt)

    def _send(self, process: Process, attempt: Attempt, report: Report) -> None:
        latency = self._world.random.expovariate(5.0)
        process.arrival = max(process.arrival, self._world.now + latency)
        arrive = partial(self._arrive, self._loop, process, attempt, report)
        self._world.at(process.arrival, arrive)
        if self._world.happens(self._world.faults.double):
            late = process.arrival + self._world.random.expovariate(0.5)
            self._world.at(late, partial(self._take, self._loop, attempt, report))

    def _arrive(
        self, loop: Loop | None, process: Process, attempt: Attempt, report: Report
    ) -> None:
        if process.alive and process.attempt is attempt:
            self._silence.heard(process)
        if report.ended and process.attempt is attempt:
            process.attempt = None
            self._silence.over(process)
            if report.fault is not None and report.fault.kind == FaultKind.MACHINE:
                self._end(process)
        self._take(loop, attempt, report)
        if self._world.happens(self._world.faults.node):
            self._exchange(self._world.random.choice(self._nodes))

    def _take(self, loop: Loop | None, attempt: Attempt, report: Report) -> None:
        if loop is not None and loop is self._loop:
            attempt.receive(report)
            loop.take(attempt.job, report)

    def _exchange(self, node: Node) -> None:
        """Lose a node; another one joins."""
        self._nodes.remove(node)
        for process in list(node.processes):
            self._end(process)
        self._nodes.append(self._new_node())
        self._populate(self._nodes[-1])

    def _end(self, process: Process, report: Report | None = None) -> None:
        """End a process; its node starts another, and the driver hears of it a little later."""
        if not process.alive:
            return
        process.alive = False
        self._silence.over(process)
        self._store.release_all(process)
        process.node.processes.remove(process)
        if process.node in self._nodes and self._loop is not None:
            self._populate(process.node)
        attempt, process.attempt = process.attempt, None
        if attempt is not None:
            noticed = self._world.random.uniform(0, DETECTED)
            take = partial(self._take_end, self._loop, attempt, report)
            self._world.after(noticed, take)

    def _take_end(self, loop: Loop | None, attempt: Attempt, report: Report | None) -> None:
        if not attempt.ended:  # Else its own report came first.
            attempt.fault = FaultKind.MACHINE
        self._take(loop, attempt, report or lost(attempt.last))
