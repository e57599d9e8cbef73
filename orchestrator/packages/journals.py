"""What a package's journal keeps of a sweep's own: each thing once, and nothing of the machine."""

from collections.abc import Iterable
from dataclasses import replace

from orchestrator.storage.events import (
    TEST_PREFIX,
    Epoch,
    Evaluated,
    Event,
    StudyClosed,
    StudyOpened,
    SweepStarted,
    TrialFinished,
    TrialPlaced,
    TrialStarted,
)
from orchestrator.sweep.spec import without_places
from trainables.common.errors import printable
from trainables.metrics import METRICS

TOLD_FIRST = (StudyOpened, TrialStarted)
"""Kinds of events whose first one counts; of all others the last one does."""


def cleaned(event: Event) -> Event | None:
    """Return an event without places, costs and figures that cannot be recomputed.

    None if nothing is left of it.
    """
    if isinstance(event, SweepStarted):
        return replace(event, spec=without_places(event.spec))
    if isinstance(event, TrialFinished):
        kept = {k: v for k, v in event.metrics.items() if _is_validation(k)}
        event = replace(event, metrics=kept, host=None, traceback=None, reused=False)
        event = replace(event, seconds=None, epoch_seconds=None, peak_memory=None)
    if isinstance(event, Evaluated):
        kept = {k: v for k, v in event.metrics.items() if "/" in k or _is_test(k)}
        return replace(event, metrics=kept, artifacts={}, default_predictions=None)
    if isinstance(event, TrialFinished | StudyClosed):
        return replace(event, reason=printable(event.reason))
    return None if isinstance(event, TrialPlaced | Epoch) else event


def _is_validation(name: str) -> bool:
    metric = name.removeprefix("val_")
    return metric != name and metric in METRICS and METRICS[metric].source != "suite"


def _is_test(name: str) -> bool:
    metric = name.removeprefix(TEST_PREFIX)
    return metric in METRICS and METRICS[metric].source in ("report", "test")


def settled(events: Iterable[Event]) -> list[Event]:
    """Return each event of a sweep that was resumed once, as it counts at the end."""
    found: dict[tuple[type[Event], object], Event] = {}
    for number, event in enumerate(events):
        name = number if isinstance(event, SweepStarted) else subject(event)
        before = found.get((type(event), name))
        if before is not None and isinstance(event, TOLD_FIRST):
            continue
        if isinstance(event, Evaluated) and isinstance(before, Evaluated):
            seconds = before.seconds if event.seconds is None else event.seconds
            metrics = {**before.metrics, **event.metrics}
            event = replace(event, metrics=metrics, seconds=seconds)
        found.pop((type(event), name), None)
        found[type(event), name] = event
    return list(found.values())


def subject(event: Event) -> str:
    """Return the trial, or the study, that an event is about; nothing if it is the sweep."""
    return str(getattr(event, "key", "") or getattr(event, "study", ""))
