"""Checks of a package that need no training; each yields a line per fault."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orchestrator.packages.again import Again
from orchestrator.packages.derive import derived_texts
from orchestrator.packages.journals import cleaned
from orchestrator.packages.package import MALFORMED, SPLITS, SUITES, TEST, VALIDATION, Cell, Package
from orchestrator.packages.predictions import RowPredictions, tested
from orchestrator.packages.publish import ENDED, split_of
from orchestrator.storage.events import (
    Event,
    StudyClosed,
    StudyOpened,
    TrialScored,
    TrialStarted,
    fields_of,
)
from orchestrator.storage.ledger import Ledger, Study
from trainables.common.archives import ArrayArchive
from trainables.common.errors import InputError, one_line
from trainables.common.words import many
from trainables.data import PreparedData
from trainables.data.suites import SuiteData
from trainables.metrics import calibration_report, evaluation_report, registered_report
from trainables.stages import objective_terms, pooled

MOST = 20
"""Maximum number of lines of the checks that may find a fault in every trial or event."""


def check_journals(package: Package, revision: str) -> Iterator[str]:
    """Check that each sweep was computed by a revision, and that sweeps and trials have ended.

    A trial that was stopped early, or lost by a machine, cannot be computed again.
    """
    for ledger in package.ledgers:
        if ledger.status not in ENDED:
            yield f"sweep {ledger.sweep} has not ended: it is {ledger.status}"
        for trial in ledger.trials.values():
            if trial.status not in ENDED or trial.fault:
                how = f"was lost by a {trial.fault}" if trial.fault else f"is {trial.status}"
                yield f"sweep {ledger.sweep}: trial {trial.key[:12]} of {trial.study} {how}"
        codes = {study.code for study in ledger.studies.values()} | {ledger.git_commit}
        codes |= {trial.code for trial in ledger.trials.values()}
        for code in sorted(codes - {revision}):
            yield (
                f"sweep {ledger.sweep}: expected code of revision {revision or 'unknown'}, got "
                f"{code or 'unknown'}; verify the package from a checkout of its revision"
            )


def check_derived(package: Package) -> Iterator[str]:
    """Derive ``table.csv`` and ``cells.json`` again and compare them.

    Also check that each cell of the table, and nothing else, has a file of test predictions.
    """
    for name, text in derived_texts(package).items():
        if _text(package, name) != text:
            yield f"{name} does not agree with the journals"
    expected = {f"{TEST}/{cell.trial.key}.npz" for cell in package.cells}
    found = {name for name in package.files() if name.startswith(f"{TEST}/")}
    yield from (f"{name} is missing" for name in sorted(expected - found))
    yield from (f"{name} belongs to no cell of the table" for name in sorted(found - expected))


def _text(package: Package, name: str) -> str | None:
    path = package.folder / name
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else None
    except UnicodeDecodeError:
        return None


def check_figures(package: Package, tolerance: float) -> Iterator[str]:
    """Compute all test figures, except those of suites, from the predictions; compare them."""
    for cell in package.cells:
        try:
            found = tested(package, cell)
        except InputError as error:
            yield f"{cell.title}: {error}"
            continue
        now = evaluation_report(found.logits, found.labels)
        now |= plugin_figures(cell.study, found.logits, found.labels)
        published = {name: value for name, value in cell.trial.test.items() if "/" not in name}
        yield from (f"{cell.title}: {line}" for line in unequal(published, now, tolerance))


def plugin_figures(study: Study, logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Compute the test figures that a study's plugins define."""
    names = study.origin.get("metrics", {})
    found = registered_report(logits, labels, floors=True) if names else {}
    return {name: v for name, v in found.items() if name.removesuffix("_floor") in names}


def unequal(
    published: Mapping[str, Any], now: Mapping[str, float], tolerance: float
) -> Iterator[str]:
    """Yield a line for each figure that is missing on one side or differs beyond a tolerance."""
    for name in sorted({*published, *now}):
        if name not in now:
            yield f"{name} is published but cannot be computed"
        elif name not in published:
            yield f"{name} is not published, computed {now[name]!r}"
        elif not _close(published[name], now[name], tolerance):
            yield f"{name}: published {published[name]!r}, computed {now[name]!r}"


def _close(published: Any, now: float, tolerance: float) -> bool:
    number = isinstance(published, int | float) and not isinstance(published, bool)
    return number and math.isclose(published, now, rel_tol=0.0, abs_tol=tolerance)


