"""Keeps trials off single GPUs: Ray gives GPUs out by number only, not by name."""

import time
from collections.abc import Collection, Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.cluster.local import fitting
from trainables.ray_edge import Holder

LOOK_SECONDS = 1.0
FIRST_SECONDS = 30.0  # In which what earlier runs left out is taken before anything starts.

Places = Collection[tuple[str, str]]


class HeldGpus:
    """Takes GPUs that are left out, so that Ray has them for nobody."""

    def __init__(self, sizes: Sequence[tuple[float, float]]) -> None:
        self._sizes = sizes
        self._actors: dict[str, dict[Any, Any]] = {}  # By node: answer, and who will give it.
        self._looked = float("-inf")
        self._first = True

    def keep(self, wanted: Places) -> None:
        """Take GPUs, each by its node's id or its machine's name; give back all others."""
        first, self._first = self._first, False
        if not (wanted or self._actors) or time.monotonic() - self._looked < LOOK_SECONDS:
            return
        began = time.monotonic()
        while not self._look(wanted) and first and time.monotonic() - began < FIRST_SECONDS:
            time.sleep(0.1)
        self._looked = time.monotonic()

    def _look(self, wanted: Places) -> bool:
        """Go one step on; return True if nothing remains to be done."""
        nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        self._actors = {name: asked for name, asked in self._actors.items() if name in nodes}
        bad = {
            name: {gpu for place, gpu in wanted if place in (name, node["NodeManagerHostname"])}
            for name, node in nodes.items()
        }
        left = [
            {**node["Resources"], "GPU": node["Resources"].get("GPU", 0) - len(bad[name])}
            for name, node in nodes.items()
        ]
        if not all(any(fitting(node, *size) > 0 for node in left) for size in self._sizes):
            bad = {name: set() for name in nodes}
        gpus = {name: int(node["Resources"].get("GPU", 0)) for name, node in nodes.items()}
        held = [self._hold(name, bad[name], gpus[name]) for name in nodes]
        return all(held)

    def _hold(self, node: str, bad: set[str], gpus: int) -> bool:
        asked = self._actors.setdefault(node, {})
        ready = ray.wait([*asked], num_returns=len(asked), timeout=0)[0] if asked else []
        has = {answer: ray.get(answer) for answer in ready}
        if bad <= {*has.values()}:
            for answer in [answer for answer in asked if has.get(answer) not in bad]:
                ray.kill(asked.pop(answer))
            return True
        if len(ready) == len(asked) < gpus:
            place = NodeAffinitySchedulingStrategy(node, soft=False)
            options: dict[str, Any] = {"num_cpus": 0, "num_gpus": 1, "scheduling_strategy": place}
            actor: Any = ray.remote(**options)(Holder).remote()
            asked[actor.gpu.remote()] = actor
        return False

    def close(self) -> None:
        """Give all back."""
        for actor in (actor for asked in self._actors.values() for actor in asked.values()):
            ray.kill(actor)
        self._actors.clear()
