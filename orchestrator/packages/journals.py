"""Reduces a sweep's journal for a package: no repeated facts, paths or costs of single stages."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from orchestrator.packages.package import PLUGINS
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

FIRST_COUNTS = (StudyOpened, TrialStarted)
"""Kinds of events whose first occurrence counts; see ``settled`` for others."""


def cleaned(event: Event) -> Event | None:
    """Return an event without paths, costs of single stages, and figures that cannot be recomputed.

    Return None if nothing else remains.
    """
    if isinstance(event, SweepStarted):
        spec = without_places(event.spec)
        return replace(event, spec={**spec, **_within_package(spec)})
    if isinstance(event, StudyOpened):
        return replace(event, origin={**event.origin, **_within_package(event.origin)})
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


def _within_package(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry ``plugins`` of a record, with the paths in a package, if it has one."""
    named = record.get("plugins")
    if not named:
        return {}
    return {"plugins": [{**each, "path": _place(each["path"], each["code"])} for each in named]}


def _place(path: str, code: str) -> str:
    parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
    below = parts[parts.index(code) + 1 :] if code in parts else parts[-1:]
    return "/".join((PLUGINS, code, *below))


def _is_validation(name: str) -> bool:
    metric = name.removeprefix("val_")
    return metric != name and metric in METRICS and METRICS[metric].source != "suite"


def _is_test(name: str) -> bool:
    metric = name.removeprefix(TEST_PREFIX)
    return metric in METRICS and METRICS[metric].source in ("report", "test", "plugin")


def settled(events: Iterable[Event]) -> list[Event]:
    """Return the events that are valid at the end of a sweep, without those of earlier attempts.

    Of each trial and study, the first event of ``FIRST_COUNTS`` and the last of any other kind is
    valid. Evaluations of a trial are merged; all starts of the sweep are kept.
    """
    found: dict[tuple[type[Event], object], Event] = {}
    for number, event in enumerate(events):
        name = number if isinstance(event, SweepStarted) else subject(event)
        before = found.get((type(event), name))
        if before is not None and isinstance(event, FIRST_COUNTS):
            continue
        if isinstance(event, Evaluated) and isinstance(before, Evaluated):
            seconds = before.seconds if event.seconds is None else event.seconds
            metrics = {**before.metrics, **event.metrics}
            event = replace(event, metrics=metrics, seconds=seconds)
        found.pop((type(event), name), None)
        found[type(event), name] = event
    return list(found.values())


def subject(event: Event) -> str:
    """Return the key of an event's trial or the name of its study; "" for events of the sweep."""
    return str(getattr(event, "key", "") or getattr(event, "study", ""))
