"""Publishes sweeps of a storage as a package."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from shutil import copyfile
from tempfile import TemporaryDirectory

import numpy as np

from orchestrator.logits.files import write_arrays, write_whole
from orchestrator.packages.derive import derive
from orchestrator.packages.frozen import write_package
from orchestrator.packages.journals import cleaned, settled
from orchestrator.packages.package import (
    HEADER,
    JOURNALS,
    MEMBER,
    PLUGINS,
    SPLITS,
    SUITES,
    TEST,
    VALIDATION,
    Package,
    header_of,
)
from orchestrator.packages.stored import StoredSweep
from orchestrator.replay.simulate import search_again
from orchestrator.storage.events import to_line
from orchestrator.storage.journal import iterate_events
from orchestrator.storage.ledger import Study, Trial
from orchestrator.storage.results import cells_of
from orchestrator.storage.storage import Storage
from orchestrator.sweep.plan import make_plan
from trainables.common.errors import InputError, printable
from trainables.common.files import is_inside
from trainables.common.paths import sweep_command
from trainables.common.stages import ArtifactRef
from trainables.data import PreparedData
from trainables.stages import ValidationRows

ENDED = ("finished", "failed")
NO_LICENSE = "no license is stated"


def publish(
    root: Storage,
    sweeps: Sequence[str],
    out: Path,
    license: str = NO_LICENSE,
    done: Callable[[int, int], None] = lambda count, total: None,
    logits: bool = False,
) -> list[Path]:
    """Write a package of ended sweeps, and its page; return the files.

    The package has only figures that can be recomputed from stored predictions. See
    ``write_package`` for ``out`` and ``logits``.
    """
    if printable(license) != license or "\n" in license:
        raise InputError(f"--license: {license!r} is not one printable line; use a name or a URL")
    with TemporaryDirectory(prefix="calsweep-publish-") as folder:
        package = Package(Path(folder))
        for part in (JOURNALS, TEST, VALIDATION, SPLITS, SUITES):
            (package.folder / part).mkdir()
        for name in dict.fromkeys(sweeps):
            _write_sweep(root, name, package, done)
        header = json.dumps(header_of(license), indent=1) + "\n"
        (package.folder / HEADER).write_text(header, encoding="utf-8")
        derive(package)
        return write_package(package, out, logits)


def _write_sweep(
    root: Storage, name: str, package: Package, done: Callable[[int, int], None]
) -> None:
    stored, path = StoredSweep.open(root, name), root.sweep(name).journal
    ledger = stored.ledger
    if ledger.status not in ENDED:
        raise InputError(
            f"sweep {name!r} has not ended, and a package needs all of it; resume it with "
            f"`{sweep_command('run --resume', root.sweep(name).path)}`"
        )
    cells = cells_of(ledger)
    if not cells:
        raise InputError(f"sweep {name!r} has no test figure to publish")
    events = filter(None, map(cleaned, iterate_events(path)))
    lines = b"".join(map(to_line, settled(events)))
    journal = package.folder / JOURNALS / f"{ledger.sweep_id}.jsonl"
    write_whole(journal, lambda stream: stream.write(lines))
    for plugin in stored.spec.plugins:
        _copy_plugin(root.plugins / plugin.code, package.folder)
    for count, (study, trial) in enumerate(cells, start=1):
        stored.tested(study, trial).save(package.folder / TEST / f"{trial.key}.npz")
        if suites := stored.suites(study, trial):
            arrays = {name: value.numpy() for name, value in sorted(suites.items())}
            write_arrays(package.folder / SUITES / f"{trial.key}.npz", arrays)
        done(count, len(cells))
    for study, trial in _with_rows(stored):
        stored.validated(study, trial).save(package.folder / VALIDATION / f"{trial.artifact}.npz")
    for data in stored.data.values():
        write_arrays(package.folder / SPLITS / f"{data.key}.npz", split_of(data))


def _copy_plugin(kept: Path, folder: Path) -> None:
    """Copy the stored files of a plugin into a package."""
    if not kept.is_dir():
        raise InputError(f"the storage's copy of a plugin, {kept}, is gone; run the sweep again")
    for path in sorted(kept.rglob("*")):
        name = (PurePosixPath(PLUGINS) / kept.name / path.relative_to(kept)).as_posix()
        if path.is_file() and "__pycache__" not in path.parts:
            if not is_inside(path, kept):
                raise InputError(f"{path} links to a file outside the plugin, which may be private")
            if not MEMBER.fullmatch(name):
                raise InputError(
                    f"plugin file {str(path.relative_to(kept))!r}: rename it, or its folder; names "
                    "begin with a letter, a digit or _ and have only letters, digits and ._-"
                )
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            copyfile(path, folder / name)


def split_of(data: PreparedData) -> dict[str, np.ndarray]:
    """Return the row numbers (int64) of each part of prepared data."""
    own = {part: data.search_numbers(part) for part in ("train", "validation")}
    return {**own, "test": data.test_numbers()}


def _with_rows(stored: StoredSweep) -> Iterator[tuple[Study, Trial]]:
    """Yield the trials whose validation rows go into the package.

    Raise ``InputError`` if the storage lacks rows that were compared to choose a configuration.
    Other rows may have been removed by `calsweep storage gc`; `package verify` then computes their
    trials again.
    """
    ledger = stored.ledger
    finished = {trial.artifact: trial for trial in ledger.trials.values() if trial.artifact}
    compared: set[str] = set()

    def rows(ref: ArtifactRef) -> ValidationRows:
        trial = finished[ref.key]
        compared.add(ref.key)
        if stored.store.find(ref, whole=False) is None:
            raise InputError(
                f"trial {trial.key[:12]} of {trial.study}: its validation rows are gone, but the "
                f"choice compared them; run the sweep again under another name and publish that"
            )
        found = stored.validated(ledger.studies[trial.study], trial)
        return ValidationRows(found.logits, found.labels, None)

    search_again(make_plan(stored.spec), ledger, stored.data, rows)
    for key, trial in finished.items():
        if (
            key in compared
            or stored.store.find(ArtifactRef(trial.stage, key), whole=False) is not None
        ):
            yield ledger.studies[trial.study], trial