def check_splits(package: Package, again: Again) -> Iterator[str]:
    """Split the data again and compare digests, row numbers and labels."""
    prepared = {found.key: found for own in again.data.values() for found in own.values()}
    names = {f"{SPLITS}/{key}.npz": found for key, found in prepared.items()}
    packed = {name for name in package.files() if name.startswith(f"{SPLITS}/")}
    for name in sorted(packed ^ set(names)):
        if name in names:
            yield f"{name}, the split of the data on this machine, is not in the package"
        else:
            yield f"{name} is not a split of the data on this machine by the sweep file"
    for name in sorted(packed & set(names)):
        archive, expected = ArrayArchive(package.folder / name), split_of(names[name])
        if set(archive.names) != set(expected):
            yield f"{name}: expected {', '.join(expected)}, got {', '.join(archive.names)}"
        elif any(not np.array_equal(archive.read(part), expected[part]) for part in expected):
            yield f"{name}: the row numbers differ from those of the split"
    for cell in package.cells:
        data, found = again.data_of(cell), tested(package, cell)
        yield from _rows(cell.title, found, data, data.test_numbers(), data.test().labels)


def check_suites(package: Package, again: Again, tolerance: float) -> Iterator[str]:
    """Compute all figures of suites from their stored tensors and compare them."""
    expected = set()
    for cell in package.cells:
        suites = again.suites(cell)
        name = f"{SUITES}/{cell.trial.key}.npz"
        try:
            tensors = _tensors(package, name)
            now = {
                f"{suite.label}/{metric}": value
                for suite, place in suites
                for metric, value in suite.figures(
                    SuiteData.open(place),
                    tensors.pop(suite.label, {}),
                    tested(package, cell).logits,
                ).items()
            }
        except (RuntimeError, *MALFORMED) as error:
            yield f"{cell.title}: {name}: {one_line(str(error), 250)}"
            continue
        if tensors:
            yield f"{name}: {', '.join(tensors)}: not among the task's suites"
        expected.add(name)
        now |= pooled(now, {suite.label: suite.pool for suite, _ in suites})
        published = {metric: value for metric, value in cell.trial.test.items() if "/" in metric}
        yield from (f"{cell.title}: {line}" for line in unequal(published, now, tolerance))
    others = {name for name in package.files() if name.startswith(f"{SUITES}/")} - expected
    yield from (f"{name} belongs to no cell of the table" for name in sorted(others))


def _tensors(package: Package, name: str) -> dict[str, dict[str, Tensor]]:
    """Return stored tensors by suite label and tensor name; empty if the file is missing."""
    found: dict[str, dict[str, Tensor]] = {}
    if (path := package.folder / name).is_file():
        archive = ArrayArchive(path)
        for member in archive.names:
            label, _, tensor = member.rpartition("/")
            found.setdefault(label, {})[tensor] = torch.from_numpy(archive.read(member))
    return found


def _rows(
    title: str, found: RowPredictions, data: PreparedData, numbers: np.ndarray, labels: np.ndarray
) -> Iterator[str]:
    if (classes := found.logits.shape[1]) != data.info.num_classes:
        yield f"{title}: expected {data.info.num_classes} classes, got {classes}"
    if not np.array_equal(found.rows.numpy(), numbers):
        yield f"{title}: expected predictions of the split's {len(numbers)} rows, got other rows"
    elif not np.array_equal(found.labels.numpy(), labels):
        wrong = int((found.labels.numpy() != labels).sum())
        yield f"{title}: expected the labels of the data, got {many(wrong, 'other label')}"


def check_validation(package: Package, again: Again, tolerance: float) -> Iterator[str]:
    """Compare the package's validation rows with the data and the journals' figures."""
    trials = defaultdict[str, list[Cell]](list)
    for cell in package.trials:
        trials[f"{VALIDATION}/{cell.trial.artifact}.npz"].append(cell)
    for name in package.files():
        if not name.startswith(f"{VALIDATION}/"):
            continue
        if name not in trials:
            yield f"{name} belongs to no trial"
            continue
        found = RowPredictions.read(package.folder / name)
        cell_of_file = found.task, found.recipe, found.seed
        if all(cell_of_file != (c.study.task, c.study.recipe, c.trial.seed) for c in trials[name]):
            actual = f"{found.recipe} on {found.task}, seed {found.seed}"
            yield f"{name}: expected predictions of {trials[name][0].title}, got those of {actual}"
        report = calibration_report(found.logits, labels=found.labels)
        for cell in trials[name]:
            now = dict(report)  # Another sweep's plugins may add metrics to the same rows.
            data = again.data_of(cell)
            labels = data.search().validation.labels
            yield from _rows(name, found, data, data.search_numbers("validation"), labels)
            published = {k.removeprefix("val_"): value for k, value in cell.trial.metrics.items()}
            for metric in {*published} - {*now}:  # Objectives that the report does not have.
                now[metric] = float(objective_terms(metric, found.logits, found.labels).mean())
            yield from (f"{name}: {line}" for line in unequal(published, now, tolerance))


