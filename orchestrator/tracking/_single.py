"""Single runs that are no sweep's: one a key, however often they are delivered."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.tracking import _names as names
from orchestrator.tracking._changes import Change, Point
from orchestrator.tracking._open import open_tracker
from orchestrator.tracking.tracker import RefusedError, RunQuery, Tracker
from trainables.common.errors import InputError


@dataclass(frozen=True)
class SingleRun:
    """A run to be there once.

    Attributes:
        key: Its identity within the experiment.
        name: Its shown name.
        status: ``FINISHED`` or ``FAILED``.
        started, ended: UNIX time in milliseconds.
        metrics: Finite values.
        files: Artifacts, by name.
    """

    key: str
    name: str
    status: str
    started: int
    ended: int
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)


def deliver_run(uri: str, experiment: str, kind: str, run: SingleRun, artifact_root: Path) -> str:
    """Bring a run to the tracker and return its id; doing it again changes nothing.

    A delivery that broke off is completed. Should the tracker have made the run twice, because its
    answer got lost, the later ones are deleted. The experiment is created if absent, for runs of
    that ``kind``, such as ``nights``; see ``Tracker.open_experiment``.

    Raises:
        InputError: If the tracker gives no answer, or the address cannot be used.
    """
    tracker = open_tracker(uri, create=True)
    try:
        place = tracker.open_experiment(experiment, artifact_root, kind)[0].id
        return _deliver(tracker, place, kind, run)
    except RefusedError as error:
        raise InputError(f"run {run.name}: the tracking store refuses it: {error}") from error


def _deliver(tracker: Tracker, experiment: str, kind: str, run: SingleRun) -> str:
    tags = {**run.tags, names.KEY: run.key, names.KIND: kind}
    same = list(tracker.runs(RunQuery([experiment], {names.KEY: run.key}, order=())))
    for double in same[1:]:
        tracker.delete_run(double.id)
    run_id = same[0].id if same else tracker.create_run(experiment, run.name, tags, run.started)
    points = [Point(name, value, run.ended, 0) for name, value in run.metrics.items()]
    tracker.log(run_id, Change(run_id, points, tags=tags))
    for name, path in run.files.items():
        tracker.upload(run_id, name, path)
    tracker.set_status(run_id, run.status, run.ended)
    return run_id
