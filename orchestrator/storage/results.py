"""The result of one study, from which tables are made."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.storage.ledger import Ledger, Study, Trial, stopped_after
from trainables.common.stages import GIVEN

T = TypeVar("T")
STATUSES = ("finished", "failed", "running", "interrupted")


@dataclass(frozen=True)
class StudyResult:
    """One study: the search for one recipe's hyper-parameters on one task, and its outcome.

    Attributes:
        task: ``dataset/model/protocol``, or the task's name in the sweep file.
        status: ``finished``, ``failed`` (no trial was chosen), ``running`` or ``interrupted``.
        configuration: Parameters of the chosen trial, by part of the recipe.
        validation: Metrics of the chosen trial on validation data, as fractions (nats for NLL).
        test: Metrics of the chosen configuration on test data, one mapping per seed, with the keys
            of ``evaluation_report`` or ``SUITE/METRIC``, in the same units.
        reason: Why the study, or its first failed trial, failed, or why the study was interrupted;
            else empty.
        trials: Maximum number of trials of its search.
        run_ids: Ids of the tracked runs of the chosen configuration, one per seed, if known.
        sweep_id: Unique id of the sweep; names of sweeps may be used again.
        dataset: Short name, such as ``cifar10``, or the stem of a file or folder.
        fingerprint: Hash (hex) of the content and the split of the data.
        predictions: Keys of the ``evaluate`` artifacts, one per seed, aligned with ``test``.
        searched_predictions: Key of the ``evaluate`` artifact of the chosen trial.
        default_predictions: Key of the ``evaluate`` artifact of the published default (the first
            trial); empty if it was not measured.
        seconds: Cost of computing the chosen chain of stages, one per seed, aligned with ``test``;
            reused stages count with their original cost. Empty if unknown.
        rule: How the trial was chosen: ``objective``, ``accuracy_tolerance``, ``epoch``, ``tie``,
            and if used ``accuracy_errors``, ``keep_default`` and ``stop``.
        charged: Penalty of the accuracy guard in each seed's objective, fractions, aligned with
            ``test``; empty if unknown.
        computed_by: Hashes of the code that computed the chosen chains of stages.
        varied: Whether each seed has its own split.
        subset: Limits on the rows of the data set, such as ``train_limit 5000, test_limit 1000``;
            empty if there are none.
        copies: Messages about rows that are in two parts of the data; empty if there are none, or
            they were not counted.
        plugins: Hash of the code of each plugin in the sweep file, by the plugin's name.
        q: MaC-Cal's final q, one per seed, aligned with ``test``; empty for other recipes.

    Raises:
        ValueError: If ``status`` is not one of the four, or a number of ended trials is negative.
    """

    sweep: str
    task: str
    recipe: str
    status: str
    configuration: dict[str, dict[str, Any]] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)
    test: tuple[dict[str, float], ...] = ()
    trials: int = 0
    trials_finished: int = 0
    trials_failed: int = 0
    reason: str = ""
    run_ids: tuple[str, ...] = ()
    sweep_id: str = ""
    dataset: str = ""
    model: str = ""
    protocol: str = ""
    fingerprint: str = ""
    code: str = ""
    started: float = 0.0
    predictions: tuple[str, ...] = ()
    searched_predictions: str = ""
    default_predictions: str = ""
    seconds: tuple[float, ...] = ()
    rule: dict[str, str] = field(default_factory=dict)
    charged: tuple[float, ...] = ()
    computed_by: tuple[str, ...] = ()
    varied: bool = False
    metrics: tuple[str, ...] = ()
    subset: str = ""
    copies: tuple[str, ...] = ()
    plugins: dict[str, str] = field(default_factory=dict)
    q: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status={self.status!r} is not one of {', '.join(STATUSES)}")
        for name in ("trials_finished", "trials_failed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} is outside [0, inf)")

    @property
    def kept_default(self) -> bool:
        """Return True if the search chose the published default; False if this is not known."""
        return bool(self.default_predictions) and (
            self.default_predictions == self.searched_predictions
        )

    @property
    def stopped(self) -> int:
        """Return the number of trials after which ``search.stop`` ended the search, else 0."""
        return stopped_after(self.status, self.rule, self.trials, self.ended)

    @property
    def ended(self) -> int:
        """Return the number of search trials that finished or failed."""
        return self.trials_finished + self.trials_failed

    @property
    def searched(self) -> bool:
        """Return True if more than one trial of the search has finished or failed."""
        return self.ended > 1


def usual_baseline(results: Iterable[StudyResult | Study]) -> str:
    """Return the recipe with which others are compared: ``ce``, or ``given`` for given logits."""
    return GIVEN if any(result.model == GIVEN for result in results) else "ce"


def as_text(value: Any) -> str:
    """Return strings unchanged and other plain values as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def results_of(ledger: Ledger, runs: Mapping[str, str] | None = None) -> list[StudyResult]:
    """Return the studies of a sweep that are rows of its table, in the order of their opening."""
    known, chosen = runs or {}, {study.chosen for study in ledger.studies.values()}
    trials = {
        key: replace(trial, run_id=known.get(key, ""))
        for key, trial in ledger.trials.items()
        if trial.test or key in chosen  # Copying all of 20,000 trials would take half a second.
    }
    evaluated = [trial for trial in trials.values() if trial.test]
    return table_rows(ledger.sweep, ledger.studies.values(), trials, evaluated)


