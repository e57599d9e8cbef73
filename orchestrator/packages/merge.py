"""Merges packages of several machines into one."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from orchestrator.packages.derive import derive
from orchestrator.packages.frozen import write_package
from orchestrator.packages.package import (
    DERIVED,
    FROZEN,
    JOURNALS,
    MALFORMED,
    Package,
    header_of,
    opened,
)
from trainables.common.errors import InputError
from trainables.common.files import file_hash


def merge(paths: Sequence[Path], out: Path) -> list[Path]:
    """Merge packages into one and write it with ``write_package``; return the files.

    Their headers, data, code and versions must agree, so that one table can show all rows. Two
    sweeps must not have the same row, but a sweep that several packages have is included once.
    """
    if len(paths) < 2:
        raise InputError("merge needs two packages or more")
    with ExitStack() as stack:
        packages = [(path, stack.enter_context(opened(path))) for path in paths]
        try:
            for fault in _differences(packages):
                raise InputError(f"packages cannot be merged: {fault}")
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="calsweep-merge-")))
            joined = _joined([package for _, package in packages], folder)
            return write_package(joined, out, logits=True)
        except MALFORMED as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"a package is malformed: {type(error).__name__}: {error}") from error


def _joined(packages: Sequence[Package], folder: Path) -> Package:
    for package in packages:
        for name in package.files():
            target = folder / name
            if name not in (*DERIVED, *FROZEN) and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(package.folder / name, target)
    joined = Package(folder)
    derive(joined)
    return joined


def _differences(packages: Sequence[tuple[Path, Package]]) -> Iterator[str]:
    """Yield a line for each difference of packages, and each table row that two sweeps have."""
    first_path, first = packages[0]
    for path, package in packages[1:]:
        between = f"{first_path.name} and {path.name}"
        for name in header_of(""):
            ours, theirs = first.header.get(name), package.header.get(name)
            if ours != theirs:
                yield f"{name} of {between} differ: {ours!s:.60} and {theirs!s:.60}"
    known: dict[tuple[str, str], tuple[Any, str]] = {}
    for path, package in packages:
        for sort, name, value in _determinants(package):
            first, other = known.setdefault((sort, name), (value, path.name))
            if first != value:
                yield (
                    f"{sort} {name} of {other} and {path.name} differ: {first!s:.80} and "
                    f"{value!s:.80}"
                )


def _determinants(package: Package) -> Iterator[tuple[str, str, Any]]:
    """Yield facts that must be the same in all packages: kind, name and value."""
    for ledger in package.ledgers:
        yield "code", "revision", ledger.git_commit
        for library, number in (ledger.provenance.get("versions") or {}).items():
            yield "version", library, number
        for plugin in package.plugins([ledger]):
            yield "plugin", Path(plugin.path).stem, plugin.code
        journal = package.folder / JOURNALS / f"{ledger.sweep_id}.jsonl"
        yield "journal", ledger.sweep_id, file_hash(journal)
        for study in ledger.studies.values():
            for name in ("dataset", "split", "protocol"):
                yield name, study.task, study.origin.get(name)
            yield "data", study.task, study.fingerprint
            yield "model", study.task, study.model
            if study.row:
                yield "row", f"{study.recipe} on {study.task}", f"sweep {ledger.sweep_id}"
