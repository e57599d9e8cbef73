"""How much each searched parameter decides the objective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator._history import TrialHistory
from orchestrator.report._svg import fitting

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

__all__ = ["ENOUGH", "importance"]

ENOUGH = 10  # Trials: a forest grown on fewer finds importance in noise.


def importance(trials: Sequence[TrialHistory], names: Sequence[str]) -> dict[str, float]:
    """Return each parameter's share of the objective's variance, by Optuna's fANOVA.

    The shares are of the range that was tried, and sum to 1.

    Args:
        trials: Scored trials of one study.
        names: The parameters that vary.

    Returns:
        Nothing with fewer than ``ENOUGH`` trials, or where the objective does not vary.
    """
    whole = [trial for trial in trials if all(name in trial.parameters for name in names)]
    if not names or len(whole) < ENOUGH or len({trial.objective for trial in whole}) == 1:
        return {}
    from optuna import create_study, logging
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances
    from optuna.trial import create_trial

    before = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        study = create_study()
    finally:
        logging.set_verbosity(before)
    spaces = {name: _distribution([trial.parameters[name] for trial in whole]) for name in names}
    for trial in whole:
        tried = {name: trial.parameters[name] for name in names}
        study.add_trial(create_trial(params=tried, distributions=spaces, value=trial.objective))
    return get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))


def _distribution(values: Sequence[bool | int | float | str]) -> BaseDistribution:
    """Return the range of values that were tried."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if any(isinstance(value, bool | str) for value in values):
        return CategoricalDistribution(sorted(set(values), key=str))
    axis = fitting(map(float, values), margin=0.0)
    return FloatDistribution(min(map(float, values)), max(map(float, values)), log=axis.log)
