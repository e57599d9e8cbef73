"""What a tracking store knows of how long stages take."""

from __future__ import annotations

import statistics
from itertools import islice
from typing import TYPE_CHECKING

from orchestrator.tracking import _names as names
from orchestrator.tracking._uri import ping, sqlite_file

if TYPE_CHECKING:
    from mlflow.entities import Run

RECENT = 50
MOST = 1000  # Runs that are looked at for them.


def stage_seconds(uri: str, task: str, setting: str, stage: str) -> float | None:
    """Return the median seconds of the last computed trials of a stage on a task.

    Args:
        uri: See ``check_tracking_uri``.
        task: The task, in any sweep.
        setting: Hash of its data, model and protocol; other tasks may have had the same name.
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
        for run in _recent(uri, task, setting, stage)
        if names.SECONDS in run.data.metrics
    ]
    return statistics.median(known) if known else None


def _recent(uri: str, task: str, setting: str, stage: str) -> list[Run]:
    from orchestrator.tracking._server import Server

    server = Server(uri)
    experiments = [experiment.experiment_id for experiment in server.experiments()]
    of_setting = {names.KIND: "study", names.TASK: task, names.SETTING: setting}
    studies = {run.info.run_id for run in server.runs(experiments, of_setting)}
    if not studies:
        return []
    trials = server.runs(
        experiments,
        {names.KIND: "trial", names.TASK: task, names.STAGE: stage, names.REUSED: "false"},
        extra=[f"attributes.status = '{names.FINISHED}'"],
        order=["attributes.start_time DESC"],
        limit=MOST,
        page=RECENT,
    )
    ours = (run for run in trials if run.data.tags.get(names.PARENT) in studies)
    return list(islice(ours, RECENT))
