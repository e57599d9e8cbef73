from typing import Any

import pytest

from trainables.jobs import (
    PROCESS_ENDED,
    Cost,
    Fault,
    FaultKind,
    FitWork,
    Job,
    Report,
    Status,
    lost,
    next_attempt,
)

WORK = FitWork(data="", calibrators={}, metrics=())


def job(**changes: Any) -> Job:
    return Job(key="k", group="g", number=0, work=WORK, **changes)


def failed(kind: FaultKind, node: str = "") -> Report:
    return Report(status=Status.FAILED, fault=Fault(kind, "x"), node=node)


def test_machine_fault_is_tried_again_elsewhere_so_often():
    tries = [job()]
    for node in ("a", "", "b"):
        again = next_attempt(tries[-1], failed(FaultKind.MACHINE, node), 3)
        tries.append(again)
    assert [(one.attempt, one.failures) for one in tries] == [(n, n) for n in range(4)]
    assert tries[-1].avoided == {"a", "b"}
    assert not tries[-1].alone
    assert next_attempt(tries[-1], failed(FaultKind.MACHINE), 3) is None
    assert next_attempt(job(), failed(FaultKind.MACHINE), 0) is None


def test_share_of_a_gpu_that_is_too_small_becomes_a_whole_one_once():
    again = next_attempt(job(gpus=0.25), failed(FaultKind.MEMORY), 0)
    assert (again.gpus, again.attempt, again.failures, again.alone) == (1.0, 1, 0, True)
    assert next_attempt(again, failed(FaultKind.MEMORY), 3) is None
    broken = next_attempt(again, failed(FaultKind.MACHINE, "a"), 1)
    assert (broken.gpus, broken.alone, broken.failures) == (1.0, True, 1)


@pytest.mark.parametrize("gpus", [0.0, 1.0])
@pytest.mark.parametrize("kind", [FaultKind.MEMORY, FaultKind.CONFIGURATION])
def test_faults_of_memory_or_configuration_are_not_retried(gpus, kind):
    assert next_attempt(job(gpus=gpus), failed(kind), 3) is None
    assert next_attempt(job(), Report(status=Status.FINISHED), 3) is None


def test_lost_job_keeps_its_cost_and_is_the_machines_fault():
    last = Report(status=Status.RUNNING, metrics={"val_ece": 1.0}, cost=Cost(2.5))
    expected = Report(
        status=Status.FAILED, fault=Fault(FaultKind.MACHINE, PROCESS_ENDED), cost=Cost(2.5)
    )
    assert (lost(last), lost().cost) == (expected, Cost())


@pytest.mark.parametrize("status", Status)
def test_finished_pruned_and_failed_reports_have_ended(status):
    ends = {Status.FINISHED, Status.PRUNED, Status.FAILED}
    assert Report(status=status).ended == (status in ends)
