"""Tracking: a view of the sweep's journal on an MLflow store, and the questions put to it.

The journal is the truth. ``start_shipper`` runs a process that delivers it while the sweep goes on,
``sync`` delivers what is left; the store may be away, or be thrown away, at any time. Nothing here
uses MLflow's global active run, and MLflow is imported only by what speaks to a store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.tracking._memory import delivered_runs
from orchestrator.tracking._process import ShipperProcess, start_shipper
from orchestrator.tracking._uri import check_login, check_tracking_uri, listens, ping

if TYPE_CHECKING:
    from orchestrator.tracking._best import ANY, BestRun, Where, best_runs, tracked_run
    from orchestrator.tracking._queries import study_results
    from orchestrator.tracking._results import results_from_journal
    from orchestrator.tracking._shipper import Shipment, ship, sync
    from orchestrator.tracking._single import SingleRun, deliver_run
    from orchestrator.tracking._times import stage_seconds

__all__ = [
    "ANY",
    "BestRun",
    "Shipment",
    "ShipperProcess",
    "SingleRun",
    "Where",
    "best_runs",
    "check_login",
    "check_tracking_uri",
    "deliver_run",
    "delivered_runs",
    "listens",
    "ping",
    "results_from_journal",
    "ship",
    "stage_seconds",
    "start_shipper",
    "study_results",
    "sync",
    "tracked_run",
]

_LAZY = {
    "ANY": "_best",
    "BestRun": "_best",
    "Where": "_best",
    "best_runs": "_best",
    "tracked_run": "_best",
    "study_results": "_queries",
    "results_from_journal": "_results",
    "Shipment": "_shipper",
    "ship": "_shipper",
    "sync": "_shipper",
    "SingleRun": "_single",
    "deliver_run": "_single",
    "stage_seconds": "_times",
}


def __getattr__(name: str) -> Any:
    """Import what needs MLflow (seconds) only when it is asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
