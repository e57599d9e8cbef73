"""Runs a sweep of trials that compute nothing, with calsweep's driver, journal and tracking."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

JUDGED = {"val_nll": 0.125, "val_acc": 0.875}
"""What every trial reports: the metric that sweeps minimise by default, and accuracy."""


@dataclass(frozen=True)
class NoOpSweep:
    """The result of a sweep of trials that compute nothing.

    Attributes:
        journal: Path of the journal.
        searched: Seconds until the last trial had ended.
        delivered: Seconds until everything was in the tracking store.
        grown: Growth of the driver's memory until the last trial had ended, in megabytes.
    """

    journal: Path
    searched: float
    delivered: float
    grown: float


def stage_report(steps: list[int], metrics: dict[str, float], done: bool) -> dict[str, Any]:
    """Return the result of a trial after one epoch or several."""
    from trainables.jobs import EpochMetrics, Report, Status

    report = Report(
        status=Status.FINISHED if done else Status.RUNNING,
        metrics=metrics,
        history=tuple(EpochMetrics(step, metrics) for step in steps),
        artifact="none" if done else "",
    )
    epoch = max(steps, default=0)
    return {"report": report, "epoch": epoch, "score": metrics["val_nll"], "done": done}


def run_no_ops(
    trainable: type, sweep: str, watch: Callable[[Any, Any], None] = lambda state, shipper: None
) -> NoOpSweep:
    """Run a search with ``trainable`` instead of the worker's; wait until all is delivered.

    Args:
        trainable: Class that reports like ``JobTrainable``.
        sweep: The sweep file's text.
        watch: Called with the sweep's state and its shipper before the search begins.
    """
    from orchestrator.executors import ray_tune
    from orchestrator.loop import Loop
    from orchestrator.running.data import prepare_data
    from orchestrator.search.state import SearchSource, SweepState
    from orchestrator.storage.events import SweepEnded, SweepStarted
    from orchestrator.storage.journal import Journal
    from orchestrator.storage.storage import Storage, SweepFolder
    from orchestrator.sweep.plan import make_plan
    from orchestrator.sweep.spec import parse_sweep
    from orchestrator.tracking import start_shipper

    spec = parse_sweep(sweep, "no-op")
    path = SweepFolder.of(spec).journal
    plan, data = make_plan(spec), prepare_data(spec)
    before = memory()
    with Journal(path) as journal:
        journal.append(
            SweepStarted(
                sweep=spec.name,
                sweep_id=spec.name,
                spec=spec.model_dump(mode="json"),
                provenance={"git_commit": "", "versions": {}},
            )
        )
        shipper = start_shipper(path, spec.tracking_uri, Storage.of(spec).folder / "served")
        state = SweepState(plan, spec.name, data, journal.append)
        watch(state, shipper)
        started = time.monotonic()
        with mock.patch.object(ray_tune, "JobTrainable", trainable):
            executor = ray_tune.RayTune(Storage.of(spec).artifacts, path.parent)
            executor.run(Loop(SearchSource(state), journal.append, 0))
        searched, grown = time.monotonic() - started, memory() - before
        journal.append(SweepEnded(status="finished"))
        assert shipper.wait_drained(3600)
    assert state.finished
    return NoOpSweep(path, searched, time.monotonic() - started, grown)


def memory() -> float:
    """Return this process's resident memory in megabytes."""
    return psutil.Process().memory_info().rss / 1e6
