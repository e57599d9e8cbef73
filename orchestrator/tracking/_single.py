"""Single runs that are no sweep's: one a key, however often they are delivered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.tracking import _names as names
from orchestrator.tracking._ledger import Change, Point
from orchestrator.tracking._server import RefusedError, Server
from orchestrator.tracking._uri import check_tracking_uri
from trainables.errors import InputError

__all__ = ["SingleRun", "deliver_run"]


@dataclass(frozen=True)
class SingleRun:
    """A run to be there once.

    Attributes:
        key: Its identity within the experiment.
        name: What is shown for it.
        status: ``FINISHED`` or ``FAILED``.
        started: UNIX time in milliseconds.
        ended: Likewise.
        tags: Tags besides the key.
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
    """Bring a run to the tracking store; doing it again changes nothing.

    A delivery that broke off is completed. Should the store have made the run twice, because its
    answer got lost, the later ones are deleted.

    Args:
        uri: See ``check_tracking_uri``.
        experiment: Name of the experiment; created if absent.
        kind: What the experiment holds, such as ``nights``.
        run: The run.
        artifact_root: Where a store without a server of its own keeps artifacts.

    Returns:
        The run's id.

    Raises:
        InputError: If the store gives no answer, or the address cannot be used.
    """
    check_tracking_uri(uri)
    server = Server(uri)
    root = None if uri.startswith("http") else artifact_root.absolute()
    try:
        place = server.ensure_experiment(experiment, root, kind)[0].experiment_id
        return _deliver(server, place, kind, run)
    except RefusedError as error:
        raise InputError(f"run {run.name}: the tracking store refuses it: {error}") from error


def _deliver(server: Server, experiment: str, kind: str, run: SingleRun) -> str:
    tags = {**run.tags, names.KEY: run.key, names.KIND: kind}
    order = ["attributes.start_time ASC"]
    same = list(server.runs([experiment], {names.KEY: run.key}, order=order))
    for double in same[1:]:
        server.delete_run(double.info.run_id)
    if same:
        run_id = same[0].info.run_id
    else:
        run_id = server.create_run(experiment, run.name, tags, run.started)
    points = [Point(name, value, run.ended, 0) for name, value in run.metrics.items()]
    server.log(run_id, Change(run_id, points, tags=tags))
    for name, path in run.files.items():
        server.upload(run_id, name, path)
    server.set_status(run_id, run.status, run.ended)
    return run_id