def check_search(package: Package, again: Again, tolerance: float) -> Iterator[str]:
    """Repeat each search: it must suggest and choose the same trials."""
    for ledger in package.ledgers:
        lines = islice(_differences(package, again, ledger, tolerance), MOST)
        yield from (f"sweep {ledger.sweep}: {line}" for line in lines)


def _differences(package: Package, again: Again, ledger: Ledger, tolerance: float) -> Iterator[str]:
    package.load_plugins([ledger])
    state, events = again.search(package, ledger)
    spec = again.specs[ledger.sweep_id]
    data = again.data[ledger.sweep_id]
    for name in sorted({*state.studies} ^ {*ledger.studies}):
        yield f"study {name} is {'missing' if name in state.studies else 'not in the sweep file'}"
    for name, study in state.studies.items():
        known = ledger.studies.get(name)
        if known is None:
            continue
        opening = study.opening(data[study.plan.task.data_name(spec.all_seeds[0])], spec)
        expected = cleaned(opening)
        assert expected is not None
        for field in _unlike(known, expected, StudyOpened, tolerance):
            yield f"study {name}: {field} does not follow from the sweep file and the data"
        yield from _unlike_trials(known, list(study.trials.values()), tolerance)
        requests = {trial.key: trial.request for trial in study.trials.values()}
        for key, trial in known.begun.items():
            if trial.artifact and key in requests and trial.artifact != requests[key].key():
                yield f"trial {key[:12]}: its artifact belongs to another configuration"
        if study.plan.row:
            yield from _unmeasured(known, [c.trial.key for c in study.seeds.values() if c])
    yield from _unlike_scores(ledger, events, tolerance)


def _unlike(known: Any, event: Event, kind: type[Event], tolerance: float) -> Iterator[str]:
    """Yield the fields of an event, except the time, that differ from attributes of ``known``."""
    for name, value in fields_of(event, kind).items():
        if name != "time" and not _alike(getattr(known, name, None), value, tolerance):
            yield name


def _unlike_trials(
    known: Study, suggested: Iterable[TrialStarted], tolerance: float
) -> Iterator[str]:
    expected = {trial.key: trial for trial in suggested}
    for key in sorted({*expected} ^ {*known.begun}):
        where = "never suggested by the search" if key in known.begun else "missing"
        trial = known.begun.get(key) or expected[key]
        yield f"study {known.name}: trial {trial.number} ({key[:12]}) is {where}"
    for key in {*expected} & {*known.begun}:
        for name in _unlike(known.begun[key], expected[key], TrialStarted, tolerance):
            yield f"study {known.name}: {name} of trial {key[:12]} differs from the suggestion"


def _unmeasured(known: Study, chosen: Iterable[str]) -> Iterator[str]:
    for key in chosen:
        if key not in known.begun or not known.begun[key].test:
            yield f"study {known.name}: chosen trial {key[:12]} has no test figures"


def _unlike_scores(ledger: Ledger, events: Iterable[Any], tolerance: float) -> Iterator[str]:
    """Compare the repeated search's objectives, accuracy errors and choices with the ledger."""
    for event in events:
        if isinstance(event, TrialScored):
            trial = ledger.trials.get(event.key)
            published = None if trial is None else [trial.objective, trial.accuracy_error]
            if not _alike(published, [event.objective, event.error], tolerance):
                yield f"objective of trial {event.key[:12]} does not follow from its figures"
        elif isinstance(event, StudyClosed):
            closed = ledger.studies[event.study].closed if event.study in ledger.studies else None
            for name in _unlike(closed, event, StudyClosed, tolerance):
                yield f"study {event.study}: {name} differs from the repeated search"


def _alike(published: Any, now: Any, tolerance: float) -> bool:
    """Return True if two plain values are equal, floats up to a tolerance."""
    if isinstance(now, bool) or isinstance(published, bool) or now is None:
        return published is now
    if isinstance(now, int | float):
        return _close(published, now, tolerance if isinstance(now, float) else 0.0)
    if isinstance(now, Mapping):
        if not isinstance(published, Mapping) or {*map(str, published)} != {*map(str, now)}:
            return False
        return all(_alike(published[name], now[name], tolerance) for name in now)
    if isinstance(now, list | tuple):
        if not isinstance(published, list | tuple) or len(published) != len(now):
            return False
        return all(_alike(a, b, tolerance) for a, b in zip(published, now, strict=True))
    return bool(published == now)
