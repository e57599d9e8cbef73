"""The Tune trainable around a worker; only this module of ``trainables`` imports Ray."""

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
    """Computes the ``job`` of its configuration; one actor computes many trials.

    Every result has the ``report`` and the keys for Tune and its schedulers: ``epoch``, ``score``
    (infinite before the first epoch) and ``done``. After a ``broken`` report the job is not done:
    the next step raises, so that Tune ends this process.
    """

    def setup(
        self,
        config: dict[str, Any],
        pulse: str = "",
        beat_seconds: float | None = None,
        **settings: Any,
    ) -> None:
        """Start the worker and the first job; ``pulse`` is the prefix of progress keys in Ray."""
        self._place, self._signs = f"{pulse}/{node_here()}/{os.getpid()}", 0
        self._beats, self._waits, self._job = beat_seconds is not None, False, config["job"]
        if beat_seconds is not None:
            tell_progress(self._send_sign, beat_seconds, lambda: self._waits)
        self._worker = Worker(Bench(**settings), node_here(), gpu_here())
        self._begin(config["job"])

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Begin another job in the same process."""
        self._begin(new_config["job"])
        return True

    def _send_sign(self) -> None:
        self._signs += 1
        here, host, job = psutil.Process(), os.uname().nodename, self._job
        who = node_here(), host, here.pid, here.create_time()
        sign = Sign(self._signs, *who, job.key, job.attempt)
        _internal_kv_put(self._place, json.dumps(sign), overwrite=True)

    def _begin(self, job: Job) -> None:
        self._fault, self._job, self._waits = "", job, False
        if self._beats:
            self._send_sign()
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
        """Release the job's lock."""
        self._worker.close()


@ray.remote(num_cpus=0, max_retries=0)
def inspected(storage: str, nonce: str, gpus: int) -> Inspection:
    """Inspect this node; see ``inspect_machine``."""
    return inspect_machine(storage, nonce, gpus)


class Sign(NamedTuple):
    """A sign of progress: its number, the actor's process, and the job and attempt."""

    number: int
    node: str
    host: str
    pid: int
    began: float
    key: str
    attempt: int


@ray.remote(num_cpus=0, max_retries=0)
def killed(pid: int, began: float) -> None:
    """Kill a process of this node; see ``kill_tree``."""
    kill_tree(pid, began)


class Holder:
    """Reserves the GPU that Ray assigned to it."""

    def gpu(self) -> str:
        """Return Ray's name of the GPU."""
        return gpu_here()


def node_here() -> str:
    """Return Ray's name of this process's node; empty without Ray."""
    # Without the check, Ray would start a node.
    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""


def gpu_here() -> str:
    """Return Ray's name of this process's GPU; empty if it has none or several."""
    gpus = ray.get_gpu_ids() if ray.is_initialized() else []
    return str(gpus[0]) if len(gpus) == 1 else ""
