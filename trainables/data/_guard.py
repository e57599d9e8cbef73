"""Keeps a sealed process from opening files with test data."""

import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

# Environment variable with the sealed paths. It seals child processes that import this package.
INHERITED = "CALSWEEP_SEALED_TEST_DATA"
DESCRIPTORS = "/proc/self/fd"


class TestDataSealedError(RuntimeError):
    """A sealed process tried to read test data."""

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
    """Return the paths that ``path`` may mean; ``os.open`` may be relative to any descriptor."""
    if not is_os_open or os.path.isabs(path) or not os.path.isdir(DESCRIPTORS):
        return [path]
    return [path, *(f"{DESCRIPTORS}/{number}/{path}" for number in os.listdir(DESCRIPTORS))]


def _make_guard() -> tuple[
    Callable[[Iterable[str]], None], Callable[[], bool], Callable[[], AbstractContextManager[None]]
]:
    """Return functions that seal, check the seal, and seal within a block.

    Their state is local here, so that no other code can change it.
    """
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
            raise TestDataSealedError(
                f"{arguments[0]!r} is test data, which is sealed in this process"
            )

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
        """Seal this process within the block; a process sealed before stays sealed."""
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
    """Remember arrays of test data; ``seal_paths`` raises while one of them is alive."""
    _handed_out[:] = [reference for reference in _handed_out if reference() is not None]
    _handed_out.extend(map(weakref.ref, arrays))


def require_unsealed(name: str) -> None:
    """Raise ``TestDataSealedError`` if this process is sealed; ``name`` names the caller."""
    if is_sealed():
        raise TestDataSealedError(f"{name} needs test data, which is sealed in this process")


def seal_paths(paths: Iterable[str]) -> None:
    """Seal ``paths`` for the rest of this process; raise if arrays of test data are still alive."""
    _seal(paths)
    gc.collect()
    held = sum(reference() is not None for reference in _handed_out)
    if held:
        raise TestDataSealedError(
            f"this process still has {held} arrays of test data that were read before the seal"
        )


def inherit_seal() -> None:
    """Seal this process if the one that started it was sealed."""
    inherited = os.environ.get(INHERITED)
    if inherited is not None and not is_sealed():
        _seal(filter(None, inherited.split(os.pathsep)))
