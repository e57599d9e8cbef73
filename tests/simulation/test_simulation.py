import inspect
import textwrap
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import pytest

from orchestrator import loop as loop_module
from orchestrator.executors._silence import Silence
from orchestrator.loop import Loop
from orchestrator.running import drive as drive_module
from orchestrator.running.control import Control
from orchestrator.running.drive import MeasuringSource, drive
from orchestrator.search import state as state_module
from orchestrator.search.state import SweepState
from orchestrator.search.study import StudySearch
from orchestrator.search.study_state import Past, StudyState, TrialMaker
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.machines import IN_A_ROW, Machines
from orchestrator.tracking._shipper import _Shipper
from tests.simulation import suggested
from tests.simulation.cluster import MemoryStore, Process, Simulated, World
from tests.simulation.lives import CALM, PLAN, Disk, Outcome, data, faults, live
from tests.simulation.suggested import SuggestedOnce, make_once, open_once
from trainables import jobs
from trainables.data import PreparedData
from trainables.jobs import Job
from trainables.worker import Worker
from trainables.worker._computations import StageComputation

SEEDS, LONG, MOST = 300, 10_000, 300


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Outcome]]:
    """Return what runs the sweep of a seed; what is the same in all is computed once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PreparedData, "open", cache(PreparedData.open))
        patch.setattr(state_module, "StudySearch", SuggestedOnce)
        patch.setattr(TrialMaker, "make", make_once)
        patch.setattr(StudyState, "opening", open_once)
        yield partial(live, folder=tmp_path_factory.mktemp("simulated"))


@pytest.fixture(scope="module")
def calm(run: Callable[..., Outcome]) -> Outcome:
    return run(0, weather=CALM, die=0.0)


def test_undisturbed_sweep_has_no_fault(calm: Outcome) -> None:
    assert list(faults(calm, calm)) == []
    assert {row[1] for row in calm.table} == {"finished"}
    assert calm.lives == 1


def check(seeds: range, run: Callable[..., Outcome], calm: Outcome) -> None:
    wrong = {seed: told for seed in seeds if (told := list(faults(run(seed), calm)))}
    assert wrong == {}


@pytest.mark.full
def test_disturbed_sweeps_end_as_undisturbed_ones(run, calm):
    check(range(SEEDS), run, calm)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 100_000, LONG))
def test_many_disturbed_sweeps_end_as_undisturbed_ones(first, run, calm):
    check(range(first, first + LONG), run, calm)


def test_seed_replays_its_run(run: Callable[..., Outcome]) -> None:
    seed = next(seed for seed in range(SEEDS) if run(seed).lives > 2)
    one, again = run(seed), run(seed)
    assert (one.events, one.seconds) == (again.events, again.seconds)


def test_values_computed_once_equal_values_computed_again(run, monkeypatch):
    once = run(1).events
    monkeypatch.setattr(state_module, "StudySearch", StudySearch)
    monkeypatch.setattr(TrialMaker, "make", suggested._make)
    monkeypatch.setattr(StudyState, "opening", suggested._opening)
    assert run(1).events == once


@pytest.mark.parametrize("seed", range(20))
def test_broken_node_is_left_out(seed, run, calm, tmp_path):
    world, said, starts = World(seed, CALM), list[str](), list[Any]()
    disk, store = Disk(world, 0.0), MemoryStore(world)
    cluster = Simulated(world, store, nodes=3)
    bad, real = cluster._nodes[0], cluster._start
    bad.broken = True

    def start(process: Process, job: Job) -> None:
        starts.append((process.node, len(said), job.key))
        real(process, job)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "_start", start)
        state = SweepState(PLAN, "id", data(tmp_path), disk.append, Ledger(), store.contains)
        control: Any = Control(None, lambda text: None)
        machines = Machines(say=said.append)
        drive(state, Ledger(), store, cluster, disk, control, machines)
    last = {key: node for node, _, key in starts}  # Bad for those that found their outcome stored.
    failed = {key for node, _, key in starts if node is bad and last[key] is not bad}
    assert len(said) == 1 or len(failed) < IN_A_ROW
    assert all(" is excluded: 3 trials in a row failed there, the last with O" in t for t in said)
    assert not [key for node, told, key in starts if node is bad and told]
    found = Outcome(seed, disk.events, store, calm.delivery, 1, True, world, world.now)
    assert found.table == calm.table


def planted(owner: Any, function: str, old: str, new: str) -> Callable[..., Any]:
    """Return a function or method with a bug in place of a piece of its source."""
    real = getattr(owner, function)
    source = textwrap.dedent(inspect.getsource(real))
    assert source.count(old) == 1, f"{function} does not hold {old!r} once"
    found: dict[str, Any] = {}
    exec(compile(source.replace(old, new), f"planted {function}", "exec"), real.__globals__, found)
    return found[function]


BUGS = {
    "a report of an earlier attempt is taken": (
        Loop,
        "take",
        "if self._running.get(job.key) != job.attempt:",
        "if job.key not in self._running:",
    ),
    "an end is taken twice": (Loop, "take", "del self._running[job.key]", "pass"),
    "a retry is lost": (Loop, "take", "self._retries.append(retry) if retry else", "retry or"),
    "the machine's fault counts as final": (
        jobs,
        "next_attempt",
        "kind == FaultKind.MACHINE",
        "kind == FaultKind.STORAGE",
    ),
    "a trial is tried once too often": (
        jobs,
        "next_attempt",
        "job.failures < most_failures",
        "job.failures <= most_failures",
    ),
    "a configuration's fault is tried again": (
        jobs,
        "next_attempt",
        "kind == FaultKind.MACHINE and",
        "kind in (FaultKind.MACHINE, FaultKind.CONFIGURATION) and",
    ),
    "every report tells where a trial runs": (
        Loop,
        "take",
        "self._placed.add((job.key, job.attempt))",
        "pass",
    ),
    "only a first attempt tells where it runs": (
        Loop,
        "take",
        "(job.key, job.attempt) not in self._placed",
        "job.attempt == 0 and (job.key, 0) not in self._placed",
    ),
    "a job that wants a whole GPU gets its share again": (jobs, "next_attempt", "gpus=1.0, ", ""),
    "a process that hangs is left alone": (Silence, "hung", "silent > self.limit", "False"),
    "a lock is never released": (StageComputation, "close", "self._lock.release()", "pass"),
    "a lock is not waited for": (
        StageComputation,
        "_begin",
        "not self._lock.take()",
        "self._lock is None",
    ),
    "epochs are told from the wrong place": (
        Worker,
        "_report",
        "self._reported = len(computation.history)",
        "self._reported = len(computation.history) + 1",
    ),
    "a checkpoint is not read": (StageComputation, "_opened", "not checkpoint.exists()", "True"),
    "a resumed stage forgets its seconds": (
        StageComputation,
        "_opened",
        "self.seconds = self._saved =",
        "self._saved =",
    ),
    "a lost process erases the seconds of its trial": (
        Loop,
        "take",
        "report = charged(job, report)",
        "pass",
    ),
    "seconds before a checkpoint count twice": (
        StageComputation,
        "_opened",
        'state["seconds"]',
        '2 * state["seconds"]',
    ),
    "a repeated epoch counts again": (Ledger, "_epoch", "event.step <= trial.last_step", "False"),
    "a resumed stage forgets its history": (
        StageComputation,
        "_opened",
        'for epoch in state["history"]',
        "for epoch in ()",
    ),
    "an end is not written": (SweepState, "record", "self._emit(outcome)", "pass"),
    "a trial that ended is given out again": (Past, "outcome", "not trial.ended", "True"),
    "what is lost is built on": (
        SweepState,
        "_kept_outcome",
        "self._available(Ended(trial, outcome).ref)",
        "True",
    ),
    "the machine's fault is never tried again": (Past, "outcome", "or trial.fault", ""),
    "a further seed is guarded by the first one": (
        SweepState,
        "_score_seeds",
        "self.scores.score(study, one, position)",
        "self.scores.score(study, one)",
    ),
    "a further seed does not wait for its guard": (
        SweepState,
        "_score_seeds",
        "position not in reference.seeds",
        "False",
    ),
    "a measurement is dropped": (
        MeasuringSource,
        "next",
        "if not self._left[training]:",
        "if True:",
    ),
    "what was measured is measured again": (
        drive_module,
        "_is_complete",
        "return all(",
        "return False and all(",
    ),
    "an end counts twice": (Ledger, "_trial_finished", '- (trial.status == "finished")', ""),
    "a run is created without looking": (
        _Shipper,
        "_deliver_pending",
        "not self._adopted",
        "False",
    ),
    "what is pending is forgotten": (
        _Shipper,
        "_deliver",
        "self._guarded(run, lambda: self._send(run, change))",
        "pass",
    ),
    "a shipper forgets what an outage stopped": (
        _Shipper,
        "_deliver",
        "self._guarded(run, lambda: self._send(run, change))\n    del self._pending[run]",
        "del self._pending[run]\n    self._guarded(run, lambda: self._send(run, change))",
    ),
    "a shipper creates a run again after an outage": (
        _Shipper,
        "_create",
        "self._doubtful.add(run)",
        "pass",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_found_and_replayed(bug, run, calm, monkeypatch):
    owner, function, old, new = BUGS[bug]
    wrong = planted(owner, function, old, new)
    monkeypatch.setattr(owner, function, wrong)
    if hasattr(loop_module, function):
        monkeypatch.setattr(loop_module, function, wrong)

    def found(seed: int) -> list[str]:
        try:
            return list(faults(run(seed), calm))
        except Exception as error:  # noqa: BLE001 - a bug may show as any error
            return [f"{type(error).__name__}: {error}"]

    for seed in range(MOST):
        if told := found(seed):
            assert found(seed) == told
            return
    pytest.fail(f"{MOST} seeds do not find it")
