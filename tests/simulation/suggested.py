"""What is the same in every simulated sweep, computed once: one spec, one sampler seed.

The sampler is random, so what Optuna suggests hangs on the number of a trial alone.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from orchestrator.search.study import StudySearch
from orchestrator.search.study_state import StudyState
from orchestrator.search.trials import Chosen, TrialMaker, TrialSpec
from orchestrator.storage.events import StudyOpened
from orchestrator.sweep.plan import StudyPlan

_suggested: dict[str, tuple[StudySearch, list[Any]]] = {}
_made: dict[Any, TrialSpec] = {}
_opened: dict[str, StudyOpened] = {}
_make, _opening = TrialMaker.make, StudyState.opening


class SuggestedOnce(StudySearch):
    """A search that asks Optuna once, and afterwards repeats its answers."""

    def __init__(self, plan: StudyPlan, *given: Any) -> None:
        if plan.id not in _suggested:
            real = StudySearch(plan, *given)
            asked = [real._study.ask(real._distributions).params for _ in range(plan.trials)]
            _suggested[plan.id] = real, [SimpleNamespace(params=found) for found in asked]
        real, self._answers = _suggested[plan.id]
        self.__dict__ |= {**vars(real), "_study": self, "_waiting": {}, "_trials": {}}

    def ask(self, *distributions: Any) -> Any:
        """Return the next trial, as Optuna or as the search does."""
        return self._answers[self.asked] if distributions else super().ask()

    def tell(self, *_: Any, **__: Any) -> None:
        """Forget it: a random sampler does."""


def make_once(
    maker: TrialMaker,
    plan: StudyPlan,
    number: int,
    parameters: dict[str, Any],
    base: Chosen | None,
    position: int = 0,
) -> TrialSpec:
    """Make a trial, or return the one that was made of the same."""
    key = plan.id, number, str(parameters), base and base.trial.key, position
    if key not in _made:
        _made[key] = _make(maker, plan, number, parameters, base, position)
    return _made[key]


def open_once(study: StudyState, *given: Any) -> StudyOpened:
    """Return the event that opens a study."""
    if study.plan.id not in _opened:
        _opened[study.plan.id] = _opening(study, *given)
    return replace(_opened[study.plan.id])
