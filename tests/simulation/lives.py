"""One sweep on a simulated cluster: the driver dies and comes back until it is done."""

import functools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.running.control import Control
from orchestrator.running.drive import drive, is_done
from orchestrator.search.state import SweepState
from orchestrator.storage.events import (
    Epoch,
    Evaluated,
    Event,
    SweepEnded,
    SweepStarted,
    TrialFinished,
    TrialPlaced,
)
from orchestrator.storage.journal import SAID_AGAIN
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.machines import Machines
from orchestrator.storage.results import StudyResult, results_of
from orchestrator.sweep.plan import make_plan
from orchestrator.sweep.spec import parse_sweep
from tests.simulation.cluster import (
    DETECTED,
    EPOCH_SECONDS,
    EPOCHS,
    HANG_SECONDS,
    LOOK_SECONDS,
    NO_FAULTS,
    Attempt,
    Faults,
    MemoryStore,
    Simulated,
    World,
)
from tests.simulation.delivery import Delivery
from trainables.data import PreparedData, SplitSpec, prepare
from trainables.jobs import FaultKind

SPEC = parse_sweep(
    """
name: simulated
tasks: [{name: d, dataset: digits, model: convnet, protocol: digits}]
recipes: [ce, mbls, mbls+ts, mbls+macal]
search:
  {trials: 3, parallel_trials: 2, sampler: random, accuracy_tolerance: 0.01, objective: ece,
    keep_default: false}
seeds: [0, 1]
resources: {train: {gpu: 0.5}, max_failures: 2}
""",
    "simulated",
)
PLAN = make_plan(SPEC)
STORMY, CALM = Faults(), NO_FAULTS
PROMPT = 300.0  # Virtual seconds within which all is done unless a process hangs.
LIVES = 12  # Most often the driver dies; then it is left in peace.


class DriverKilled(BaseException):
    """The driver is gone at once."""


@dataclass
class Disk:
    """The journal: what is written is there, but after a power cut only what was synced."""

    world: World
    die: float
    events: list[Event] = field(default_factory=list)
    synced: int = 0
    peace: bool = False

    def append(self, event: Event) -> None:
        if isinstance(event, TrialPlaced):  # Nothing depends on it: no moment of its own to die.
            self._write(event)
            return
        self._perhaps_die()
        event.time = int(self.world.now * 1000) + 1
        self._write(event)
        if not isinstance(event, SAID_AGAIN):
            self.synced = len(self.events)
        self._perhaps_die()

    def _write(self, event: Event) -> None:
        self.events.append(event)
        self.world.written.append((self.world.lives, event))

    def _perhaps_die(self) -> None:
        if not self.peace and self.world.happens(self.die):
            raise DriverKilled

    def cut_power(self) -> None:
        del self.events[self.synced :]


@dataclass(frozen=True)
class Outcome:
    """What a sweep left behind."""

    seed: int
    events: Sequence[Event]
    store: MemoryStore
    delivery: Delivery
    lives: int
    done: bool
    world: World
    seconds: float

    @functools.cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.events)

    @functools.cached_property
    def results(self) -> list[StudyResult]:
        return results_of(self.ledger)

    @property
    def table(self) -> list[Any]:
        rows = self.results
        return [(r.recipe, r.status, r.configuration, r.validation, r.test, r.reason) for r in rows]


@functools.cache
def data(folder: Path) -> Mapping[str, PreparedData]:
    return {"d": prepare("digits", folder, SplitSpec(train_limit=50), folder / "prepared")}


def live(seed: int, folder: Path, weather: Faults = STORMY, die: float = 0.01) -> Outcome:
    """Run the sweep; the seed decides all that goes wrong."""
    world = World(seed, weather)
    store, disk = MemoryStore(world), Disk(world, die)
    delivery = Delivery(world, disk.events)
    done, lives = False, 0
    while not done and lives < 50:
        lives += 1
        disk.peace = lives > LIVES
        cluster = Simulated(world, store)
        try:
            before = len(disk.events)
            _one_life(disk, store, cluster, folder)
            # What built on a former choice may have failed too: nothing tries that again.
            nothing_new = len(disk.events) == before + 2
            done = nothing_new or not _machines_failed(Ledger(disk.events))
        except DriverKilled:
            power_cut = world.happens(0.3)
            cluster.abandon(at_once=power_cut)
            if power_cut:
                disk.cut_power()
                delivery.lose_power()
            if not disk.peace and world.happens(0.1):
                store.lose(0.1)
        if world.happens(0.5):
            delivery.deliver()
    seconds = world.now
    delivery.deliver(until_done=True)
    return Outcome(seed, disk.events, store, delivery, lives, done, world, seconds)


