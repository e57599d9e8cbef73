"""The nodes of a Ray cluster: their inspection, and how many jobs fit."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.cluster.local import fitting, short_reason, slots
from orchestrator.loop import Loop
from trainables.common.errors import InputError
from trainables.ray_edge import inspected
from trainables.worker import inspect_machine, remove_nonce, write_nonce

LIMIT_SECONDS = 1.0
INSPECT_SECONDS = 180.0  # A first start from a slow disk may take minutes.


class Nodes:
    """Inspects code, versions, storage and GPUs of nodes; only nodes that pass run trials."""

    def __init__(self, storage: Path, nonce: str, loop: Loop, passed: set[str]) -> None:
        self._sizes, self._refused, self._say = loop.source.sizes, loop.machines.refused, loop.say
        self._here = inspect_machine(str(storage), nonce, 0)
        self._storage, self._nonce = str(storage), nonce
        self._pending: dict[str, tuple[Any, str, float]] = {}  # By node: answer, host, start.
        self._passed, self._looked = passed, float("-inf")

    def waiting(self) -> frozenset[str]:
        """Return the nodes whose inspection has not ended; the list is at most a second old."""
        if time.monotonic() - self._looked > LIMIT_SECONDS:
            self._look()
            self._looked = time.monotonic()
        return frozenset(self._pending)

    def _look(self) -> None:
        living = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        for name in living.keys() - self._pending.keys() - self._passed - self._refused.keys():
            tested, host = any(gpu for _, gpu in self._sizes), living[name]["NodeManagerHostname"]
            gpus = int(living[name]["Resources"].get("GPU", 0)) if tested else 0
            place = NodeAffinitySchedulingStrategy(name, soft=False)
            answer = inspected.options(scheduling_strategy=place).remote(
                self._storage, self._nonce, gpus
            )
            self._pending[name] = answer, host, time.monotonic()
        for name, (answer, host, since) in list(self._pending.items()):
            ready, _ = ray.wait([answer], timeout=0)
            if ready or name not in living or time.monotonic() - since > INSPECT_SECONDS:
                del self._pending[name]
                self._judge(name, host, answer if ready else None)

    def _judge(self, name: str, host: str, answer: Any) -> None:
        try:
            silent = f"no answer within {INSPECT_SECONDS:.0f} s"
            fault = silent if answer is None else self._here.differs(ray.get(answer))
        except Exception as error:  # noqa: BLE001 - the node may have other code and raise anything
            fault = short_reason(getattr(error, "cause", None) or error)
        if not fault:
            self._passed.add(name)
            return
        self._refused[name] = fault
        self._say(f"{host} is excluded from this run: {fault}")

    def await_first(self) -> None:
        """Wait for the inspection of all present nodes.

        Raises:
            InputError: If some nodes were refused and no trial fits on the others.
        """
        while self.waiting():
            time.sleep(0.2)
        if self._refused:
            require_node(self._refused, self._sizes)


@contextmanager
def inspecting(storage: Path, loop: Loop, passed: set[str]) -> Iterator[Nodes]:
    """Yield the ``Nodes`` of a cluster after the inspection of all present nodes."""
    nonce = write_nonce(storage)
    try:
        nodes = Nodes(storage, nonce, loop, passed)
        nodes.await_first()
        yield nodes
    finally:
        remove_nonce(storage, nonce)


def require_node(refused: Mapping[str, str], sizes: Sequence[tuple[float, float]]) -> None:
    left = [n["Resources"] for n in ray.nodes() if n["Alive"] and n["NodeID"] not in refused]
    if not any(fitting(node, cpu, gpu) for node in left for cpu, gpu in sizes):
        raise InputError(f"no trial can start any more: {next(iter(refused.values()))}")


class Limit:
    """Returns how many jobs may run or wait in Ray now: ``concurrent``, else as many as fit.

    A ``growing`` cluster gets twice as many as fit: an autoscaler needs waiting jobs to see demand,
    and a node that joins needs work. More jobs would make short stages wait behind long ones.
    """

    def __init__(
        self, sizes: Sequence[tuple[float, float]], concurrent: int | None, growing: bool
    ) -> None:
        self._sizes, self._concurrent, self._growing = sizes, concurrent, growing
        self._known, self._updated = self._compute(), time.monotonic()

    def __call__(self) -> int:
        # Asking the cluster takes as long as a short trial.
        if self._growing and time.monotonic() - self._updated > LIMIT_SECONDS:
            self._known, self._updated = self._compute(), time.monotonic()
        return self._known

    def _compute(self) -> int:
        if self._concurrent is not None:
            return self._concurrent
        available = ray.cluster_resources()
        fitting = max(slots(available, cpu, gpu) for cpu, gpu in self._sizes)
        return 2 * fitting if self._growing else fitting
