"""Wherever a sweep or a calibration is interrupted, it resumes and ends as the undisturbed one."""

from __future__ import annotations

import gc
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from tests.crash.points import fault, read, restore, states, whole
from tests.crash.recording import record
from tests.crash.safeguards import REMOVED, without
from tests.crash.workloads import WORKLOADS, quick

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]
SAMPLE = {"sweep": 25, "calibration": 40}
DRAWS = {"sweep": 30, "calibration": 30}  # For about 10,000 states.
MOST = 1_000  # States within which a missing safeguard is found.


@pytest.fixture(scope="module")
def top() -> Iterator[Path]:
    """Return the one place of all runs: a sweep file names its storage."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        with quick():
            yield Path(folder) / "top"
        torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def recorded(top: Path) -> Callable[..., list[str]]:
    """Return what records a workload, from nothing to its end."""

    @cache
    def calls(workload: str, removed: str = "") -> list[str]:
        restore({}, top)
        command = [sys.executable, "-m", "tests.crash.workloads", workload, str(top), removed]
        return record(command, top.with_name("calls"))

    return calls


@pytest.fixture(scope="module")
def undisturbed(top: Path) -> Callable[[str], list[Any]]:
    """Return what a workload ends with when nothing interrupts it."""

    @cache
    def result(workload: str) -> list[Any]:
        restore({}, top)
        found = WORKLOADS[workload](top)
        gc.freeze()  # Sealing test data collects garbage; of what is imported there is none.
        return found

    return result


@pytest.mark.parametrize("workload", WORKLOADS)
def test_replay_leaves_the_same_files(workload: str, recorded: Any, top: Path) -> None:
    calls = recorded(workload)
    assert whole(calls, top) == read(top)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_crash_points_of_a_sample_recover(
    workload: str, recorded: Any, undisturbed: Any, top: Path
) -> None:
    found = list(states(recorded(workload), top, draws=3))
    check(workload, Random(0).sample(found, SAMPLE[workload]), undisturbed, top)


@pytest.mark.long
@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_crash_point_recovers(
    workload: str, recorded: Any, undisturbed: Any, top: Path
) -> None:
    found = states(recorded(workload), top, DRAWS[workload])
    print(f"{workload}: {check(workload, found, undisturbed, top)} states")  # noqa: T201


def check(workload: str, found: Any, undisturbed: Any, top: Path) -> int:
    expected, count, wrong = undisturbed(workload), 0, {}
    for name, tree, journal in found:
        count += 1
        if told := fault(workload, tree, journal, top, expected):
            wrong[name] = told
    assert wrong == {}
    return count


@pytest.mark.long
@pytest.mark.parametrize("removed", REMOVED)
def test_missing_safeguard_is_found(
    removed: str, recorded: Any, undisturbed: Any, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {workload: undisturbed(workload) for workload in WORKLOADS}
    function, code = without(removed)
    for workload in reversed(WORKLOADS):
        calls = recorded(workload, removed)
        found = list(states(calls, top, draws=10))
        with monkeypatch.context() as patch:
            patch.setattr(function, "__code__", code)
            for name, tree, journal in Random(0).sample(found, min(MOST, len(found))):
                if fault(workload, tree, journal, top, expected[workload]):
                    print(f"{removed}: {workload}, {name}")  # noqa: T201
                    return
    pytest.fail(f"nothing finds: {removed}")
