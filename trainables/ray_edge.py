"""The one module here that knows Ray: the Tune trainable around a worker."""

import json
import os
from typing import Any, NamedTuple

import psutil
import ray
from ray import tune
from ray.experimental.internal_kv import _internal_kv_put

from trainables.common.pulse import kill_tree, tell_progress
from trainables.jobs import Job
from trainables.worker import Bench, Inspection, Worker, inspect_machine


class JobTrainable(tune.Trainable):
    """Computes the job under ``job`` in its configuration; one actor serves many trials.

    Every result holds ``report``, and what Tune and its schedulers look at: ``epoch``, ``score``
    (infinite before there is one) and ``done``. A job that the machine failed is not done: its next
    step raises, so that Tune ends this process.
    """

    def setup(
        self,
        config: dict[str, Any],
        pulse: str = "",
        beat_seconds: float | None = None,
        **settings: Any,
    ) -> None:
        """Start the worker and the first job; signs of progress go to Ray below ``pulse``."""
        self._place, self._signs = f"{pulse}/{node_here()}/{os.getpid()}", 0
        self._beats, self._waits, self._job = beat_seconds is not None, False, config["job"]
        if beat_seconds is not None:
            tell_progress(self._tell, beat_seconds, lambda: self._waits)
        self._worker = Worker(Bench(**settings), node_here(), gpu_here())
        self._begin(config["job"])

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Begin another job in the same process."""
        self._begin(new_config["job"])
        return True

    def _tell(self) -> None:
        self._signs += 1
        here, host, job = psutil.Process(), os.uname().nodename, self._job
        who = node_here(), host, here.pid, here.create_time()
        sign = Sign(self._signs, *who, job.key, job.attempt)
        _internal_kv_put(self._place, json.dumps(sign), overwrite=True)

    def _begin(self, job: Job) -> None:
        self._fault, self._job, self._waits = "", job, False
        if self._beats:
            self._tell()
        self._score = getattr(job.work, "score", "")
        self._worker.open(job)
        self._waits = True

    def step(self) -> dict[str, Any]:
        """Compute for a while and report."""
        if self._fault:
            raise RuntimeError(self._fault)
        self._waits = False
        report = self._worker.step()
        self._waits = True
        self._fault = report.fault.reason if report.broken and report.fault else ""
        return {
            "report": report,
            "epoch": report.epoch,
            "score": report.metrics.get(self._score, float("inf")),
            "done": report.ended and not report.broken,
        }

    def cleanup(self) -> None:
        """Pass the job's lock on."""
        self._worker.close()


@ray.remote(num_cpus=0, max_retries=0)
def inspected(storage: str, nonce: str, gpus: int) -> Inspection:
    """Look at the node that this runs on; see ``inspect_machine``."""
    return inspect_machine(storage, nonce, gpus)


class Sign(NamedTuple):
    """A sign of progress of an actor: its number, and who gives it for which attempt at a job."""

    number: int
    node: str
    host: str
    pid: int
    began: float
    key: str
    attempt: int


@ray.remote(num_cpus=0, max_retries=0)
def killed(pid: int, began: float) -> None:
    """Kill a process of the node that this runs on; see ``kill_tree``."""
    kill_tree(pid, began)


class Holder:
    """Keeps the GPU that Ray gave it from everybody else."""

    def gpu(self) -> str:
        """Return Ray's name of it."""
        return gpu_here()


def node_here() -> str:
    """Return Ray's name of the node that this process is on, empty without Ray."""
    # Ray would start one to answer.
    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""


def gpu_here() -> str:
    """Return Ray's name of the GPU of this process, empty if it has none or several."""
    gpus = ray.get_gpu_ids() if ray.is_initialized() else []
    return str(gpus[0]) if len(gpus) == 1 else ""
