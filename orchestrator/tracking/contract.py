"""The contract of trackers: each public check tests one rule, using a tracker and an empty folder.

A check raises an exception if the rule is broken. It creates experiments with new names.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from orchestrator.tracking._changes import Change, Point
from orchestrator.tracking._kinds import open_tracker
from orchestrator.tracking.tracker import RefusedError, RunQuery, Tracker
from trainables.contracts.check import Check
from trainables.contracts.require import require

ABSENT = "0" * 32, "../../etc/passwd"


def creates_an_experiment_once(tracker: Tracker, folder: Path) -> None:
    """An experiment is created only once, and listed if it belongs to a sweep."""
    name = f"{uuid4().hex} ä/b"
    made, created = tracker.open_experiment(name, folder)
    again, created_again = tracker.open_experiment(name, folder)
    other, _ = tracker.open_experiment(f"{name} nights", folder, "nights")
    _equal((again, created, created_again), (made, True, False))
    known = tracker.sweeps()
    _equal((known.get(name), known.get(f"{name} nights")), (made.id, None))
    require(other.id != made.id, f"two experiments have the id {made.id}")


def returns_a_run_as_it_was_made(tracker: Tracker, folder: Path) -> None:
    """A run is returned with its parent, its tags and the last values of its metrics."""
    experiment = _experiment(tracker, folder)
    parent = tracker.create_run(experiment, "above", {"calsweep.kind": "study"}, 500)
    tags = {"calsweep.kind": "trial", "text": 'it\'s "so",\nµ|x=1'}
    run_id = tracker.create_run(experiment, "below", tags, 1_000, parent)
    points = [Point("val_ece", 0.5, 2_000, 0), Point("val_ece", 0.25, 3_000, 1)]
    tracker.log(run_id, Change("k", points, {"mbls.margin": "6.0"}, {"more": ""}))
    run = tracker.run(run_id)
    _equal((run.id, run.experiment, run.parent), (run_id, experiment, parent))
    _equal((run.status, run.started), ("RUNNING", 1_000))
    _equal({name: run.tags.get(name) for name in (*tags, "more")}, {**tags, "more": ""})
    _equal((run.metrics, tracker.run(parent).parent), ({"val_ece": 0.25}, None))
    _equal(_found(tracker, experiment, {"calsweep.kind": "trial"}), [run_id])


def keeps_the_latest_of_the_greatest_step(tracker: Tracker, folder: Path) -> None:
    """The value of a metric is the latest point with the greatest step."""
    run_id = _run(tracker, _experiment(tracker, folder))
    for value, time, step in ((1.0, 10, 0), (2.0, 10, 3), (3.0, 20, 3), (4.0, 30, 2)):
        tracker.log(run_id, Change("k", [Point("loss", value, time, step)]))
    _equal(tracker.run(run_id).metrics, {"loss": 3.0})


def takes_the_same_twice(tracker: Tracker, folder: Path) -> None:
    """Repeating a log changes nothing; a tag can be replaced, the value of a parameter cannot."""
    run_id = _run(tracker, _experiment(tracker, folder))
    change = Change("k", [Point("loss", 1.5, 10, 0)], {"p": "1"}, {"chosen": "false"})
    for _ in range(2):
        tracker.log(run_id, change)
    before = tracker.run(run_id)
    tracker.log(run_id, Change("k"))
    _equal(tracker.run(run_id), before)
    tracker.log(run_id, Change("k", tags={"chosen": "true"}))
    _equal(tracker.run(run_id).tags["chosen"], "true")
    other = Change("k", params={"p": "2"})
    _refuses(partial(tracker.log, run_id, other), "another value of a parameter")


def sets_a_status_and_takes_it_back(tracker: Tracker, folder: Path) -> None:
    """A status can be set and changed again."""
    run_id = _run(tracker, _experiment(tracker, folder), status="")
    for time, status in enumerate(("KILLED", "RUNNING", "FAILED", "FINISHED"), start=7_000):
        tracker.set_status(run_id, status, time)
        _equal(tracker.run(run_id).status, status)


def finds_runs_by_tags_status_and_marks(tracker: Tracker, folder: Path) -> None:
    """Runs of one or more experiments are found by tags and status, the newest first."""
    experiment, other = _experiment(tracker, folder), _experiment(tracker, folder)
    red = _run(tracker, experiment, 1, team="red")
    blue = _run(tracker, experiment, 2, team="blue", chosen="x")
    failed = _run(tracker, experiment, 3, "FAILED", team="red", chosen="")
    there = _run(tracker, other, 4)
    _equal(_found(tracker, experiment), [failed, blue, red])
    _equal(_found(tracker, experiment, {"team": "red"}), [failed, red])
    _equal(_found(tracker, experiment, {"team": "red"}, status="FINISHED"), [red])
    _equal(_found(tracker, experiment, marked="chosen"), [blue])
    _equal(_found(tracker, experiment, {"team": "re"}), [])
    both = [run.id for run in tracker.runs(RunQuery([experiment, other], {}))]
    _equal(both, [there, failed, blue, red])
    _equal(list(tracker.runs(RunQuery([], {}))), [])


def sorts_runs_by_metrics_then_by_age(tracker: Tracker, folder: Path) -> None:
    """Runs are sorted by metrics, NaN last, then by age; no page loses or repeats one."""
    experiment = _experiment(tracker, folder)
    figures: list[Mapping[str, float]] = [
        *({"objective": 0.5, "number": 2.0}, {"objective": 0.5, "number": 2.0}),
        *({"objective": 0.5, "number": 10.0}, {"objective": -1.0, "number": 7.0}, {}),
        {"objective": math.nan, "number": 1.0},
    ]
    made = [
        _run(tracker, experiment, started, metrics=metrics)
        for started, metrics in zip((4, 9, 1, 8, 2, 3), figures, strict=True)
    ]
    expected = [made[index] for index in (3, 0, 1, 2, 5, 4)]
    by_age = [made[index] for index in (2, 4, 5, 0, 3, 1)]
    for page in (1, 2, 100):
        order = ("objective", "number")
        _equal(_found(tracker, experiment, order=order, page=page), expected)
        _equal(_found(tracker, experiment, order=(), page=page), by_age)


def refuses_what_is_not_there(tracker: Tracker, folder: Path) -> None:
    """A deleted run is gone, and changes of a missing run are refused."""
    experiment = _experiment(tracker, folder)
    gone, kept = _run(tracker, experiment), _run(tracker, experiment)
    tracker.delete_run(gone)
    _equal(_found(tracker, experiment), [kept])
    tagged = Change("k", tags={"a": "b"})
    _refuses(partial(tracker.log, gone, tagged), "a change of a deleted run")
    for absent in ABSENT:
        _refuses(partial(tracker.run, absent), f"reading run {absent}")
        _refuses(partial(tracker.log, absent, tagged), f"a change of run {absent}")
        _refuses(partial(tracker.set_status, absent, "FINISHED", 9), f"the end of run {absent}")
        _refuses(partial(tracker.delete_run, absent), f"deleting run {absent}")


def replaces_a_champion(tracker: Tracker, folder: Path) -> None:
    """A run is registered once as a version of a model, and the alias moves to that version."""
    if type(tracker).register is Tracker.register:
        return  # This tracker stores no models.
    experiment, task = _experiment(tracker, folder), f"{uuid4().hex}/net"
    first, second = _run(tracker, experiment), _run(tracker, experiment)
    exported = folder / "exported"
    (exported / "weights").mkdir(parents=True)

    (exported / "weights" / "0.bin").touch()

    def promote(run_id: str) -> tuple[str, str, bool]:
        return tracker.register(task, run_id, exported, {"calsweep.recipe": "ce"}, "champion")

    name, version, new = promote(first)
    require(new, "the first champion was not reported as new")
    _equal(promote(first), (name, version, False))
    again, other, moved = promote(second)
    _equal((again, other == version, moved), (name, False, True))
    _equal(promote(first), (name, version, True))


TRACKER_CHECKS: tuple[Callable[[Tracker, Path], None], ...] = (
    creates_an_experiment_once,
    returns_a_run_as_it_was_made,
    keeps_the_latest_of_the_greatest_step,
    takes_the_same_twice,
    sets_a_status_and_takes_it_back,
    finds_runs_by_tags_status_and_marks,
    sorts_runs_by_metrics_then_by_age,
    refuses_what_is_not_there,
    replaces_a_champion,
)


def tracker_checks(uri: str) -> Iterator[Check]:
    """Yield the checks of the tracker at an address; the checks write to this tracker."""
    tracker, part = open_tracker(uri, create=True), f"tracker {uri.partition(':')[0]}"
    for check in TRACKER_CHECKS:
        rule = (inspect.getdoc(check) or "").rstrip(".")
        yield Check(part, rule, partial(_in_folder, check, tracker))


def _in_folder(check: Callable[[Tracker, Path], None], tracker: Tracker) -> None:
    with TemporaryDirectory(prefix="calsweep-") as folder:
        check(tracker, Path(folder))


def _experiment(tracker: Tracker, folder: Path) -> str:
    return tracker.open_experiment(uuid4().hex, folder)[0].id


def _run(
    tracker: Tracker,
    experiment: str,
    started: int = 1_000,
    status: str = "FINISHED",
    metrics: Mapping[str, float] | None = None,
    **tags: str,
) -> str:
    run_id = tracker.create_run(experiment, "a run", {"calsweep.key": "k", **tags}, started)
    points = [Point(name, value, 5_000, 0) for name, value in (metrics or {}).items()]
    tracker.log(run_id, Change("k", points))
    if status:
        tracker.set_status(run_id, status, 9_000)
    return run_id


def _found(
    tracker: Tracker, experiment: str, tags: Mapping[str, str] | None = None, **more: Any
) -> list[str]:
    return [run.id for run in tracker.runs(RunQuery([experiment], tags or {}, **more))]


def _equal(returned: object, expected: object) -> None:
    require(returned == expected, f"expected {expected!r}, got {returned!r}")


def _refuses(action: Callable[[], object], request: str) -> None:
    try:
        action()
    except RefusedError:
        return
    raise AssertionError(f"{request}: expected a RefusedError, got no error")
