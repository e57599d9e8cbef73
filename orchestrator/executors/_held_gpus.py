"""Keeps trials off excluded GPUs; Ray itself can only exclude whole nodes."""

import time
from collections.abc import Collection, Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.cluster.local import fitting
from trainables.ray_edge import Holder

LOOK_SECONDS = 1.0
FIRST_SECONDS = 30.0  # Time to occupy the GPUs that earlier runs excluded, before trials start.

Places = Collection[tuple[str, str]]


class HeldGpus:
    """Occupies excluded GPUs with actors, so that Ray gives them to no trial."""

    def __init__(self, sizes: Sequence[tuple[float, float]]) -> None:
        self._sizes = sizes
        self._actors: dict[str, dict[Any, Any]] = {}  # By node: actors by their pending answers.
        self._looked = float("-inf")
        self._first = True

    def keep(self, wanted: Places) -> None:
        """Occupy the wanted GPUs and release all others, at most once per ``LOOK_SECONDS``.

        The first call waits until they are occupied, for at most ``FIRST_SECONDS``.

        Args:
            wanted: Pairs of a node (its id or the machine's name) and a GPU.
        """
        first, self._first = self._first, False
        if not (wanted or self._actors) or time.monotonic() - self._looked < LOOK_SECONDS:
            return
        began = time.monotonic()
        while not self._look(wanted) and first and time.monotonic() - began < FIRST_SECONDS:
            time.sleep(0.1)
        self._looked = time.monotonic()

    def _look(self, wanted: Places) -> bool:
        """Start or end actors; return True if no further GPU must be occupied.

        If some trials would fit on no node without the wanted GPUs, release all GPUs instead.
        """
        nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        self._actors = {name: actors for name, actors in self._actors.items() if name in nodes}
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
        actors = self._actors.setdefault(node, {})
        ready = ray.wait([*actors], num_returns=len(actors), timeout=0)[0] if actors else []
        has = {answer: ray.get(answer) for answer in ready}
        if bad <= {*has.values()}:
            for answer in [answer for answer in actors if has.get(answer) not in bad]:
                ray.kill(actors.pop(answer))
            return True
        if len(ready) == len(actors) < gpus:
            place = NodeAffinitySchedulingStrategy(node, soft=False)
            options: dict[str, Any] = {"num_cpus": 0, "num_gpus": 1, "scheduling_strategy": place}
            actor: Any = ray.remote(**options)(Holder).remote()
            actors[actor.gpu.remote()] = actor
        return False

    def close(self) -> None:
        """Release all GPUs."""
        for actor in (actor for actors in self._actors.values() for actor in actors.values()):
            ray.kill(actor)
        self._actors.clear()
