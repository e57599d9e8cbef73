"""Estimate the remaining time of a sweep from the times of its ended trials."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

# Assumed time of a stage, as a fraction of a training's, until a trial of the stage has ended.
SHARES = {"refine": 0.2, "calibrate": 0.02}
SHORT_FIRST = ("calibrate", "refine")  # A search starts these before trainings.

ALMOST = 0.1  # Smallest remainder, in trials, if running trials take longer than ended ones.

Phase = tuple[str, bool]  # A study, and True for its search or False for its further seeds.


@dataclass(frozen=True)
class Work:
    """The trials of one study.

    Attributes:
        search, seeds: Number of trials of the search, and of further seeds, that have not ended.
        costs: Seconds that each ended trial took, or that a running one is expected to take.
        begun: Total seconds of the running trials so far.
        together: Maximum number of trials of the search at once.
        upstream: The study whose chosen trial is the input of these trials; "" for none.
        reference: The study with whose choice the accuracy guard compares; "" for none.
    """

    study: str
    task: str
    stage: str
    search: int
    seeds: int
    costs: Sequence[float]
    begun: float = 0.0
    together: int = 1
    upstream: str = ""
    reference: str = ""


def costs_of(stage: str, ended: Iterable[tuple[float | None, bool]]) -> list[float]:
    """Return the seconds of ended trials; reused results count only for refinements."""
    return [
        seconds
        for seconds, reused in ended
        if seconds is not None and (stage == "refine" or not reused)
    ]


def seconds_left(works: Sequence[Work], places: int) -> float | None:
    """Estimate the remaining seconds; None if no work has ``costs`` yet.

    A trial is assumed to take the mean of the ``costs`` of its study, else of its stage and task,
    else of its stage. If its stage has none, its time is derived from the other stages with
    ``SHARES``. Up to ``places`` trials run at once; studies wait for those on which they depend.
    """
    costs = {work.study: _cost(work, works) for work in works}
    if not any(work.costs for work in works):
        return None
    known = {work.study: work for work in works}
    left: dict[Phase, float] = {}
    for work in works:
        begun = work.begun / costs[work.study] if costs[work.study] else 0.0
        for search, count in ((True, work.search), (False, work.seeds)):
            left[work.study, search] = max(count - begun, min(count, ALMOST))
            begun = max(0.0, begun - count)
    order = sorted(left, key=lambda phase: (*_urgency(known[phase[0]]), -left[phase]))
    seconds = 0.0
    while ready := [phase for phase in order if left[phase] > 0 and _may_run(phase, left, known)]:
        shares = dict(_shared(ready, left, known, places))
        rates = {phase: share / max(costs[phase[0]], 1e-9) for phase, share in shares.items()}
        step = min(left[phase] / rate for phase, rate in rates.items())
        for phase, rate in rates.items():
            rest = left[phase] - step * rate
            left[phase] = rest if rest > 1e-6 else 0.0
        seconds += step
    return seconds


def _may_run(phase: Phase, left: Mapping[Phase, float], known: Mapping[str, Work]) -> bool:
    work, search = known[phase[0]], phase[1]
    if not search:
        return not left[work.study, True] and not left.get((work.upstream, False), 0)
    return not left.get((work.upstream, True), 0) and not left.get((work.reference, True), 0)


def _shared(
    ready: Sequence[Phase], left: Mapping[Phase, float], known: Mapping[str, Work], places: int
) -> Iterable[tuple[Phase, int]]:
    """Yield the number of places per phase; earlier phases get as many as they can use."""
    for phase in ready:
        trials = math.ceil(left[phase])
        share = min(places, trials, known[phase[0]].together if phase[1] else trials)
        places -= share
        if share:
            yield phase, share


def _urgency(work: Work) -> tuple[bool, bool]:
    return work.stage not in SHORT_FIRST, bool(work.reference)


def _cost(work: Work, works: Sequence[Work]) -> float:
    alike: list[Callable[[Work], bool]] = [
        lambda other: other is work,
        lambda other: (other.task, other.stage) == (work.task, work.stage),
        lambda other: other.stage == work.stage,
    ]
    for fits in alike:
        if costs := [cost for other in works if fits(other) for cost in other.costs]:
            return fmean(costs)
    known = [cost / SHARES.get(other.stage, 1.0) for other in works for cost in other.costs]
    return SHARES.get(work.stage, 1.0) * fmean(known) if known else 0.0
