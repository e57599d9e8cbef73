"""What one study came to: the record that tables are made of."""

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
        task: ``dataset/model/protocol``, or the name that the sweep file gives it.
        status: ``finished``, ``failed`` (no trial finished), ``running`` or ``interrupted``.
        configuration: Part of the recipe to its parameters, of the chosen trial.
        validation: Metrics of the chosen trial on validation data, fractions.
        test: Metrics of the chosen configuration on test data, one mapping a seed, with the keys of
            ``calibration_report``, fractions.
        reason: Why the study, or the last failed trial, failed; else empty.
        trials: Those that its search might run.
        run_ids: MLflow runs of the chosen configuration, one per seed, as far as they are known.
        sweep_id: Identifies the sweep for good; several may have borne the same name.
        dataset: Short name, such as ``cifar10``, or the stem of an npz file or folder.
        fingerprint: Hash (hex) of the content of the data and of how they were split.
        predictions: Keys of the ``evaluate`` artifacts, one a seed, aligned with ``test``.
        searched_predictions: Key of the ``evaluate`` artifact of the chosen trial itself.
        default_predictions: That of the study's published default, its first trial; empty where it
            was not measured.
        seconds: What the chosen chain of stages cost to compute, one a seed, aligned with ``test``;
            stages that were reused count what they cost at first. Empty where that is not known.
        rule: How the choice was made: ``objective``, ``accuracy_tolerance``, ``epoch``, ``tie``,
            and where they are used ``accuracy_errors``, ``keep_default`` and ``stop``.
        charged: What the accuracy guard added to each seed's objective, fractions, aligned with
            ``test``; empty where that is not known.
        computed_by: Hashes of the code of the processes that computed the chosen chains of stages.
        varied: Whether each seed has a split of its own.
        subset: Limits on the images, such as ``train_limit 5000, test_limit 1000``; empty where the
            whole data set took part.
        copies: Sentences about rows that are in two parts of the data; none if there are none, or
            they were not counted.
        plugins: Hash of the code of each plugin that the sweep file names, by the plugin's name.
        q: MaC-Cal's q at the end, one a seed, aligned with ``test``; empty for other recipes.

    Raises:
        ValueError: If ``status`` is none of the four, or a count is negative.
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
        """Return True if the search chose the published default that it began with."""
        return bool(self.default_predictions) and (
            self.default_predictions == self.searched_predictions
        )

    @property
    def stopped(self) -> int:
        """Return after how many trials the search stopped since it expected no gain; 0 if never."""
        return stopped_after(self.status, self.rule, self.trials, self.ended)

    @property
    def ended(self) -> int:
        """Return how many trials ended."""
        return self.trials_finished + self.trials_failed

    @property
    def searched(self) -> bool:
        """Return True if there was more than one trial to choose from."""
        return self.ended > 1


def usual_baseline(results: Iterable[StudyResult | Study]) -> str:
    """Return what recipes are compared with: plain cross-entropy, or the logits as given."""
    return GIVEN if any(result.model == GIVEN for result in results) else "ce"


def as_text(value: Any) -> str:
    """Return a plain value as text: texts as they are, other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def results_of(ledger: Ledger, runs: Mapping[str, str] | None = None) -> list[StudyResult]:
    """Return the studies of a sweep that are rows of its table, in the order of their opening."""
    known, chosen = runs or {}, {study.chosen for study in ledger.studies.values()}
    trials = {
        key: replace(trial, run_id=known.get(key, ""))
        for key, trial in ledger.trials.items()
        if trial.test or key in chosen  # A copy of each of 20,000 trials takes half a second.
    }
    evaluated = [trial for trial in trials.values() if trial.test]
    return table_rows(ledger.sweep, ledger.studies.values(), trials, evaluated)


def table_rows(
    sweep: str, studies: Iterable[Study], chosen: Mapping[str, Trial], evaluated: Iterable[Trial]
) -> list[StudyResult]:
    """Return the rows of a sweep's table; ``chosen`` by key, ``evaluated`` have test metrics."""
    tests = list(evaluated)
    rows = sorted((study for study in studies if study.row), key=lambda study: study.index)
    return [_result(sweep, study, chosen.get(study.chosen or ""), tests) for study in rows]


def cells_of(ledger: Ledger) -> list[tuple[Study, Trial]]:
    """Return the measured trials whose figures tables show, one a row and seed."""
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
    found = {facts.get("code", "") for trial in trials for facts in trial.computed.values()}
    return tuple(sorted(found - {""}))


def _charged(trial: Trial, rule: Mapping[str, Any]) -> float | None:
    """Return what the guard added to a trial's objective; None where it has no score."""
    plain = trial.metrics.get(str(rule.get("objective")))
    return None if trial.objective is None or plain is None else trial.objective - plain


def _subset(study: Study) -> str:
    """Return the limits on a study's images, or nothing if it saw the whole data set."""
    split = study.origin.get("split", {})
    limits = ((name, split.get(name)) for name in ("train_limit", "test_limit"))
    return ", ".join(f"{name} {limit}" for name, limit in limits if limit is not None)


def _known(values: list[T | None]) -> tuple[T, ...]:
    """Return the values if each is known, else none: a part would pass for the whole."""
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else ()


def trials_of_choice(study: Study, chosen: Trial, evaluated: Iterable[Trial]) -> list[Trial]:
    """Return the evaluated trials of what a study chose, one a seed, by seed.

    What the study had chosen before it was resumed, perhaps by older code, may have been evaluated
    too, even with the same configuration; it is no result.
    """
    found = (
        trial
        for trial in evaluated
        if trial.study == study.name and trial.configuration == chosen.configuration
    )
    by_seed = {
        trial.seed: trial for trial in sorted(found, key=attrgetter("seed", "role", "number"))
    }
    if chosen.seed in by_seed and chosen.test:
        by_seed[chosen.seed] = chosen
    return [trial for trial in by_seed.values() if study.shows(trial.seed)]
