import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.own_process import OwnProcess
from tests.trainables.worker.bench_here import Place, fault_of, finish, notices
from trainables.common.files import code_files
from trainables.jobs import FaultKind, Report, Status
from trainables.stages import data_parallel

FREE_WITHIN = 30.0  # Seconds on a busy machine; alone it takes one.
BEGUN_WITHIN = 300.0  # Alone it takes five.
SLOW = {"lr": 0.02}  # At higher rates rounding grows to what depends on the processor.


def followers(parent: int) -> list[int]:
    """Return the processes that a process has started and that still run."""
    found = subprocess.run(
        ["ps", "-o", "pid=,stat=,args=", "--ppid", str(parent)], capture_output=True, text=True
    ).stdout
    rows = [line.split(None, 2) for line in found.splitlines()]
    return [int(pid) for pid, state, args in rows if "follower" in args and "Z" not in state]


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Report]:
    place = Place(tmp_path_factory.mktemp("calm"))
    return place, place.run(processes=2, cpus=2, protocol=SLOW)[-1]


@pytest.mark.full
def test_two_processes_leave_the_figures_of_one(calm, tmp_path):
    place, two = calm
    one = Place(tmp_path, place.data).run(protocol=SLOW)[-1]
    assert two.status == Status.FINISHED
    assert two.metrics == pytest.approx(one.metrics, abs=1e-5)
    assert followers(os.getpid()) == []


@pytest.mark.full
def test_killed_process_is_a_fault_of_the_machine_and_its_job_resumes(calm, tmp_path):
    place = Place(tmp_path, calm[0].data)
    worker = place.worker(every=0, processes=2, cpus=2, protocol=SLOW)
    worker.step()
    (follower,) = followers(os.getpid())
    os.kill(follower, signal.SIGKILL)
    kind, reason = fault_of(finish(worker)[-1])
    assert kind == FaultKind.MACHINE
    assert reason == "ChildProcessError: process 2 of 2 that train together ended by signal 9"
    assert followers(os.getpid()) == []
    found = finish(place.worker(every=0, processes=2, cpus=2, protocol=SLOW))
    assert "train of ce resumes after epoch 1 of 3" in notices(found)
    assert found[-1].metrics == calm[1].metrics


@pytest.mark.full
def test_stopped_worker_frees_its_processes(tmp_path):
    worker = Place(tmp_path).worker(processes=2)
    worker.step()
    assert len(followers(os.getpid())) == 1
    worker.close()
    assert followers(os.getpid()) == []


@pytest.mark.full
def test_processes_of_a_killed_worker_end(tmp_path):
    code = (
        "import sys, pathlib\n"
        "from tests.trainables.worker.bench_here import Place\n"
        "place = Place(pathlib.Path(sys.argv[1]))\n"
        "worker = place.worker(processes=2, protocol={'epochs': 10**6})\n"
        "worker.step(); pathlib.Path(sys.argv[2]).touch()\n"
        "while True: worker.step()\n"
    )
    begun = tmp_path / "begun"
    leader = OwnProcess(code, str(tmp_path), str(begun))
    try:
        assert within(BEGUN_WITHIN, begun.exists)
        (follower,) = followers(leader.pid)
    finally:
        os.kill(leader.pid, signal.SIGKILL)
        leader.code()
    assert within(FREE_WITHIN, lambda: not Path(f"/proc/{follower}").exists())


@pytest.mark.full
def test_error_of_another_process_is_the_reason(tmp_path):
    place = Place(tmp_path)
    worker = place.worker(processes=2, protocol={"lr": 1e30})
    kind, reason = fault_of(finish(worker)[-1])
    assert kind == FaultKind.CONFIGURATION
    assert "training loss became" in reason


def test_process_of_altered_code_trains_with_no_other(tmp_path, monkeypatch):
    began = {name: digest for name, digest in code_files().items() if name != "trainables/jobs.py"}
    monkeypatch.setattr(data_parallel, "code_files", lambda: began)
    worker = Place(tmp_path).worker(processes=2)
    told = "trainables/jobs.py has changed since the sweep began"
    assert fault_of(finish(worker)[-1]) == (FaultKind.CODE, told)
