"""Evaluations that a machine fails are started again, those of a configuration are final."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from orchestrator.running.evaluate import Evaluation, evaluate_all
from orchestrator.sweep.spec import parse_sweep
from trainables.common.errors import InputError
from trainables.store.artifacts import ArtifactStore

MEMORY = torch.OutOfMemoryError("CUDA out of memory")
LAUNCH = torch.AcceleratorError("CUDA error: unspecified launch failure")


class OneNode:
    """In Ray's place: runs a task where it is waited for; notes its share of a GPU.

    A task raises what ``errors`` holds, one after the other, wrapped as Ray does it.
    """

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.shares: list[float] = []
        self.jobs: list[Any] = []

    def remote(self, num_cpus: float, num_gpus: float) -> Callable[..., Any]:
        def start(storage: str, folder: str, job: Any, gpus: float, deterministic: bool) -> int:
            assert (gpus, deterministic) == (num_gpus, False)
            self.shares.append(gpus)
            self.jobs.append(job)
            return len(self.jobs) - 1

        return lambda function: SimpleNamespace(remote=start)

    def wait(self, tasks: list[int]) -> tuple[list[int], list[int]]:
        return tasks[:1], tasks[1:]

    def get(self, task: int) -> Any:
        if self.errors:
            error = self.errors.pop(0)
            wrapped = type(error)(f"worker's traceback: {error}")
            wrapped.cause = error  # type: ignore[attr-defined]
            raise wrapped
        return self.jobs[task]


def measured(ray: OneNode, folder: Path, gpu: float = 0.0) -> list[Any]:
    spec = parse_sweep(
        "name: e\ntasks: [{dataset: digits, model: convnet, protocol: digits}]\nrecipes: [ce]\n"
        f"storage: {folder}\nresources: {{max_failures: 2, train: {{gpu: {gpu}}}}}\n",
        "e",
    )
    jobs = [Evaluation(None, "task", name) for name in ("ce", "ls")]  # type: ignore[arg-type]
    found: list[Any] = []
    evaluate_all(jobs, spec, ArtifactStore(folder), ray, found.append)
    return sorted(job.recipe for job in found)


def test_what_a_machine_fails_is_measured_again(tmp_path: Path) -> None:
    ray = OneNode(LAUNCH, OSError(5, "Input/output error"), LAUNCH)
    assert measured(ray, tmp_path) == ["ce", "ls"]
    assert ray.shares == [0.0] * 5


def test_a_machine_that_fails_too_often_ends_the_sweep(tmp_path: Path) -> None:
    with pytest.raises(torch.AcceleratorError, match=r"^CUDA error: unspecified launch failure"):
        measured(OneNode(*[LAUNCH] * 6), tmp_path)


def test_what_runs_out_of_its_share_is_measured_alone_once(tmp_path: Path) -> None:
    ray = OneNode(MEMORY)
    assert measured(ray, tmp_path, gpu=0.25) == ["ce", "ls"]
    assert ray.shares == [0.25, 0.25, 1.0]
    with pytest.raises(torch.OutOfMemoryError):
        measured(OneNode(*[MEMORY] * 3), tmp_path, gpu=0.25)


@pytest.mark.parametrize("error", [InputError("suite is damaged"), ValueError("x"), MEMORY])
def test_what_another_try_cannot_mend_is_final(tmp_path: Path, error: Exception) -> None:
    ray = OneNode(error)
    with pytest.raises(type(error)) as caught:
        measured(ray, tmp_path)
    assert caught.value is error
    assert ray.shares == [0.0, 0.0]
