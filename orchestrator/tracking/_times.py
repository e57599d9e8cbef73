"""What a tracking store knows of how long stages take."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from orchestrator.tracking import _names as names
from orchestrator.tracking._uri import ping, sqlite_file

if TYPE_CHECKING:
    from mlflow.entities import Run

RECENT = 50


def stage_seconds(uri: str, task: str, stage: str) -> float | None:
    """Return the median seconds of the last computed trials of a stage on a task.

    Args:
        uri: See ``check_tracking_uri``.
        task: The task, in any sweep.
        stage: ``train``, ``refine`` or ``calibrate``.

    Returns:
        Seconds, or None where no run tells, or there is no store yet.
    """
    file = sqlite_file(uri)
    # An estimate is a courtesy: a store that is away must not hold up a plan.
    if (file is not None and not file.exists()) or not ping(uri)[0]:
        return None
    known = [
        run.data.metrics[names.SECONDS]
        for run in _recent(uri, task, stage)
        if names.SECONDS in run.data.metrics
    ]
    return statistics.median(known) if known else None


def _recent(uri: str, task: str, stage: str) -> list[Run]:
    from orchestrator.tracking._server import Server

    server = Server(uri)
    tags = {names.KIND: "trial", names.TASK: task, names.STAGE: stage, names.REUSED: "false"}
    return list(
        server.runs(
            [experiment.experiment_id for experiment in server.experiments()],
            tags,
            extra=[f"attributes.status = '{names.FINISHED}'"],
            order=["attributes.start_time DESC"],
            limit=RECENT,
        )
    )
