"""Registers the built-in executors by their names in sweep files, without importing PyTorch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from orchestrator.cluster.local import (
    join_cluster,
    missing_room,
    require_room,
    require_shared,
    slots,
    spans_machines,
)
from orchestrator.executors._base import Executor, bench_of
from orchestrator.storage.storage import SweepFolder
from orchestrator.sweep.executors import EXECUTORS, ExecutorKind
from trainables.common.errors import InputError
from trainables.common.portable import VARIABLES

if TYPE_CHECKING:
    from orchestrator.sweep.plan import Plan
    from orchestrator.sweep.spec import SweepSpec
    from trainables.store.artifacts import ArtifactStore

NOT_ENDED = "trials run in this process, which cannot kill a trial and continue"


def open_executor(
    plan: Plan, store: ArtifactStore, address: str | None, say: Callable[[str], None]
) -> AbstractContextManager[Executor]:
    """Return a context manager with a sweep's executor; see ``Executor.open``."""
    return EXECUTORS.get(plan.spec.executor).open(plan, store, address, say)


@EXECUTORS.register("local")
class Local(ExecutorKind):
    """Processes of this machine, or the driver's own process if only one trial runs at once."""

    @classmethod
    def check(cls, spec: SweepSpec) -> None:
        if spec.search.scheduler == "asha":
            raise InputError(
                "search.scheduler: asha needs trials that run in parallel on Ray; use `none` with "
                f"executor `{cls.name}`"
            )
        resources = spec.resources
        if resources.train.gpu > 1 and (resources.concurrent or 1) > 1:
            raise InputError(
                f"resources.concurrent: executor `{cls.name}` gives each of "
                f"{resources.concurrent} trials one GPU, and train.gpu is "
                f"{resources.train.gpu:g}; remove concurrent"
            )

    @classmethod
    def start_early(cls, concurrent: Any) -> None:
        from trainables.fork_server import start_fork_server

        if concurrent != 1 and len(os.sched_getaffinity(0)) > 1:
            start_fork_server()

    @classmethod
    @contextmanager
    def open(
        cls, plan: Plan, store: ArtifactStore, address: str | None, say: Callable[[str], None]
    ) -> Iterator[Executor]:
        from orchestrator.executors.in_process import InProcess  # Imports PyTorch, which is slow.
        from orchestrator.executors.processes import Processes

        bench, hang_seconds = bench_of(plan.spec, store), plan.spec.resources.hang_seconds
        if (count := _at_once(plan)) > 1:
            yield Processes(count, **bench, hang_seconds=hang_seconds)
            return
        if hang_seconds:
            say(f"resources.hang_seconds: {hang_seconds:g} has no effect: {NOT_ENDED}")
        yield InProcess(**bench)


@EXECUTORS.register("ray")
class Ray(ExecutorKind):
    """Ray Tune, on this machine or a cluster."""

    spans_machines = True
    needs = "ray"

    @classmethod
    @contextmanager
    def open(
        cls, plan: Plan, store: ArtifactStore, address: str | None, say: Callable[[str], None]
    ) -> Iterator[Executor]:
        spec = plan.spec
        say("starting Ray" if address is None else f"joining Ray at {address}")
        with join_cluster(address, VARIABLES if spec.resources.portable else {}) as ray:
            # Ray reads its settings when it is imported.
            from orchestrator.executors.ray_tune import RayTune

            if spans_machines(ray.nodes()):
                require_shared(spec)
            for key, share in plan.shares().items():
                if address is None:
                    require_room(ray.cluster_resources(), key, share.cpu, share.gpu)
                elif text := missing_room(ray.nodes(), key, share.cpu, share.gpu):
                    say(text)
            yield RayTune(
                store.root,
                SweepFolder.of(spec).path,
                spec.resources.concurrent,
                spec.resources.checkpoint_seconds,
                asha=spec.search.scheduler == "asha",
                growing=address is not None,
                plugins=spec.pinned,
                hang_seconds=spec.resources.hang_seconds,
            )


def _at_once(plan: Plan) -> int:
    """Return the number of jobs of a sweep that this machine computes at once, without Ray."""
    from trainables.common.devices import visible_gpus

    here = {"CPU": len(os.sched_getaffinity(0)), "GPU": len(visible_gpus())}
    shares = plan.shares().values()
    fits = min(1 if share.gpu > 1 else slots(here, share.cpu, share.gpu) for share in shares)
    return min(plan.spec.resources.concurrent or fits, max(plan.at_once().values()))
