from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import loop as loop_module
from orchestrator.loop import Loop, Pause, Source
from orchestrator.storage.events import Epoch, Event
from orchestrator.storage.machines import Machines
from orchestrator.storage.storage import Storage
from trainables.common.errors import InputError, StorageError
from trainables.jobs import EpochMetrics, Fault, FaultKind, FitWork, Job, Report, Status

WORK = FitWork(data="", calibrators={}, metrics=())
DONE = Report(status=Status.FINISHED, artifact="a")
GOES_ON = Report(status=Status.RUNNING)


def job(key: str = "one", **changes: Any) -> Job:
    return Job(key=key, group="study", number=0, work=WORK, **changes)


def failed(kind: FaultKind, reason: str = "x", **where: Any) -> Report:
    return Report(status=Status.FAILED, fault=Fault(kind, reason), **where)


class Given(Source):
    """Gives out what it is told to."""

    sizes = ((1.0, 0.0),)

    def __init__(self, *given: Job | Pause) -> None:
        self.given, self.ends = list(given), list[tuple[str, Report]]()

    def next(self) -> Job | Pause:
        return self.given.pop(0) if self.given else Pause.DONE

    def ended(self, job: Job, report: Report) -> None:
        self.ends.append((job.key, report))


def looped(*given: Job | Pause, most: int = 2, **more: Any) -> tuple[Loop, Given, list[Event]]:
    source, events = Given(*given), list[Event]()
    return Loop(source, events.append, most, **more), source, events


def test_a_loop_is_done_when_every_job_has_ended() -> None:
    loop, source, _ = looped(one := job(), two := job("two"))
    assert [loop.next(), loop.next(), loop.next()] == [one, two, Pause.WAIT]
    loop.take(two, DONE)
    assert loop.next() is Pause.WAIT
    loop.take(one, DONE)
    assert loop.next() is Pause.DONE
    assert source.ends == [("two", DONE), ("one", DONE)]


def test_waiting_for_nothing_is_an_error() -> None:
    loop, _, _ = looped(Pause.WAIT)
    with pytest.raises(AssertionError, match="waits for a job nobody computes"):
        loop.next()


def test_epochs_and_notices_are_passed_on() -> None:
    said, changes = list[str](), list[None]()
    loop, source, events = looped(job(), say=said.append, changed=lambda: changes.append(None))
    one = loop.next()
    assert isinstance(one, Job)
    for step in (1, 2):
        epochs = (EpochMetrics(step, {"val_ece": 1 / step}),)
        loop.take(one, replace(GOES_ON, history=epochs, notices=(f"notice {step}",)))
    assert [(e.key, e.step, e.metrics) for e in events if isinstance(e, Epoch)] == [
        ("one", 1, {"val_ece": 1.0}),
        ("one", 2, {"val_ece": 0.5}),
    ]
    assert (said, len(changes), source.ends) == (["notice 1", "notice 2"], 2, [])


def test_machine_fault_is_tried_again_elsewhere() -> None:
    loop, source, _ = looped(job(), most=2)
    fault = failed(FaultKind.MACHINE, node="bad")
    tries = []
    for _ in range(3):
        one = loop.next()
        assert isinstance(one, Job)
        tries.append((one.attempt, one.avoided))
        loop.take(one, fault)
    bad = frozenset(["bad"])
    assert tries == [(0, frozenset()), (1, bad), (2, bad)]
    assert source.ends == [("one", fault)]
    assert loop.next() is Pause.DONE


def test_a_retried_job_comes_before_new_jobs() -> None:
    loop, _, _ = looped(first := job(), job("two"))
    loop.next()
    loop.take(first, failed(FaultKind.MACHINE))
    again = loop.next()
    assert isinstance(again, Job)
    assert (again.key, again.attempt) == ("one", 1)


@pytest.mark.parametrize("late", [DONE, failed(FaultKind.MACHINE), GOES_ON])
def test_report_of_an_earlier_attempt_adds_nothing(late: Report) -> None:
    loop, source, events = looped(first := job())
    loop.next()
    loop.take(first, failed(FaultKind.MACHINE))
    second = loop.next()
    assert isinstance(second, Job)
    loop.take(first, replace(late, history=(EpochMetrics(1, {}),)))
    assert (source.ends, events) == ([], [])
    loop.take(second, DONE)
    loop.take(second, DONE)
    assert source.ends == [("one", DONE)]


def test_storage_fault_ends_everything_and_no_job() -> None:
    loop, source, _ = looped(one := job())
    loop.next()
    with pytest.raises(StorageError, match="no space left"):
        loop.take(one, failed(FaultKind.STORAGE, "cannot write artifact a: no space left"))
    assert source.ends == []


def test_known_outcomes_need_no_worker() -> None:
    known = Report(status=Status.FINISHED, history=(EpochMetrics(1, {}),))
    loop, source, events = looped(
        job(), job("two"), job("three"), answer=lambda one: known if one.key != "two" else None
    )
    two = loop.next()
    assert isinstance(two, Job)
    assert (two.key, source.ends) == ("two", [("one", known)])
    assert loop.next() is Pause.WAIT
    assert [key for key, _ in source.ends] == ["one", "three"]
    assert len(events) == 2


