"""What can be known of a package without training: each check yields a line per fault."""

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
from orchestrator.packages.package import (
    MALFORMED,
    SPLITS,
    SUITES,
    TEST,
    VALIDATION,
    Cell,
    Package,
)
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
from trainables.data import PreparedData
from trainables.data.suites import SuiteData
from trainables.metrics import calibration_report, evaluation_report, registered_report
from trainables.stages import objective_terms, pooled

MOST = 20
"""Lines of one check; more would tell nothing new."""


def check_journals(package: Package, revision: str) -> Iterator[str]:
    """Compare each sweep's code with a revision, and see that sweeps and trials have ended.

    A trial that was stopped early, or lost by a machine, cannot be computed again to its end.
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
                f"sweep {ledger.sweep}: computed by revision {code or 'unknown'}, verified by "
                f"{revision or 'unknown'}; verify it from a checkout of its own"
            )


def check_derived(package: Package) -> Iterator[str]:
    """Make the files anew that other programs read, and compare them."""
    for name, text in derived_texts(package).items():
        if _text(package, name) != text:
            yield f"{name} is not what the journals say"
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
    """Compute every figure on test data from the predictions."""
    for cell in package.cells:
        try:
            found = tested(package, cell)
        except InputError as error:
            yield f"{cell.title}: {error}"
            continue
        now = evaluation_report(found.logits, found.labels)
        now |= plugin_figures(cell.study, found.logits, found.labels)
        told = {name: value for name, value in cell.trial.test.items() if "/" not in name}
        yield from (f"{cell.title}: {line}" for line in unequal(told, now, tolerance))


def plugin_figures(study: Study, logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the test figures that a study's plugins add."""
    names = study.origin.get("metrics", {})
    found = registered_report(logits, labels, floors=True) if names else {}
    return {name: v for name, v in found.items() if name.removesuffix("_floor") in names}


def unequal(told: Mapping[str, Any], now: Mapping[str, float], tolerance: float) -> Iterator[str]:
    """Yield a line for each figure that differs, or that only one side has."""
    for name in sorted({*told, *now}):
        if name not in now or name not in told:
            yield f"{name} is {'told' if name in told else 'computed'} only"
        elif not _close(told[name], now[name], tolerance):
            yield f"{name} is said to be {told[name]!r}, computed is {now[name]!r}"


def _close(told: Any, now: float, tolerance: float) -> bool:
    number = isinstance(told, int | float) and not isinstance(told, bool)
    return number and math.isclose(told, now, rel_tol=0.0, abs_tol=tolerance)


def check_splits(package: Package, again: Again) -> Iterator[str]:
    """Split the data again: digests, row numbers and labels must be those of the package."""
    prepared = {found.key: found for own in again.data.values() for found in own.values()}
    names = {f"{SPLITS}/{key}.npz": found for key, found in prepared.items()}
    there = {name for name in package.files() if name.startswith(f"{SPLITS}/")}
    for name in sorted(there ^ set(names)):
        if name in names:
            yield f"the data here, split as the sweep file says, are {name}, not in the package"
        else:
            yield f"{name} is no split of the data here, by the sweep file"
    for name in sorted(there & set(names)):
        archive, expected = ArrayArchive(package.folder / name), split_of(names[name])
        if set(archive.names) != set(expected):
            yield f"{name} holds {', '.join(archive.names)}"
        elif any(not np.array_equal(archive.read(part), expected[part]) for part in expected):
            yield f"{name}: its row numbers are not those of the split"
    for cell in package.cells:
        data, found = again.data_of(cell), tested(package, cell)
        yield from _rows(cell.title, found, data, data.test_numbers(), data.test().labels)


def check_suites(package: Package, again: Again, tolerance: float) -> Iterator[str]:
    """Compute every figure of a suite from what the package holds of it."""
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
            yield f"{name} holds {', '.join(tensors)}, none of the task's suites"
        expected.add(name)
        now |= pooled(now, {suite.label: suite.pool for suite, _ in suites})
        told = {metric: value for metric, value in cell.trial.test.items() if "/" in metric}
        yield from (f"{cell.title}: {line}" for line in unequal(told, now, tolerance))
    others = {name for name in package.files() if name.startswith(f"{SUITES}/")} - expected
    yield from (f"{name} belongs to no cell of the table" for name in sorted(others))


def _tensors(package: Package, name: str) -> dict[str, dict[str, Tensor]]:
    """Return what suites stored, by label and tensor; nothing if there is no such file."""
    found: dict[str, dict[str, Tensor]] = {}
    if (path := package.folder / name).is_file():
        archive = ArrayArchive(path)
        for member in archive.names:
            label, _, tensor = member.rpartition("/")
            found.setdefault(label, {})[tensor] = torch.from_numpy(archive.read(member))
    return found


def _rows(
    what: str, found: RowPredictions, data: PreparedData, numbers: np.ndarray, labels: np.ndarray
) -> Iterator[str]:
    if found.logits.shape[1] != data.info.num_classes:
        yield f"{what}: {found.logits.shape[1]} classes, the data have {data.info.num_classes}"
    if not np.array_equal(found.rows.numpy(), numbers):
        yield f"{what}: predictions are of other rows than the split's {len(numbers)}"
    elif not np.array_equal(found.labels.numpy(), labels):
        wrong = int((found.labels.numpy() != labels).sum())
        yield f"{what}: {wrong} labels are not those of the data"


