"""The base of what computes the jobs of a loop."""

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
    """Return the arguments that every executor of this machine hands to its ``Bench``."""
    return {
        "storage": store.root,
        "checkpoint_seconds": spec.resources.checkpoint_seconds,
        "logs": SweepFolder.of(spec).logs,
        "plugins": spec.pinned,
    }


class Executor(ExecutorKind, ABC):
    """Computes jobs until their loop is done.

    It asks ``loop.next`` for as many jobs as it can hold, and hands every report of a worker to
    ``loop.take``. A job whose process ends without a last report gets one from it, see ``lost``.
    """

    @classmethod
    @contextmanager
    def open(
        cls, plan: Plan, store: ArtifactStore, address: str | None, say: Callable[[str], None]
    ) -> Iterator[Executor]:
        """Yield one that is made with ``storage``, ``checkpoint_seconds``, ``logs``, ``plugins``.

        See ``Bench`` for these.
        """
        yield cls(**bench_of(plan.spec, store))

    @abstractmethod
    def run(self, loop: Loop, sealed: bool = True) -> None:
        """Compute the jobs of a loop until it is done.

        Args:
            loop: Gives out the jobs.
            sealed: Whether the workers give up test data.

        Raises:
            InputError: If the journal or the storage could not be written.
        """
