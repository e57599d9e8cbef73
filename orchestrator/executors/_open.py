"""Opens the executor that a sweep names."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orchestrator.cluster.local import (
    join_cluster,
    missing_room,
    require_room,
    require_shared,
    slots,
    spans_machines,
)
from orchestrator.executors._base import Executor
from orchestrator.executors.processes import Processes
from orchestrator.storage.storage import SweepFolder
from orchestrator.sweep.plan import Plan
from trainables.common.devices import visible_gpus
from trainables.common.portable import VARIABLES
from trainables.store.artifacts import ArtifactStore

NOT_ENDED = "trials run in this process, which cannot kill a trial and continue"


@contextmanager
def open_executor(
    plan: Plan, store: ArtifactStore, address: str | None, say: Callable[[str], None]
) -> Iterator[Executor]:
    """Yield the executor of a sweep, started or joined.

    Args:
        plan: The sweep.
        store: Where its artifacts lie.
        address: A Ray cluster to join; None for Ray on this machine alone.
        say: Receives a line per step.

    Raises:
        InputError: If no cluster answers, or the sweep cannot run there.
    """
    spec, folder = plan.spec, SweepFolder.of(plan.spec)
    if spec.executor == "local":
        bench = store.root, spec.resources.checkpoint_seconds, folder.logs, spec.pinned
        hang_seconds = spec.resources.hang_seconds
        if (count := _at_once(plan)) > 1:
            yield Processes(count, *bench, hang_seconds)
            return
        if hang_seconds:
            say(f"resources.hang_seconds: {hang_seconds:g} has no effect: {NOT_ENDED}")
        from orchestrator.executors.in_process import InProcess  # PyTorch takes seconds.

        yield InProcess(*bench)
        return
    say("starting Ray" if address is None else f"joining Ray at {address}")
    with join_cluster(address, VARIABLES if spec.resources.portable else {}) as ray:
        from orchestrator.executors.ray_tune import RayTune  # Ray reads settings when imported.

        if spans_machines(ray.nodes()):
            require_shared(spec)
        for key, share in plan.shares().items():
            if address is None:
                require_room(ray.cluster_resources(), key, share.cpu, share.gpu)
            elif text := missing_room(ray.nodes(), key, share.cpu, share.gpu):
                say(text)
        yield RayTune(
            store.root,
            folder.path,
            spec.resources.concurrent,
            spec.resources.checkpoint_seconds,
            asha=spec.search.scheduler == "asha",
            growing=address is not None,
            plugins=spec.pinned,
            hang_seconds=spec.resources.hang_seconds,
        )


def _at_once(plan: Plan) -> int:
    """Return how many jobs of a sweep this machine computes at once, without Ray."""
    here = {"CPU": len(os.sched_getaffinity(0)), "GPU": len(visible_gpus())}
    shares = plan.shares().values()
    fits = min(1 if share.gpu > 1 else slots(here, share.cpu, share.gpu) for share in shares)
    return min(plan.spec.resources.concurrent or fits, max(plan.at_once().values()))
