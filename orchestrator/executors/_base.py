"""The base class of executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from orchestrator.storage.storage import SweepFolder
from orchestrator.sweep.executors import ExecutorKind

if TYPE_CHECKING:
    from orchestrator.loop import Loop
    from orchestrator.sweep.plan import Plan
    from orchestrator.sweep.spec import SweepSpec
    from trainables.store.artifacts import ArtifactStore


def bench_of(spec: SweepSpec, store: ArtifactStore) -> dict[str, Any]:
    """Return the arguments that executors on this machine pass to the ``Bench`` of a worker."""
    return {
        "storage": store.root,
        "checkpoint_seconds": spec.resources.checkpoint_seconds,
        "logs": SweepFolder.of(spec).logs,
        "plugins": spec.pinned,
    }


class Executor(ExecutorKind, ABC):
    """Computes jobs until their loop is done.

    It gets jobs from ``loop.next`` while it has capacity, and passes every report of a worker to
    ``loop.take``. If a process ends without a last report, the executor makes one; see ``lost``.
    """

    @classmethod
    @contextmanager
    def open(
        cls, plan: Plan, store: ArtifactStore, address: str | None, say: Callable[[str], None]
    ) -> Iterator[Executor]:
        """Yield an executor for the jobs of a sweep.

        ``address`` is that of a Ray cluster to join, None for this machine. ``say`` receives
        messages for the user.
        """
        yield cls(**bench_of(plan.spec, store))

    @abstractmethod
    def run(self, loop: Loop, sealed: bool = True) -> None:
        """Compute the jobs of a loop until it is done.

        Args:
            loop: The source of jobs.
            sealed: Whether workers lose access to test data.

        Raises:
            InputError: If the journal or the storage could not be written.
        """
