"""What is the same in every simulated sweep, computed once: one spec, one sampler seed.

The sampler is random, so what Optuna suggests hangs on the number of a trial alone.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.search.study import StudySearch
from orchestrator.search.study_state import Ended, StudyState, TrialMaker, TrialSpec
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
            real, asked = StudySearch(plan, *given), StudySearch(plan, *given)
            asked._needed = lambda: range(0)  # type: ignore[method-assign]
            _suggested[plan.id] = real, [asked.ask()[1] for _ in range(plan.trials)]
        real, self._answers = _suggested[plan.id]
        self.__dict__ |= {**vars(real), "_study": self, "_waiting": {}}

    def ask(self, parameters: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Return the next trial; the parameters of an earlier run are those that Optuna repeats."""
        for number in self._needed():
            self._tell(number)
        self.asked += 1
        answer = self._answers[self.asked - 1]
        assert parameters in (None, answer)
        return self.asked - 1, dict(answer)

    def tell(self, *_: Any, **__: Any) -> None:
        """Forget it: a random sampler does."""


def make_once(
    maker: TrialMaker,
    plan: StudyPlan,
    number: int,
    parameters: dict[str, Any],
    base: Ended | None,
    position: int = 0,
) -> TrialSpec:
    """Make a trial, or return the one that was made of the same."""
    key = plan.id, number, str(parameters), base and base.trial.key, position
    if key not in _made:
        _made[key] = _make(maker, plan, number, parameters, base, position)
    return _made[key]


def open_once(study: StudyState, *given: Any) -> StudyOpened:
    if study.plan.id not in _opened:
        _opened[study.plan.id] = _opening(study, *given)
    return replace(_opened[study.plan.id])
