"""Finds and kills the Ray actors that make no progress."""

import json
import time
import uuid

from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_list
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.executors._silence import Silence
from trainables.common.pulse import kill_tree
from trainables.jobs import Job, Report, Status, hung
from trainables.ray_edge import Sign, killed, node_here


class HungActors:
    """Reads the signs of progress that actors write to Ray; kills actors that stop writing them."""

    def __init__(self, hang_seconds: float | None = None) -> None:
        self.run = uuid.uuid4().hex
        self._silence = Silence[bytes](hang_seconds)
        self.beat_seconds = self._silence.beat_seconds
        self._signs: dict[bytes, bytes] = {}  # The last sign by Ray's key.
        self._killed: dict[tuple[str, int], tuple[Sign, float]] = {}  # By job and attempt.
        self._looked = time.monotonic()

    def look(self) -> None:
        """Kill the processes that hang."""
        if self.beat_seconds is None or time.monotonic() - self._looked < self.beat_seconds:
            return
        self._looked = time.monotonic()
        for name in _internal_kv_list(f"{self.run}/"):
            sign = _internal_kv_get(name)
            if sign is not None and sign != self._signs.get(name):
                self._signs[name] = sign
                self._silence.heard(name)
        for name, seconds in self._silence.hung().items():
            self._silence.over(name)
            _internal_kv_del(name)
            self._kill(Sign(*json.loads(self._signs.pop(name))), seconds)

    def _kill(self, sign: Sign, seconds: float) -> None:
        self._killed[sign.key, sign.attempt] = sign, seconds
        if sign.node == node_here():
            kill_tree(sign.pid, sign.began)
        else:
            place = NodeAffinitySchedulingStrategy(sign.node, soft=False)
            killed.options(scheduling_strategy=place).remote(sign.pid, sign.began)

    def report(self, job: Job, last: Report | None) -> Report | None:
        """Return the report on a job whose process ``look`` killed, else None.

        ``last`` is the last report that the process sent, if any.
        """
        if (job.key, job.attempt) not in self._killed:
            return None
        sign, seconds = self._killed.pop((job.key, job.attempt))
        first = Report(status=Status.RUNNING, host=sign.host, node=sign.node)
        return hung(job, last or first, seconds)

    def close(self) -> None:
        """Remove all signs of this run."""
        if self.beat_seconds is not None:
            _internal_kv_del(f"{self.run}/", del_by_prefix=True)
