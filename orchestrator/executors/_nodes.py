"""The nodes of a Ray cluster: which may compute, and how many jobs fit."""

from __future__ import annotations

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
INSPECT_SECONDS = 180.0  # A first start from a slow disk takes most of it.


class Nodes:
    """Inspects every node that joins; no trial starts there before it answered as it must."""

    def __init__(self, storage: Path, nonce: str, loop: Loop, passed: set[str]) -> None:
        self._sizes, self._refused, self._say = loop.source.sizes, loop.machines.refused, loop.say
        self._here = inspect_machine(str(storage), nonce, 0)
        self._storage, self._nonce = str(storage), nonce
        self._asked: dict[str, tuple[Any, str, float]] = {}  # By node: answer, host, when asked.
        self._passed, self._looked = passed, float("-inf")

    def waiting(self) -> frozenset[str]:
        """Return the nodes that have not answered yet, as of a second ago at most."""
        if time.monotonic() - self._looked > LIMIT_SECONDS:
            self._look()
            self._looked = time.monotonic()
        return frozenset(self._asked)

    def _look(self) -> None:
        living = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        for name in living.keys() - self._asked.keys() - self._passed - self._refused.keys():
            tested, host = any(gpu for _, gpu in self._sizes), living[name]["NodeManagerHostname"]
            gpus = int(living[name]["Resources"].get("GPU", 0)) if tested else 0
            place = NodeAffinitySchedulingStrategy(name, soft=False)
            answer = inspected.options(scheduling_strategy=place).remote(
                self._storage, self._nonce, gpus
            )
            self._asked[name] = answer, host, time.monotonic()
        for name, (answer, host, since) in list(self._asked.items()):
            ready, _ = ray.wait([answer], timeout=0)
            if ready or name not in living or time.monotonic() - since > INSPECT_SECONDS:
                del self._asked[name]
                self._take(name, host, answer if ready else None)

    def _take(self, name: str, host: str, answer: Any) -> None:
        try:
            silent = f"no answer within {INSPECT_SECONDS:.0f} s"
            fault = silent if answer is None else self._here.differs(ray.get(answer))
        except Exception as error:  # noqa: BLE001 - of other code, whatever it raises
            fault = short_reason(getattr(error, "cause", None) or error)
        if not fault:
            self._passed.add(name)
            return
        self._refused[name] = fault
        self._say(f"{host} is left out of this run: {fault}")

    def await_first(self) -> None:
        """Wait until all nodes that are there now have answered."""
        while self.waiting():
            time.sleep(0.2)
        if self._refused:
            require_node(self._refused, self._sizes)


@contextmanager
def inspecting(storage: Path, loop: Loop, passed: set[str]) -> Iterator[Nodes]:
    """Yield what inspects the nodes of a cluster, those that are there now inspected already."""
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
    """Returns how many jobs may be out now.

    On a cluster twice as many as fit: those that wait are what an autoscaler sees as demand, and
    what a node that joins finds to do. More would make short stages queue behind long ones.
    """

    def __init__(
        self, sizes: Sequence[tuple[float, float]], concurrent: int | None, growing: bool
    ) -> None:
        self._sizes, self._concurrent, self._growing = sizes, concurrent, growing
        self._known, self._asked = self._ask(), time.monotonic()

    def __call__(self) -> int:
        # To ask the cluster costs as much as to run a short trial.
        if self._growing and time.monotonic() - self._asked > LIMIT_SECONDS:
            self._known, self._asked = self._ask(), time.monotonic()
        return self._known

    def _ask(self) -> int:
        if self._concurrent is not None:
            return self._concurrent
        available = ray.cluster_resources()
        fitting = max(slots(available, cpu, gpu) for cpu, gpu in self._sizes)
        return 2 * fitting if self._growing else fitting