def check_validation(package: Package, again: Again, tolerance: float) -> Iterator[str]:
    """Compare the validation rows of the package with the data, and with the journal's figures."""
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
        said = found.task, found.recipe, found.seed
        if all(said != (c.study.task, c.study.recipe, c.trial.seed) for c in trials[name]):
            yield f"{name} says it is of {said[1]} on {said[0]}, seed {said[2]}"
        report = calibration_report(found.logits, labels=found.labels)
        for cell in trials[name]:
            now = dict(report)  # Another sweep's plugins may add metrics to the same rows.
            data = again.data_of(cell)
            labels = data.search().validation.labels
            yield from _rows(name, found, data, data.search_numbers("validation"), labels)
            told = {k.removeprefix("val_"): value for k, value in cell.trial.metrics.items()}
            for metric in {*told} - {*now}:  # What a search asked for beside the report.
                now[metric] = float(objective_terms(metric, found.logits, found.labels).mean())
            yield from (f"{name}: {line}" for line in unequal(told, now, tolerance))


def check_search(package: Package, again: Again, tolerance: float) -> Iterator[str]:
    """Search again by each sweep file: it must suggest the same trials and choose the same."""
    for ledger in package.ledgers:
        lines = islice(_differences(package, again, ledger, tolerance), MOST)
        yield from (f"sweep {ledger.sweep}: {line}" for line in lines)


def _differences(package: Package, again: Again, ledger: Ledger, tolerance: float) -> Iterator[str]:
    package.load_plugins([ledger])
    state, events = again.search(package, ledger)
    spec = again.specs[ledger.sweep_id]
    data = again.data[ledger.sweep_id]
    for name in sorted({*state.studies} ^ {*ledger.studies}):
        yield f"study {name} is {'missing' if name in state.studies else 'none of the sweep file'}"
    for name, study in state.studies.items():
        known = ledger.studies.get(name)
        if known is None:
            continue
        opening = study.opening(data[study.plan.task.data_name(spec.all_seeds[0])], spec)
        told = cleaned(opening)
        assert told is not None
        for field in _unlike(known, told, StudyOpened, tolerance):
            yield f"study {name}: {field} is not what the sweep file and the data make it"
        yield from _unlike_trials(known, list(study.trials.values()), tolerance)
        requests = {trial.key: trial.request for trial in study.trials.values()}
        for key, trial in known.begun.items():
            if trial.artifact and key in requests and trial.artifact != requests[key].key():
                yield f"trial {key[:12]}: its artifact is not of its configuration"
        if study.plan.row:
            yield from _unmeasured(known, [c.trial.key for c in study.seeds.values() if c])
    yield from _unlike_scores(ledger, events, tolerance)


def _unlike(told: Any, event: Event, kind: type[Event], tolerance: float) -> Iterator[str]:
    """Yield the fields of an event, but for when it was, of which something else is told."""
    for name, value in fields_of(event, kind).items():
        if name != "time" and not _alike(getattr(told, name, None), value, tolerance):
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
            yield f"study {known.name}: {name} of trial {key[:12]} was not suggested"


def _unmeasured(known: Study, chosen: Iterable[str]) -> Iterator[str]:
    for key in chosen:
        if key not in known.begun or not known.begun[key].test:
            yield f"study {known.name}: trial {key[:12]} of the choice has no figures on test data"


def _unlike_scores(ledger: Ledger, events: Iterable[Any], tolerance: float) -> Iterator[str]:
    """Compare what the search makes of the outcomes: objectives, errors, choices."""
    for event in events:
        if isinstance(event, TrialScored):
            trial = ledger.trials.get(event.key)
            told = None if trial is None else [trial.objective, trial.accuracy_error]
            if not _alike(told, [event.objective, event.error], tolerance):
                yield f"objective of trial {event.key[:12]} is not what its figures give"
        elif isinstance(event, StudyClosed):
            closed = ledger.studies[event.study].closed if event.study in ledger.studies else None
            for name in _unlike(closed, event, StudyClosed, tolerance):
                yield f"study {event.study}: {name} is not what the search comes to"


def _alike(told: Any, now: Any, tolerance: float) -> bool:
    """Return True if two plain values are equal, numbers up to a tolerance."""
    if isinstance(now, bool) or isinstance(told, bool) or now is None:
        return told is now
    if isinstance(now, int | float):
        return _close(told, now, tolerance if isinstance(now, float) else 0.0)
    if isinstance(now, Mapping):
        if not isinstance(told, Mapping) or {*map(str, told)} != {*map(str, now)}:
            return False
        return all(_alike(told[name], now[name], tolerance) for name in now)
    if isinstance(now, list | tuple):
        if not isinstance(told, list | tuple) or len(told) != len(now):
            return False
        return all(_alike(a, b, tolerance) for a, b in zip(told, now, strict=True))
    return bool(told == now)
