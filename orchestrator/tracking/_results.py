"""Study results, from the journal or from the tracking store: one rule for both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from orchestrator.results import StudyResult
from orchestrator.tracking import _names as names
from orchestrator.tracking._ledger import Ledger, Study, Trial

T = TypeVar("T")

STATUS = {
    names.RUNNING: "running",
    names.FINISHED: "finished",
    names.FAILED: "failed",
    names.KILLED: "failed",
}


def results_from_journal(events: Iterable[Mapping[str, Any]]) -> list[StudyResult]:
    """Return the studies of a sweep that are rows of its table, in the order of their opening.

    Agrees with ``study_results`` on the same sweep but for ``run_ids``, which are empty here.

    Args:
        events: The events of one journal, from its start.

    Raises:
        InputError: If the events belong to more than one sweep.
    """
    ledger = Ledger()
    for event in events:
        ledger.apply(event)
    evaluated = [trial for trial in ledger.trials.values() if trial.test]
    return results(ledger.sweep, ledger.studies.values(), ledger.trials, evaluated)


def results(
    sweep: str,
    studies: Iterable[Study],
    chosen: Mapping[str, Trial],
    evaluated: Iterable[Trial],
) -> list[StudyResult]:
    """Return the results of those studies that are rows.

    Args:
        sweep: Name of the sweep.
        studies: All its studies.
        chosen: Trials by key, the chosen ones among them.
        evaluated: Trials with test metrics.
    """
    tests = sorted(evaluated, key=lambda trial: (trial.seed, trial.role, trial.number))
    rows = sorted((study for study in studies if study.row), key=lambda study: study.index)
    return [_result(sweep, study, chosen.get(study.chosen or ""), tests) for study in rows]


def _result(sweep: str, study: Study, chosen: Trial | None, tests: list[Trial]) -> StudyResult:
    ours = _of_the_choice(study, chosen, tests) if chosen is not None else []
    shown = ours or ([chosen] if chosen is not None else [])
    return StudyResult(
        sweep=sweep,
        task=study.task,
        recipe=study.recipe,
        status=STATUS[study.status],
        configuration=chosen.configuration if chosen else {},
        validation=_validation(chosen),
        test=tuple(trial.test for trial in ours),
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
        started=study.opened / 1000,
        predictions=_known([trial.predictions or None for trial in ours]),
        seconds=_known([trial.chain_seconds for trial in ours]),
        rule=study.rule,
        subset=_subset(study),
    )


def _subset(study: Study) -> str:
    """Return the limits on a study's images, or nothing if it saw the whole data set."""
    split = study.origin.get("split", {})
    limits = ((name, split.get(name)) for name in ("train_limit", "test_limit"))
    return ", ".join(f"{name} {limit}" for name, limit in limits if limit is not None)


def _known(values: list[T | None]) -> tuple[T, ...]:
    """Return the values if each is known, else none: a part could not be told from the whole."""
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else ()


def _of_the_choice(study: Study, chosen: Trial, tests: list[Trial]) -> list[Trial]:
    """Return the evaluated trials of what a study chose, one a seed.

    What the study had chosen before it was resumed, perhaps by older code, may have been evaluated
    too, even with the same configuration; it is no result.
    """
    by_seed = {
        trial.seed: trial
        for trial in tests
        if trial.study == study.name and trial.configuration == chosen.configuration
    }
    if chosen.seed in by_seed and chosen.test:
        by_seed[chosen.seed] = chosen
    return list(by_seed.values())


def _validation(chosen: Trial | None) -> dict[str, float]:
    prefix = names.VALIDATION_PREFIX
    metrics = chosen.metrics if chosen else {}
    return {
        name.removeprefix(prefix): value
        for name, value in metrics.items()
        if name.startswith(prefix)
    }
