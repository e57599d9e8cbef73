"""The progress of each study of a sweep."""

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from orchestrator.storage.ledger import Ledger, Study, Trial
from orchestrator.storage.results import StudyResult
from orchestrator.storage.status import hours_of
from trainables.common.words import many

LIVE = ("starting", "running", "pausing", "paused", "queued", "requeued")
WAITING = ("queued", "requeued")  # States of a SLURM job.
HELD = ("pausing", "paused")
OVER = ("died", "interrupted", "failed", "CANCELLED")


class StudyLine(NamedTuple):
    """The progress of one study.

    Attributes:
        state: ``waiting``, ``queued``, ``requeued``, ``running``, ``pausing``, ``paused``,
            ``interrupted``, ``failed`` or ``finished``.
        reason: Why the study waits, was interrupted or failed; else empty.
        ended, trials, running: Number of trials that ended, are planned and are running.
        best: The chosen trial, or the best one so far; None before the first score.
        hours, gpu_hours: See ``hours_of``.
    """

    study: Study
    state: str
    reason: str
    ended: int
    trials: int
    running: int
    best: Trial | None
    hours: float
    gpu_hours: float


def study_lines(ledger: Ledger, state: str, reason: str = "") -> list[StudyLine]:
    """Return a line for each study; ``state`` and ``reason`` belong to the sweep."""
    return [_line(study, ledger, state, reason) for study in ledger.studies.values()]


def study_state(study: Study, ledger: Ledger, state: str, reason: str = "") -> tuple[str, str]:
    """Return the ``state`` and ``reason`` of a ``StudyLine``; see ``study_lines``."""
    if study.status != "running":
        return study.status, "" if study.status == "finished" else study.reason
    if state in OVER:
        return "interrupted", reason
    if study.begun:
        return (state if state in HELD else "running"), ""
    if state in (*WAITING, *HELD):
        return state, reason
    upstream = ledger.studies.get(study.upstream or "")
    if upstream is not None and upstream.closed is None:
        return "waiting", f"for the choice of {upstream.study}"
    return "waiting", "for its first trial"


def figure_states(
    lines: Iterable[StudyLine], results: Sequence[StudyResult], seeds: int
) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Yield ``(recipe, task), (state, reason)`` for rows whose test figures are incomplete.

    Rows of failed studies are skipped.
    """
    measured = {(result.recipe, result.task): len(result.test) for result in results}
    for line in lines:
        place, state = (line.study.recipe, line.study.task), line.state
        if state not in ("finished", "failed") and place in measured:
            counts = f"{line.ended} of {many(line.trials, 'trial')} ended"
            yield place, (state, f"{state} {line.reason}" if line.reason else f"{state}, {counts}")
        elif state == "finished" and measured.get(place, seeds) < seeds:
            counts = f"{measured[place]} of {many(seeds, 'seed')} measured on test data"
            yield place, ("not measured", counts)


def _line(study: Study, ledger: Ledger, state: str, reason: str) -> StudyLine:
    trials = study.begun.values()
    scored = (t for t in trials if t.role == "search" and t.objective is not None)
    ended = (t for t in scored if t.status == "finished")
    best = min(ended, key=attrgetter("objective", "number"), default=None)
    return StudyLine(
        study,
        *study_state(study, ledger, state, reason),
        sum(trial.ended for trial in trials),
        study.planned + ledger.further_seeds,
        0 if state in OVER else sum(trial.open for trial in trials),
        study.chosen_trial or best,
        *hours_of(trials, ledger),
    )