def test_stored_outcomes_do_not_delay_running_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    clock = SimpleNamespace(monotonic=lambda: 0.3 * next(ticks))
    monkeypatch.setattr(loop_module, "time", clock)
    jobs = [job(str(number)) for number in range(6)]
    loop, source, _ = looped(*jobs, answer=lambda one: None if one.key == "0" else DONE)
    first = loop.next()
    assert isinstance(first, Job)
    assert loop.next() is Pause.WAIT
    assert [key for key, _ in source.ends] == ["1", "2"]  # More than half a second is gone.
    loop.take(first, DONE)
    assert loop.next() is Pause.DONE  # Nothing runs that could be held up.
    assert len(source.ends) == 6


def broken(node: str, key: str = "x") -> Report:
    return failed(FaultKind.MACHINE, f"OSError: {key}", node=node, host=f"host-of-{node}")


def test_machine_that_fails_three_in_a_row_is_left_out(tmp_path: Path) -> None:
    said, storage = list[str](), Storage(tmp_path)
    jobs = [job(str(number)) for number in range(6)]
    loop, _, _ = looped(*jobs, most=9, machines=Machines(storage, said.append))
    taken = [loop.next() for _ in jobs]
    assert all(isinstance(each, Job) and not each.avoided for each in taken)
    loop.take(jobs[0], replace(DONE, node="good"))
    loop.take(jobs[1], broken("bad"))
    loop.take(jobs[2], broken("bad"))
    loop.take(jobs[3], replace(DONE, node="bad"))  # The row is over.
    for again in (loop.next(), loop.next()):
        assert isinstance(again, Job)
        loop.take(again, broken("bad"))
    assert said == []
    loop.take(jobs[4], broken("bad", "last"))
    assert said == [
        "host-of-bad is excluded: 3 trials in a row failed there, the last with OSError: last; "
        "run `calsweep doctor --storage STORAGE` there to include it again"
    ]
    again = loop.next()
    assert isinstance(again, Job)
    assert again.avoided >= {"bad"}
    later = Machines(storage)
    assert later.left_out() == {"host-of-bad"}
    assert storage.take_machine_back("host-of-bad")
    assert not storage.take_machine_back("host-of-bad")
    assert Machines(storage).left_out() == frozenset()
    loop.machines._looked = float("-inf")
    assert loop.machines.left_out() == frozenset()


def test_only_machine_is_not_left_out() -> None:
    jobs = [job(str(number)) for number in range(4)]
    loop, _, _ = looped(*jobs, most=9)
    for each in jobs:
        loop.next()
        loop.take(each, broken("only"))
    assert loop.machines.left_out() == frozenset()


def test_a_sweep_stops_if_its_first_trials_fail_in_the_same_way() -> None:
    jobs = [job(str(number)) for number in range(8)]
    loop, source, _ = looped(*jobs)
    reasons = ["ValueError: row 1", "ValueError: row 22", "KeyError: a", "", "ValueError: row 3"]
    for each, reason in zip(jobs, [*reasons, "ValueError: row 4"], strict=False):
        loop.next()
        loop.take(each, failed(FaultKind.CONFIGURATION, reason) if reason else DONE)
    loop.next()
    with pytest.raises(InputError) as stop:
        loop.take(jobs[6], failed(FaultKind.CONFIGURATION, "ValueError: row 5"))
    assert str(stop.value) == (
        "5 of the first 7 trials failed with the same error, so no more trials are "
        "started: ValueError: row 1"
    )
    assert len(source.ends) == 7  # What ended is written down all the same.


def test_late_failures_stop_nothing() -> None:
    jobs = [job(str(number)) for number in range(20)]
    loop, source, _ = looped(*jobs)
    for number, each in enumerate(jobs):
        loop.next()
        loop.take(each, DONE if number < 4 else failed(FaultKind.CONFIGURATION, "ValueError: x"))
    assert len(source.ends) == 20


def test_gpu_is_left_out_alone_unless_its_node_fails_on_others_too(tmp_path: Path) -> None:
    storage, jobs = Storage(tmp_path), [job(str(number)) for number in range(10)]
    loop, _, _ = looped(*jobs, most=9, machines=Machines(storage))
    for _ in jobs:
        loop.next()
    loop.take(jobs[0], replace(DONE, node="n", gpu="0"))
    for each in jobs[1:3]:
        loop.take(each, replace(broken("n"), gpu="1"))
    loop.take(jobs[3], replace(DONE, node="n", gpu="0"))  # Another GPU's success ends no row.
    assert loop.machines.gpus_left_out() == frozenset()
    loop.take(jobs[4], replace(broken("n"), gpu="1"))
    assert loop.machines.gpus_left_out() == {("n", "1"), ("host-of-n", "1")}
    assert loop.machines.left_out() == frozenset()
    for each, gpu in zip(jobs[5:8], "232", strict=True):
        loop.take(each, replace(broken("n"), gpu=gpu))
    assert loop.machines.left_out() == frozenset(), "there is no other node"
    loop.take(jobs[8], replace(DONE, node="other", gpu="0"))
    loop.take(jobs[9], replace(broken("n"), gpu="0"))
    assert loop.machines.left_out() == {"n", "host-of-n"}
    assert Machines(storage).gpus_left_out() == {("host-of-n", "1")}
    assert storage.take_machine_back("host-of-n")
    assert Machines(storage).gpus_left_out() == Machines(storage).left_out() == frozenset()