def _machines_failed(ledger: Ledger) -> bool:
    lost = any(study.reason.startswith("not measured") for study in ledger.studies.values())
    return lost or any(trial.fault for trial in ledger.trials.values())


def _one_life(disk: Disk, store: MemoryStore, cluster: Simulated, folder: Path) -> None:
    past = Ledger(disk.events)
    begun = SweepStarted(sweep="simulated", sweep_id="id", spec={}, provenance={})
    disk.append(begun)
    state = SweepState(PLAN, "id", data(folder), disk.append, past, store.contains)
    if not is_done(state, past, store):
        control: Any = Control(None, lambda text: None)
        drive(state, past, store, cluster, disk, control, Machines())
    disk.append(SweepEnded(status="finished" if state.succeeded else "failed"))


def faults(found: Outcome, calm: Outcome) -> Iterator[str]:
    """Yield what is not as it must be, whatever happened."""
    if not found.done:
        yield "the sweep did not end"
    if found.table != calm.table:
        yield "the table differs from that of the undisturbed sweep"
    for key, trial in calm.ledger.trials.items():
        told = found.ledger.trials.get(key)
        if told is None or told.objective != trial.objective:
            yield f"the objective of {trial.role} trial {key[:6]} is not that of the calm sweep"
    waited = found.world.stopped * (HANG_SECONDS + LOOK_SECONDS + DETECTED)
    if found.seconds > PROMPT + waited and not found.world.hung:
        yield f"it took {found.seconds:.0f} s: somebody waited without a reason"
    yield from _faults_of_attempts(found.world)
    yield from _faults_of_trials(found)
    yield from _faults_of_seconds(found.world)
    yield from _faults_of_epochs(found)
    yield from _faults_of_the_store(found.store, found.world.hung)
    yield from _faults_of_the_tracker(found)


def _faults_of_attempts(world: World) -> Iterator[str]:
    """Yield trials that a driver tried too often or too rarely, or placed not once an attempt."""
    most = {FaultKind.MACHINE: SPEC.resources.max_failures, FaultKind.MEMORY: 1, None: 0}
    by_job = defaultdict[Any, list[Attempt]](list)
    for attempt in world.attempts:
        by_job[attempt.loop].append(attempt)
    for (life, _, key), tried in by_job.items():
        repeated = Counter(attempt.fault for attempt in tried[:-1])
        if any(count > most[fault] for fault, count in repeated.items()):
            yield f"driver {life} started trial {key[:6]} again after {dict(repeated)}"
    failed = Counter((a.life, a.job.key) for a in world.attempts if a.fault == FaultKind.MACHINE)
    given_up = [(n, e.key) for n, e in world.written if isinstance(e, TrialFinished) and e.fault]
    for life, key in given_up:
        if (times := failed[life, key]) <= most[FaultKind.MACHINE]:
            yield f"driver {life} gave trial {key[:6]} up after {times} attempts"
    begun = Counter((attempt.life, attempt.job.key) for attempt in world.attempts if attempt.last)
    placed = Counter((life, e.key) for life, e in world.written if isinstance(e, TrialPlaced))
    for life, key in sorted({*begun, *placed}):
        if (times := placed[life, key]) != (tried := begun[life, key]):
            yield f"driver {life} placed trial {key[:6]} {times} times in {tried} attempts"


