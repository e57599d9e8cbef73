"""The part of the page that shows the searches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from orchestrator.storage.ledger import Ledger, Study, Trial
from orchestrator.tables.columns import column
from orchestrator.view import _progress, _search
from orchestrator.view._parallel import parallel_coordinates
from trainables.charts.chart import Chart, spread_widely
from trainables.common.words import many

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

MOST_CURVES = 16
MOST_STUDIES = 100  # Studies on one page: more are too slow in a browser.
TREES = 16  # More do not improve the estimate, see docs/results/importance.md.
ENOUGH = 10  # Minimum number of trials: with fewer, a forest finds importance in noise.


def study_parts(history: Ledger, done: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
    """Return the template's data for up to ``MOST_STUDIES`` studies; call ``done`` after each."""
    parts = []
    for study in islice(history.studies.values(), MOST_STUDIES):
        parts.append(study_part(study, history))
        done()
    return parts


def _name(study: Study, history: Ledger) -> str:
    several = len({other.task for other in history.studies.values()}) > 1
    return f"{study.recipe} on {study.task}" if several else study.recipe


def study_part(study: Study, history: Ledger, live: bool = False) -> dict[str, Any]:
    """Return the template's data for one study.

    With ``live``, curves of running trials come first, and the importance of parameters, which can
    take seconds to compute, is left out.
    """
    scored, searched = study.scored, _search.searched_parameters(study)
    shares = {} if live else importance(scored, list(searched))
    trials = _search.best_trials(study)
    if live:
        trials.sort(key=lambda trial: not trial.open)
    return {
        "index": study.index,
        "name": _name(study, history),
        "text": _outcome(study, history),
        "live": live,
        "best": _progress.best_of_study(study, history),
        "parallel": parallel_coordinates(study, history, searched),
        "importance": sorted(shares.items(), key=lambda pair: -pair[1]),
        "weighed": _importance_note(shares, len(scored)) if searched and not live else "",
        "slices": _search.objective_by_parameter(study, history, searched),
        "fronts": _search.fronts(study, history),
        "curves": _search.learning_curves(study, trials[:MOST_CURVES]),
        "left": len(trials[MOST_CURVES:]),
        "seeds": _progress.over_seeds([study], [study.recipe], fewest=2),
    }


def _importance_note(shares: dict[str, float], scored: int) -> str:
    """Return the basis of the importance of parameters, or why there is none."""
    if shares:
        return f"Share of the objective's variance (fANOVA, {many(scored, 'trial')})."
    if scored < ENOUGH:
        return f"Importance needs {ENOUGH} trials, got {scored}."
    return "Importance cannot be estimated from these trials."


def _outcome(study: Study, history: Ledger) -> str:
    trials = study.searched
    found = Counter(trial.status for trial in trials)
    states = ("finished", "failed", "pruned", "running")
    counts = [f"{found[status]} {status}" for status in states if found[status]]
    words = many(len(trials), "trial") + (f" ({', '.join(counts)})" if len(counts) > 1 else "")
    chosen = study.chosen_trial
    if chosen is None or chosen.objective is None:
        return words
    shown = column(history.objective)
    value = f"{shown.show(chosen.objective)}{' %' if shown.factor == 100 else ''}"
    return f"{words}; chosen: number {chosen.number}, objective {value}"


def trial_curves(study: Study, trial: Trial) -> list[Chart]:
    """Return the charts of one trial's metrics by epoch."""
    retained = _search.retention("retention probability q by epoch", study, [trial])
    return [*_search.learning_curves(study, [trial]), *retained]


def retention_figures(history: Ledger) -> list[Chart]:
    """Return the charts of MaC-Cal's retention probability q, one for each study that has it.

    Only the first ``MOST_STUDIES`` studies and the ``MOST_CURVES`` best trials of each are drawn.
    """
    figures = []
    for study in islice(history.studies.values(), MOST_STUDIES):
        trials = _search.best_trials(study, "q")[:MOST_CURVES]
        found = {_search.gamma(trial) for trial in trials}
        gammas = sorted(gamma for gamma in found if gamma is not None)
        span = " to ".join(f"{end:.3g}" for end in (*gammas[:1], *gammas[1:][-1:]))
        figures += _search.retention(f"{_name(study, history)}, gamma {span}", study, trials)
    return figures


def importance(trials: Sequence[Trial], names: Sequence[str]) -> dict[str, float]:
    """Return each parameter's share of the objective's variance, by Optuna's fANOVA.

    The shares refer to the range that was tried, and sum to 1. Only trials with all of these
    parameters count. The result is empty with fewer than ``ENOUGH`` of them, or if their objective
    does not vary. All trials must have an objective.
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
    spaces = {name: distribution([trial.parameters[name] for trial in whole]) for name in names}
    for trial in whole:
        tried = {name: trial.parameters[name] for name in names}
        study.add_trial(create_trial(params=tried, distributions=spaces, value=trial.objective))
    return get_param_importances(study, evaluator=FanovaImportanceEvaluator(n_trees=TREES, seed=0))


def distribution(values: Sequence[bool | int | float | str]) -> BaseDistribution:
    """Return an Optuna distribution that covers some values.

    It is categorical for names and booleans, else a range, which is logarithmic if it is wide.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if any(isinstance(value, bool | str) for value in values):
        return CategoricalDistribution(sorted(set(values), key=str))
    found = list(map(float, values))
    return FloatDistribution(min(found), max(found), log=spread_widely(found))
