"""Keeps this process, once sealed, from opening files that hold test data."""

import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

# Child processes that import this package are sealed as well: workers of a data loader, for one.
INHERITED = "CALSWEEP_SEALED_TEST_DATA"
DESCRIPTORS = "/proc/self/fd"


class TestDataSealedError(RuntimeError):
    """Test data was asked for in a process that has given up its right to it."""

    __test__ = False


def _identity(path: str | int) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size


def _below(path: str, roots: Iterable[str]) -> bool:
    try:
        real = os.path.realpath(path)
    except (OSError, ValueError):
        return False
    return any(real == root or real.startswith(root + os.sep) for root in roots)


def _spellings(path: str, is_os_open: bool) -> list[str]:
    """Return the paths that ``path`` may mean; ``os.open`` hides which directory it starts from."""
    if not is_os_open or os.path.isabs(path) or not os.path.isdir(DESCRIPTORS):
        return [path]
    return [path, *(f"{DESCRIPTORS}/{number}/{path}" for number in os.listdir(DESCRIPTORS))]


def _make_guard() -> tuple[
    Callable[[Iterable[str]], None],
    Callable[[], bool],
    Callable[[], AbstractContextManager[None]],
]:
    """Return what seals, tells and seals for a while; what they share is out of reach."""
    roots: set[str] = set()
    # Renamed files and hard links have another path but the same identity.
    identities: set[tuple[int, int, int] | None] = set()
    active = hooked = False

    def is_test_data(target: Any, is_os_open: bool) -> bool:
        if isinstance(target, int):
            return _identity(target) in identities
        try:
            path = os.fsdecode(target)
        except TypeError:
            return False
        return any(
            _identity(spelling) in identities or _below(spelling, roots)
            for spelling in _spellings(path, is_os_open)
        )

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if active and event == "open" and is_test_data(arguments[0], arguments[1] is None):
            raise TestDataSealedError(f"{arguments[0]!r} holds test data, sealed in this process")

    def seal(paths: Iterable[str]) -> None:
        nonlocal active, hooked
        active = True
        if not hooked:
            hooked = True
            sys.addaudithook(refuse)
        for path in paths:
            real = os.path.realpath(path)
            identities.add(_identity(real))
            for folder, _, names in os.walk(real):
                identities.update(_identity(os.path.join(folder, name)) for name in names)
            identities.discard(None)
            roots.add(real)
        os.environ[INHERITED] = os.pathsep.join(sorted(roots))

    @contextmanager
    def within() -> Iterator[None]:
        """Seal this process within the block; one that was sealed before stays so."""
        nonlocal active
        before = active, set(roots), set(identities), os.environ.get(INHERITED)
        seal(())
        try:
            yield
        finally:
            active, found, known, inherited = before
            roots.intersection_update(found)
            identities.intersection_update(known)
            os.environ.pop(INHERITED)
            if inherited is not None:
                os.environ[INHERITED] = inherited

    return seal, lambda: active, within


_seal, is_sealed, sealed_within = _make_guard()
_handed_out: list[weakref.ref[np.ndarray]] = []


def hand_out(arrays: Iterable[np.ndarray]) -> None:
    """Remember arrays that hold test data: sealing makes sure that they are gone."""
    _handed_out[:] = [reference for reference in _handed_out if reference() is not None]
    _handed_out.extend(map(weakref.ref, arrays))


def require_unsealed(what: str) -> None:
    """Raise ``TestDataSealedError`` if this process is sealed."""
    if is_sealed():
        raise TestDataSealedError(f"{what} gives test data, which is sealed in this process")


def seal_paths(paths: Iterable[str]) -> None:
    """Refuse, from now on and for good, to open ``paths``; arrays of theirs still held are told."""
    _seal(paths)
    gc.collect()
    held = sum(reference() is not None for reference in _handed_out)
    if held:
        raise TestDataSealedError(
            f"{held} arrays of test data, read before the seal, are still held by this process"
        )


def inherit_seal() -> None:
    """Seal this process if the one that started it was sealed."""
    inherited = os.environ.get(INHERITED)
    if inherited is not None and not is_sealed():
        _seal(filter(None, inherited.split(os.pathsep)))
