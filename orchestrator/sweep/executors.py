"""The registry of executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from trainables.common.registry import Registry

if TYPE_CHECKING:
    from orchestrator.sweep.plan import Plan
    from orchestrator.sweep.spec import SweepSpec
    from trainables.store.artifacts import ArtifactStore

DEFAULT_EXECUTOR = "ray"


class ExecutorKind(ABC):
    """A way to compute the jobs of a sweep.

    Attributes:
        spans_machines: Whether it can compute on several machines.
        needs: A module that has to be installed; "" for none.
    """

    name: str
    spans_machines = False
    needs = ""

    @classmethod  # noqa: B027
    def check(cls, spec: SweepSpec) -> None:
        """Raise ``InputError`` if this executor cannot compute the sweep."""

    @classmethod  # noqa: B027
    def start_early(cls, concurrent: Any) -> None:
        """Start slow processes in advance; the key ``concurrent`` is not validated yet."""

    @classmethod
    @abstractmethod
    def open(
        cls, plan: Plan, store: ArtifactStore, address: str | None, say: Callable[[str], None]
    ) -> AbstractContextManager[Any]:
        """Return a context with the ``Executor`` of a sweep; see ``open_executor``."""


EXECUTORS: Registry[ExecutorKind] = Registry(
    "executor", "orchestrator.executors._open", ExecutorKind
)
