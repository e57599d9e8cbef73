from __future__ import annotations

import gc
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from tests.crash.points import Recording, State, fault, read, restore, states, whole
from tests.crash.recording import Recorder
from tests.crash.safeguards import REMOVED, without
from tests.crash.workloads import WORKLOADS, quick

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]
SAMPLE = {"calibration": 40, "outcome": 40, "sweep": 12, "night": 8}
# For over 10,000 states.
DRAWS = {"calibration": 30, "outcome": 30, "sweep": 15, "night": 10}
PARTS = 20  # Of all states; each can be run alone.
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
def recorded(top: Path) -> Iterator[Callable[..., Recording]]:
    """Yield what records a workload, from its beginning to its end."""
    program = [sys.executable, "-m", "tests.crash.workloads"]
    recorder = Recorder(program, top.with_name("calls"))

    @cache
    def calls(workload: str, removed: str = "") -> Recording:
        restore({}, top)
        return Recording(recorder.record(f"{workload}\t{top}\t{removed}"), top)

    yield calls
    recorder.close()


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
    recording = recorded(workload)
    assert whole(recording) == read(top)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_crash_points_of_a_sample_recover(workload, recorded, undisturbed, top):
    found = list(states(recorded(workload), draws=3))
    check(workload, Random(0).sample(found, SAMPLE[workload]), undisturbed, top)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_crash_point_recovers(workload, part, recorded, undisturbed, top):
    found = islice(states(recorded(workload), DRAWS[workload]), part, None, PARTS)
    print(f"{workload}, {part}: {check(workload, found, undisturbed, top)} states")  # noqa: T201


def check(workload: str, found: Iterable[State], undisturbed: Any, top: Path) -> int:
    expected, count, wrong = undisturbed(workload), 0, {}
    for state in found:
        count += 1
        if told := fault(workload, state, top, expected):
            wrong[state[0]] = told
    assert wrong == {}
    return count


@pytest.mark.long
@pytest.mark.parametrize("removed", REMOVED)
def test_missing_safeguard_is_found(removed, recorded, undisturbed, top, monkeypatch):
    workload = REMOVED[removed].workload
    expected = undisturbed(workload)
    found = list(states(recorded(workload, removed), draws=10))
    Random(0).shuffle(found)
    # Of what is missing, a cut has least.
    found.sort(key=lambda state: not state[0].endswith("cut"))
    function, code = without(removed)
    monkeypatch.setattr(function, "__code__", code)
    for count, state in enumerate(found[:MOST], start=1):
        if told := fault(workload, state, top, expected):
            print(f"{removed}: {workload}, state {count}, {state[0]}: {told}")  # noqa: T201
            return
    pytest.fail(f"nothing finds: {removed}")
