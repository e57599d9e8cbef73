"""Read the measurements of a night from the journal of its sweep."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

from orchestrator.nightly.book import Night
from orchestrator.nightly.config import Nightly
from orchestrator.nightly.record import WHOLE_NIGHT, CellKey, NightRecord
from orchestrator.storage.ledger import Ledger, Study, Trial
from orchestrator.storage.provenance import provenance
from trainables.data import PreparedData

TOTAL = CellKey(*WHOLE_NIGHT, "total_seconds")


def current_environment(nightly: Nightly, data: Mapping[str, PreparedData]) -> dict[str, str]:
    """Return possible causes of a change: libraries, hardware, code, data and benchmark."""
    facts, datasets = provenance(), defaultdict[str, set[str]](set)
    # Tasks and seeds may prepare a dataset in several ways: list the keys of all.
    for task, seed in product(nightly.sweep.tasks, nightly.sweep.all_seeds):
        datasets[f"data {task.dataset_name}"].add(data[task.data_name(seed)].key[:12])
    return {
        **facts["versions"],
        **{f"hardware {name}": _text(value) for name, value in facts["hardware"].items()},
        "code": facts["git_commit"] or "not from a repository",
        **{name: ", ".join(sorted(keys)) for name, keys in datasets.items()},
        "benchmark": nightly.fingerprint,
    }


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def measure_night(
    nightly: Nightly,
    night: Night,
    ledger: Ledger,
    data: Mapping[str, PreparedData],
    seconds: float | None,
) -> NightRecord:
    """Return a night's record from the journal of its sweep.

    Test metrics belong to the chosen configurations. ``wall_seconds`` is the cost of the whole
    chain of stages; ``images_per_second`` and ``peak_memory`` belong to the recipe's last stage.
    ``images_per_second`` is the number of training images, or of validation rows for a calibrator,
    divided by the mean time of an epoch (CPU time on a CPU). ``seconds`` is the wall time of the
    whole sweep, None if it was interrupted.
    """
    # A night has one search trial per study, so each seed has one trial.
    trials = {(trial.study, trial.seed): trial for trial in ledger.trials.values()}
    tasks = {task.id: task for task in nightly.sweep.tasks}
    cells: dict[CellKey, dict[int, float]] = {}
    failed = {}
    for study in ledger.studies.values():
        pair = study.recipe, study.task
        if not study.row:
            continue
        if reason := _failure(study, trials, nightly.sweep.seeds):
            failed[pair] = reason
            continue
        for seed in nightly.sweep.seeds:
            counts = data[tasks[study.task].data_name(seed)].counts
            figures = _figures(trials[study.name, seed], counts)
            for metric in nightly.shape.metrics:
                if metric in figures:
                    cells.setdefault(CellKey(*pair, metric), {})[seed] = figures[metric]
    if seconds is not None:
        cells[TOTAL] = {nightly.sweep.seeds[0]: seconds}
    started, environment = night.facts["started"], dict(night.facts["environment"])
    shape, rows = nightly.shape, nightly.rows
    return NightRecord(night.name, started, cells, failed, shape, environment, rows)


def artifacts_with_costs(ledger: Ledger) -> set[str]:
    """Return the keys of all artifacts whose cost is in the journal (a crash may lose it)."""
    return {trial.artifact for trial in ledger.trials.values() if trial.epoch_seconds}


def _failure(study: Study, trials: Mapping[tuple[str, int], Trial], seeds: Iterable[int]) -> str:
    """Return why a study lacks test metrics of some seed, or an empty string."""
    if study.chosen is None:
        return (study.closed and study.closed.reason) or "it has no finished trial"
    for seed in seeds:
        trial = trials.get((study.name, seed))
        if trial is None or not trial.test:
            return f"seed {seed}: {(trial and trial.reason) or 'no test metrics'}"
    return ""


def _figures(trial: Trial, counts: Mapping[str, int]) -> dict[str, float]:
    figures = dict(trial.test)
    if trial.chain_seconds:
        figures["wall_seconds"] = trial.chain_seconds
    if trial.epoch_seconds:
        rows = counts["train" if trial.stage in ("train", "refine") else "validation"]
        figures["images_per_second"] = rows / trial.epoch_seconds
        figures["peak_memory"] = trial.peak_memory or 0.0
    return figures