def table_rows(
    sweep: str, studies: Iterable[Study], chosen: Mapping[str, Trial], evaluated: Iterable[Trial]
) -> list[StudyResult]:
    """Return the rows of a sweep's table from its chosen (by key) and its evaluated trials."""
    tests = list(evaluated)
    rows = sorted((study for study in studies if study.row), key=lambda study: study.index)
    return [_result(sweep, study, chosen.get(study.chosen or ""), tests) for study in rows]


def cells_of(ledger: Ledger) -> list[tuple[Study, Trial]]:
    """Return the evaluated trials that tables show, one per row and seed."""
    rows = ((study, study.chosen_trial) for study in ledger.studies.values() if study.row)
    return [
        (study, trial)
        for study, chosen in rows
        if chosen is not None
        for trial in trials_of_choice(study, chosen, [t for t in study.begun.values() if t.test])
    ]


def _result(sweep: str, study: Study, chosen: Trial | None, tests: list[Trial]) -> StudyResult:
    ours = trials_of_choice(study, chosen, tests) if chosen is not None else []
    shown = ours or ([chosen] if chosen is not None else [])
    return StudyResult(
        sweep=sweep,
        task=study.task,
        recipe=study.recipe,
        status=study.status,
        configuration={p: dict(v) for p, v in chosen.configuration.items()} if chosen else {},
        validation={
            name.removeprefix("val_"): value
            for name, value in (chosen.metrics if chosen else {}).items()
            if name.startswith("val_")
        },
        test=tuple(dict(trial.test) for trial in ours),
        trials=study.trials,
        trials_finished=study.finished,
        trials_failed=study.failed,
        reason=study.reason,
        run_ids=tuple(trial.run_id for trial in shown if trial.run_id),
        sweep_id=study.sweep_id,
        dataset=study.dataset,
        model=study.model,
        protocol=study.protocol,
        fingerprint=study.fingerprint,
        code=chosen.code if chosen else study.code,
        started=study.time / 1000,
        predictions=_known([trial.predictions or None for trial in ours]),
        searched_predictions=chosen.predictions if chosen else "",
        default_predictions=chosen.default_predictions if chosen else "",
        seconds=_known([trial.chain_seconds for trial in ours]),
        rule={name: as_text(value) for name, value in study.rule.items()},
        charged=_known([_charged(trial, study.rule) for trial in ours]),
        computed_by=_codes(ours),
        varied="splits" in study.origin,
        metrics=tuple(study.origin.get("metrics", ())),
        subset=_subset(study),
        copies=tuple(study.origin.get("copies", ())),
        plugins={Path(p["path"]).stem: p["code"] for p in study.origin.get("plugins", ())},
        q=_known([trial.metrics.get("q") for trial in ours]),
    )


def _codes(trials: Iterable[Trial]) -> tuple[str, ...]:
    codes = {facts.get("code", "") for trial in trials for facts in trial.computed.values()}
    return tuple(sorted(codes - {""}))


def _charged(trial: Trial, rule: Mapping[str, Any]) -> float | None:
    """Return the guard's penalty in a trial's objective; None if it is unknown."""
    plain = trial.metrics.get(str(rule.get("objective")))
    return None if trial.objective is None or plain is None else trial.objective - plain


def _subset(study: Study) -> str:
    """Return the limits on the rows of a study's data set as text; empty if there are none."""
    split = study.origin.get("split", {})
    limits = ((name, split.get(name)) for name in ("train_limit", "test_limit"))
    return ", ".join(f"{name} {limit}" for name, limit in limits if limit is not None)


def _known(values: list[T | None]) -> tuple[T, ...]:
    """Return the values if all are known, else none: values must be aligned with seeds."""
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else ()


def trials_of_choice(study: Study, chosen: Trial, evaluated: Iterable[Trial]) -> list[Trial]:
    """Return the evaluated trials of a study's choice, ordered by seed, one per seed of the table.

    A trial that was chosen before the study was resumed may have been evaluated too, even with the
    same configuration; it is left out.
    """
    candidates = (
        trial
        for trial in evaluated
        if trial.study == study.name and trial.configuration == chosen.configuration
    )
    by_seed = {
        trial.seed: trial for trial in sorted(candidates, key=attrgetter("seed", "role", "number"))
    }
    if chosen.seed in by_seed and chosen.test:
        by_seed[chosen.seed] = chosen
    return [trial for trial in by_seed.values() if study.shows(trial.seed)]
