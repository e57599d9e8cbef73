"""A benchmark whose sweep is told, not computed: nights without Ray."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

from orchestrator.nightly import Nightly, run_night
from orchestrator.running.run import SweepOutcome
from orchestrator.storage.storage import SweepFolder
from orchestrator.sweep.spec import SweepSpec
from tests.orchestrator.conftest import Writer

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


class BrokenOffError(RuntimeError):
    """Stands for the moment of a crash."""


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
        writer = Writer(SweepFolder.of(spec).path, spec.name, spec.name)
        with writer.journal:
            writer.start(spec={})
            for task in spec.tasks:
                for recipe in spec.expanded:
                    self._study(writer, task.id, recipe.name, spec.seeds)
            self.before_end(spec)
            writer.end()
        ended = "failed" if self.failures else "finished"
        status = "interrupted" if self.interrupted else ended
        return SweepOutcome(spec, status, (), True, 30.0)

    def break_off(self, benchmark: Nightly, night: str) -> None:
        crash = Mock(side_effect=BrokenOffError)
        with patch.object(self, "before_end", crash), pytest.raises(BrokenOffError):
            run_night(benchmark, night)

    def _study(self, writer: Writer, task: str, recipe: str, seeds: tuple[int, ...]) -> None:
        study = writer.open(recipe, trials=1, task=task)
        reason = self.failures.get(study) or self.failures.get(recipe, "")
        for number, seed in enumerate(seeds):
            self._trial(writer, study, number, seed, reason)
        chosen = None if reason else f"{study} {seeds[0]}"
        writer.close(study, chosen, int(not reason), int(bool(reason)), reason)

    def _trial(self, writer: Writer, study: str, number: int, seed: int, reason: str) -> None:
        key, times = f"{study} {seed}", partial(self._times, study)
        stage, role = "calibrate" if "+" in study else "train", "seed" if number else "search"
        writer.begin(study, number, role, seed, key=key, stage=stage)
        costs = {
            "epoch_seconds": EPOCH_SECONDS * times("epoch_seconds"),
            "peak_memory": PEAK * times("peak_memory"),
        }
        ended = {"status": "failed" if reason else "finished", "reason": reason, "seconds": 1.0}
        writer.write("trial_finished", key=key, metrics={}, artifact=key, **ended, **costs)
        if not reason and key not in self.lost:
            tested = {f"test_{m}": v * times(m) + 0.001 * seed for m, v in METRICS.items()}
            seconds = CHAIN * times("wall_seconds")
            writer.evaluate(key, study, seed, facts={"seconds": seconds}, **tested)

    def _times(self, study: str, metric: str) -> float:
        recipe = study.partition("|")[2]
        return self.changes.get((study, metric), self.changes.get((recipe, metric), 1.0))
