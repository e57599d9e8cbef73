"""What runs have in common that carry others of their stage along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor

from trainables.artifacts import Artifact
from trainables.stages import StageRun

__all__ = ["GroupRun", "History"]

History = list[dict[str, Any]]
Member = TypeVar("Member", bound=StageRun)


class GroupRun(StageRun, Generic[Member]):
    """The run of one stage, with others carried along.

    To its trial it is an ordinary run. What comes of the others is stored when it finishes, so that
    their own trials need no process; one that diverges is left out, and fails in its own trial.

    Args:
        run: What is asked for, not begun.
        others: What can share its passes, not begun.
    """

    def __init__(self, run: Member, others: Sequence[Member]) -> None:
        super().__init__(run.request, run.store, run.data)
        self._run = run
        self._others = list(others)
        self._histories: dict[str, History] = {other.request.key(): [] for other in others}

    def outcome(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Return what is stored of the run that is asked for."""
        return self._run.outcome()

    def finish(
        self,
        metrics: Mapping[str, float],
        history: Sequence[Mapping[str, Any]] = (),
        seconds: float | None = None,
    ) -> Artifact:
        """Store what came of every run, each with its share of the cost; return the own."""
        share = None if seconds is None else seconds / (1 + len(self._others))
        for other in self._others:
            own = self._histories[other.request.key()]
            other.finish(own[-1]["metrics"], own, share)
        return super().finish(metrics, history, share)
