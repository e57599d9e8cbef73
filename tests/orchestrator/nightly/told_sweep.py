"""A benchmark whose sweep is told, not computed: nights without Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.running.run import SweepOutcome
from orchestrator.storage.events import SweepEnded, from_fields
from orchestrator.storage.journal import Journal
from orchestrator.storage.storage import SweepFolder
from orchestrator.sweep.spec import SweepSpec

METRICS = {"acc": 0.95, "ece": 0.02, "aece": 0.021, "cwece": 0.011, "nll": 0.2}
EPOCH_SECONDS, PEAK, CHAIN = 0.5, 900.0 * 2**20, 12.0


def document(folder: Path, **more: Any) -> dict[str, Any]:
    """Return a nightly file of two recipes and two seeds, or of whatever is said instead."""
    sweep = {
        "name": "told",
        "tasks": [{"name": "d", "dataset": "digits", "model": "convnet", "protocol": "digits"}],
        "recipes": ["ce", "ce+ts"],
        "search": {"trials": 1},
        "seeds": [0, 1],
        "storage": str(folder / "storage"),
    }
    return {"sweep": {**sweep, **more.pop("sweep", {})}, **more}


def short_sweep(
    name: str, storage: Path, recipes: tuple[str, ...] = ("ce", "ce+ts"), epochs: int = 2
) -> dict[str, Any]:
    """Return a sweep that is no more than told: one seed, computed in seconds, without Ray."""
    protocol = {"base": "digits", "epochs": epochs}
    task = {"name": "d", "dataset": "digits", "model": "convnet", "protocol": protocol}
    own = {"name": name, "tasks": [task], "recipes": list(recipes), "storage": str(storage)}
    return {**own, "search": {"trials": 1}, "executor": "local"}


class ToldSweep:
    """Stands in for ``run_sweep``: writes the journal that a sweep of given figures would.

    What changes or fails is named by its recipe, or on one task alone by ``TASK|RECIPE``; ``lost``
    are keys of trials that nobody measured.
    """

    def __init__(self) -> None:
        self.changes: dict[tuple[str, str], float] = {}
        self.failures: dict[str, str] = {}
        self.lost: set[str] = set()
        self.runs: list[str] = []
        self.options: list[dict[str, Any]] = []
        self.interrupted = False
        self.before_end: Callable[[SweepSpec], None] = lambda spec: None

    def __call__(self, spec: SweepSpec, **options: Any) -> SweepOutcome:
        self.runs.append(spec.name)
        self.options.append(options)
        path = SweepFolder.of(spec).journal
        with Journal(path) as journal:
            said = {"event": "sweep_started", "sweep": spec.name, "sweep_id": spec.name}
            journal.append(from_fields({**said, "spec": {}, "provenance": {}}))
            for task in spec.tasks:
                for recipe in spec.expanded():
                    self._study(journal, task.id, recipe.name, spec.seeds)
            self.before_end(spec)
            journal.append(SweepEnded(status="finished"))
        ended = "failed" if self.failures else "finished"
        status = "interrupted" if self.interrupted else ended
        return SweepOutcome(spec, status, (), True, 30.0)

    def _study(self, journal: Journal, task: str, recipe: str, seeds: tuple[int, ...]) -> None:
        study = f"{task}|{recipe}"
        reason = self.failures.get(study) or self.failures.get(recipe, "")
        stage = "calibrate" if "+" in recipe else "train"
        opened = {"study": study, "task": task, "recipe": recipe, "trials": 1, "row": True}
        journal.append(from_fields({"event": "study_opened", **opened}), durable=False)
        for number, seed in enumerate(seeds):
            for event in self._trial(study, seed, number, stage, reason):
                journal.append(from_fields(event), durable=False)
        closed = {"finished": 0 if reason else 1, "failed": 1 if reason else 0, "reason": reason}
        chosen = None if reason else f"{study} {seeds[0]}"
        known = {"event": "study_closed", "study": study, "chosen": chosen, **closed}
        journal.append(from_fields(known))

    def _trial(
        self, study: str, seed: int, number: int, stage: str, reason: str
    ) -> list[Mapping[str, Any]]:
        key, times = f"{study} {seed}", partial(self._times, study)
        started = {"study": study, "number": number, "key": key, "seed": seed, "stage": stage}
        role = "seed" if number else "search"
        ended = {"status": "failed" if reason else "finished", "reason": reason, "seconds": 1.0}
        costs = {
            "epoch_seconds": EPOCH_SECONDS * times("epoch_seconds"),
            "peak_memory": PEAK * times("peak_memory"),
            "artifact": key,
        }
        test = {
            f"test_{name}": value * times(name) + 0.001 * seed for name, value in METRICS.items()
        }
        cost = CHAIN * times("wall_seconds")
        evaluated = {"key": key, "study": study, "seed": seed, "metrics": test, "seconds": cost}
        events: list[Mapping[str, Any]] = [
            {"event": "trial_started", "role": role, "configuration": {}, **started},
            {"event": "trial_finished", "key": key, "metrics": {}, **ended, **costs},
        ]
        measured = not reason and key not in self.lost
        return [*events, {"event": "evaluated", **evaluated}] if measured else events

    def _times(self, study: str, metric: str) -> float:
        recipe = study.partition("|")[2]
        return self.changes.get((study, metric), self.changes.get((recipe, metric), 1.0))
