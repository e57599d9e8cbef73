"""What a night's sweep measured, read from its journal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.journal import TEST_PREFIX
from orchestrator.nightly._config import Nightly
from orchestrator.nightly._record import CellKey, NightRecord
from orchestrator.provenance import provenance
from trainables.data import PreparedData

__all__ = ["TOTAL", "costed", "environment_of", "measured"]

TOTAL = CellKey("*", "*", "total_seconds")
Event = Mapping[str, Any]


def environment_of(nightly: Nightly, data: Mapping[str, PreparedData]) -> dict[str, str]:
    """Return what may explain a change of the figures, by readable names."""
    facts = provenance()
    hardware = {f"hardware {name}": _text(value) for name, value in facts["hardware"].items()}
    names = {task.id: task.dataset_name for task in nightly.sweep.tasks}
    return {
        **facts["versions"],
        **hardware,
        "code": facts["git_commit"] or "not from a repository",
        **{f"data {names[task]}": prepared.key[:12] for task, prepared in data.items()},
        "benchmark": nightly.fingerprint,
    }


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def measured(
    nightly: Nightly,
    night: str,
    started: float,
    environment: Mapping[str, str],
    events: Iterable[Event],
    data: Mapping[str, PreparedData],
    seconds: float | None,
) -> NightRecord:
    """Return a night's record.

    Test metrics are those of the chosen configurations. ``wall_seconds`` is what the whole chain of
    stages cost; ``images_per_second`` (training images, or validation rows for a calibrator, by the
    mean epoch, on a CPU in seconds of the processor) and ``peak_memory`` are those of the recipe's
    own last stage.

    Args:
        nightly: The benchmark.
        night: The night's name.
        started: When it began, UNIX seconds.
        environment: See ``environment_of``.
        events: The journal of its sweep.
        data: Task to its prepared data.
        seconds: Wall time of the whole sweep; None if it was interrupted.
    """
    told = _Told(events)
    cells: dict[CellKey, dict[int, float]] = {}
    failed = {}
    for study in told.rows():
        pair = study["recipe"], study["task"]
        reason = told.failure(study["study"], nightly.sweep.seeds)
        if reason:
            failed[pair] = reason
            continue
        counts = data[study["task"]].counts
        for seed in nightly.sweep.seeds:
            figures = told.figures(study["study"], seed, counts)
            for metric in nightly.shape.metrics:
                if metric in figures:
                    cells.setdefault(CellKey(*pair, metric), {})[seed] = figures[metric]
    if seconds is not None:
        cells[TOTAL] = {nightly.sweep.seeds[0]: seconds}
    return NightRecord(night, started, cells, failed, nightly.shape, dict(environment))


def costed(events: Iterable[Event]) -> set[str]:
    """Return the keys of all artifacts whose cost the journal knows.

    Whatever else is in the store was finished in the moment of a crash: it has to be computed again
    for its cost to be known.
    """
    finished = (event for event in events if event["event"] == "trial_finished")
    return {event["artifact"] for event in finished if event.get("epoch_seconds")}


class _Told:
    """The events of a journal by study and seed; the later one counts."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._studies: dict[str, Event] = {}
        self._closed: dict[str, Event] = {}
        self._trials: dict[tuple[str, int], Event] = {}
        self._ended: dict[str, Event] = {}
        self._evaluated: dict[tuple[str, int], Event] = {}
        homes = {"study_opened": self._studies, "study_closed": self._closed}
        for event in events:
            kind = event["event"]
            if kind in homes:
                homes[kind][event["study"]] = event
            elif kind == "trial_started":
                self._trials[event["study"], event["seed"]] = event
            elif kind == "trial_finished":
                self._ended[event["key"]] = event
            elif kind == "evaluated":
                self._evaluated[event["study"], event["seed"]] = event

    def rows(self) -> list[Event]:
        """Return the studies that are rows of the table."""
        return [study for study in self._studies.values() if study["row"]]

    def failure(self, study: str, seeds: Iterable[int]) -> str:
        """Return why a study has not been measured with every seed, or an empty string."""
        closed = self._closed.get(study)
        if closed is None or closed["chosen"] is None:
            return (closed or {}).get("reason") or "it has no finished trial"
        for seed in seeds:
            if (study, seed) not in self._evaluated:
                ended = self._ended.get(self._trials.get((study, seed), {}).get("key", ""), {})
                return f"seed {seed}: {ended.get('reason') or 'no test metrics'}"
        return ""

    def figures(self, study: str, seed: int, counts: Mapping[str, int]) -> dict[str, float]:
        """Return all figures of a study and seed."""
        evaluated, trial = self._evaluated[study, seed], self._trials[study, seed]
        figures = {
            name.removeprefix(TEST_PREFIX): value for name, value in evaluated["metrics"].items()
        }
        if evaluated.get("seconds"):
            figures["wall_seconds"] = evaluated["seconds"]
        ended = self._ended[trial["key"]]
        if ended.get("epoch_seconds"):
            rows = counts["validation" if trial["stage"] == "calibrate" else "train"]
            figures["images_per_second"] = rows / ended["epoch_seconds"]
            figures["peak_memory"] = ended["peak_memory"]
        return figures
