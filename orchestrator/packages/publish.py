"""Packages made from the sweeps of a storage."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from orchestrator.logits.files import write_arrays, write_whole
from orchestrator.packages.derive import derive
from orchestrator.packages.package import (
    HEADER,
    JOURNALS,
    SPLITS,
    SUITES,
    TEST,
    VALIDATION,
    Package,
    header_of,
)
from orchestrator.packages.site import write_site
from orchestrator.packages.stored import StoredSweep
from orchestrator.storage.events import (
    TEST_PREFIX,
    Evaluated,
    Event,
    SweepStarted,
    TrialFinished,
    TrialPlaced,
    to_line,
)
from orchestrator.storage.journal import iterate_events
from orchestrator.storage.ledger import Ledger, Trial
from orchestrator.storage.results import cells_of
from orchestrator.storage.storage import Storage
from orchestrator.sweep.spec import without_places
from trainables.common.errors import InputError
from trainables.data import PreparedData
from trainables.metrics import METRICS

ENDED = ("finished", "failed")
NO_LICENSE = "no license is stated"
RECOMPUTED = frozenset(
    f"{TEST_PREFIX}{found.name}" for found in METRICS.values() if found.source in ("report", "test")
)


def publish(
    root: Storage,
    sweeps: Sequence[str],
    site: Path,
    license: str = NO_LICENSE,
    done: Callable[[int, int], None] = lambda count, total: None,
) -> list[Path]:
    """Write a package of sweeps that have ended, and its page, into a folder; return the files.

    Only what stored predictions give anew is in it: figures of plugins' metrics are left out.

    Raises:
        InputError: If a sweep is not there, has not ended, or lacks predictions or data, or the
            folder cannot be written.
    """
    with TemporaryDirectory(prefix="calsweep-publish-") as folder:
        package = Package(Path(folder))
        for part in (JOURNALS, TEST, VALIDATION, SPLITS, SUITES):
            (package.folder / part).mkdir()
        for name in dict.fromkeys(sweeps):
            _write_sweep(root, name, package, done)
        header = json.dumps(header_of(license), indent=1) + "\n"
        (package.folder / HEADER).write_text(header, encoding="utf-8")
        derive(package)
        return write_site(package, site)


def _write_sweep(
    root: Storage, name: str, package: Package, done: Callable[[int, int], None]
) -> None:
    stored, path = StoredSweep.open(root, name), root.sweep(name).journal
    ledger = Ledger(iterate_events(path))
    if ledger.status not in ENDED:
        raise InputError(
            f"sweep {name!r} has not ended, and a package tells of all it did; resume it with "
            f"`calsweep run --resume {name}`"
        )
    cells = cells_of(ledger)
    if not cells:
        raise InputError(f"sweep {name!r} has no figure on test data, so nothing to publish")
    lines = b"".join(journal_lines(path))
    journal = package.folder / JOURNALS / f"{ledger.sweep_id}.jsonl"
    write_whole(journal, lambda stream: stream.write(lines))
    for count, (study, trial) in enumerate(cells, start=1):
        stored.tested(study, trial).save(package.folder / TEST / f"{trial.key}.npz")
        if beside := stored.suites(study, trial):
            arrays = {name: value.numpy() for name, value in sorted(beside.items())}
            write_arrays(package.folder / SUITES / f"{trial.key}.npz", arrays)
        done(count, len(cells))
    for artifact, trial in artifacts_of(ledger).items():
        found = stored.validated(ledger.studies[trial.study], trial)
        found.save(package.folder / VALIDATION / f"{artifact}.npz")
    for data in stored.data.values():
        write_arrays(package.folder / SPLITS / f"{data.key}.npz", split_of(data))


def artifacts_of(ledger: Ledger) -> dict[str, Trial]:
    """Return the finished trials of a sweep by their artifacts; equal configurations share one."""
    return {trial.artifact: trial for trial in ledger.trials.values() if trial.artifact}


def split_of(data: PreparedData) -> dict[str, np.ndarray]:
    """Return the row numbers of each part of prepared data, (N,), int64."""
    own = {part: data.search_numbers(part) for part in ("train", "validation")}
    return {**own, "test": data.test_numbers()}


def journal_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines that a journal has in a package; those of a package's journal are its own."""
    return map(to_line, _cleaned(iterate_events(path)))


def _cleaned(events: Iterator[Event]) -> Iterator[Event]:
    """Yield what a journal says without places, machines, and figures that cannot be recomputed."""
    for event in events:
        if isinstance(event, SweepStarted):
            yield replace(event, spec=without_places(event.spec))
        elif isinstance(event, TrialFinished):
            yield replace(event, host=None, traceback=None)
        elif isinstance(event, Evaluated):
            kept = {k: v for k, v in event.metrics.items() if k in RECOMPUTED or "/" in k}
            yield replace(event, metrics=kept, artifacts={}, default_predictions=None)
        elif not isinstance(event, TrialPlaced):
            yield event