def _faults_of_trials(found: Outcome) -> Iterator[str]:
    events, trials, lost = found.events, found.ledger.trials, found.store.lost
    ends = Counter(e.key for e in events if isinstance(e, TrialFinished) and not e.fault)
    measured = Counter(e.key for e in events if isinstance(e, Evaluated))
    # Where the machine failed a trial for good, a resumed sweep may choose another one: what built
    # on the former choice is left, and what is chosen now is measured beside the default again.
    changed = any(isinstance(e, TrialFinished) and e.fault for e in events)
    for key, trial in trials.items():
        if not 1 - changed <= ends[key] <= 1 + lost[trial.artifact]:
            yield f"trial {key[:6]} ended {ends[key]} times"
        if measured[key] > 1 + changed + lost.total():
            yield f"trial {key[:6]} was measured {measured[key]} times"
        steps = {e.step for e in events if isinstance(e, Epoch) and e.key == key}
        if trial.status == "finished" and steps != {1, 2, 3}:
            yield f"trial {key[:6]} has epochs {sorted(steps)}"
        if trial.epochs != len(steps):
            yield f"trial {key[:6]} counts {trial.epochs} epochs, not {len(steps)}"
    for study in PLAN:
        told = found.ledger.studies[study.id]
        if told.finished + told.failed != study.trials:
            yield f"{study.id} counts {told.finished} + {told.failed} of {study.trials} trials"


def _faults_of_seconds(world: World) -> Iterator[str]:
    """Yield trials that ended with other seconds than those of their epochs."""
    steps, known = Counter[str](), Counter[tuple[int, str]]()
    for attempt in world.attempts:
        if attempt.last:
            place = attempt.life, attempt.job.key
            known[place] = max(known[place], attempt.last.epoch)
    for life, event in world.written:
        if isinstance(event, Epoch):
            steps[event.key] = max(steps[event.key], event.step)
        if isinstance(event, TrialFinished):
            counted = (event.seconds or 0.0) / EPOCH_SECONDS
            if event.fault:  # It may have computed more than its driver knows.
                right = counted >= known[life, event.key]
            else:
                right = counted == (0 if event.reused else steps[event.key])
            if not right:
                yield f"trial {event.key[:6]} {event.status} after {event.seconds} s"


def _faults_of_epochs(found: Outcome) -> Iterator[str]:
    """Yield trials that computed epochs again although a checkpoint had them."""
    computed, attempts = Counter[str](), Counter[str]()
    for attempt in found.world.attempts:
        computed[attempt.job.key] += attempt.epochs
        attempts[attempt.job.key] += 1
    for key, trial in found.ledger.trials.items():
        # An attempt that fails may lose its last epoch, but none before it.
        most = EPOCHS * (1 + found.store.lost[trial.artifact]) + attempts[key]
        if trial.status == "finished" and computed[key] > most:
            yield f"trial {key[:6]} computed {computed[key]} epochs in {attempts[key]} attempts"


def _faults_of_the_store(store: MemoryStore, hung: bool) -> Iterator[str]:
    for (stage, key), artifact in store.found.items():
        if stage == "evaluate":
            continue
        if artifact.record.get("seconds") not in (None, EPOCHS * EPOCH_SECONDS):
            yield f"{stage} {key[:6]} is stored with {artifact.record['seconds']} s"
        steps = [entry["step"] for entry in artifact.record["history"]]
        if steps != [1, 2, 3]:
            yield f"{stage} {key[:6]} has the history {steps}"
        # What one pass stores of another stage may be computed by that one's own trial too.
        if store.written[key] > 1 + store.lost[key] and stage != "refine" and not hung:
            yield f"{stage} {key[:6]} was computed {store.written[key]} times"


def _faults_of_the_tracker(found: Outcome) -> Iterator[str]:
    tracked = [replace(result, run_ids=()) for result in found.delivery.results()]
    if tracked != found.results:
        yield "the tracker tells another table than the journal"
    tracker = found.delivery.tracker
    keys = Counter(run.tags["calsweep.key"] for run in tracker.held.values())
    if keys != Counter([*found.ledger.studies, *found.ledger.trials]):
        yield "the tracker has other runs than the journal, or one twice"
    epochs = defaultdict[str, set[tuple[int, float]]](set)
    for event in found.events:
        if isinstance(event, Epoch):
            epochs[event.key].add((event.step, event.metrics["val_ece"]))
    for run in tracker.held.values():
        key, points = run.tags["calsweep.key"], tracker.points.get(run.id, {}).get("val_ece", ())
        told = Counter((step, value) for step, _, value in points)
        twice = max(told.values(), default=0) > 1 and not found.delivery.cut
        if key in found.ledger.trials and (told.keys() != epochs[key] or twice):
            yield f"the tracker has other epochs of trial {key[:6]} than the journal"
