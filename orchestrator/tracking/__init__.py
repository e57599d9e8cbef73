"""Delivers the journals of sweeps to trackers, and queries trackers."""

from orchestrator.tracking._changes import Change
from orchestrator.tracking._kinds import (
    SingleRun,
    check_login,
    deliver_run,
    listens,
    open_tracker,
    ping,
    preload,
)
from orchestrator.tracking._process import ShipperProcess, delivered_runs, start_shipper
from orchestrator.tracking._queries import stage_seconds, study_results
from orchestrator.tracking._shipper import BusyError, sync
from orchestrator.tracking._storage_uri import storage_uri
from orchestrator.tracking.best import (
    BestConfig,
    TrackedTrial,
    best_config,
    best_trials,
    known_studies,
    tracked_trial,
)

__all__ = [
    "BestConfig",
    "BusyError",
    "Change",
    "ShipperProcess",
    "SingleRun",
    "TrackedTrial",
    "best_config",
    "best_trials",
    "check_login",
    "deliver_run",
    "delivered_runs",
    "known_studies",
    "listens",
    "open_tracker",
    "ping",
    "preload",
    "stage_seconds",
    "start_shipper",
    "storage_uri",
    "study_results",
    "sync",
    "tracked_trial",
]
