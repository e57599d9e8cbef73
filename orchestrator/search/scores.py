"""How trials are scored and chosen: the guard, and differences judged on the same rows."""

import sys
from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor

from orchestrator.search.choice import FINISHED, Margin, Rank, stands_for_choice
from orchestrator.search.study_state import Past, StudyState
from orchestrator.search.trials import Ended
from orchestrator.storage.events import TrialScored
from trainables.common.stages import ArtifactRef
from trainables.stages import ValidationRows, objective_terms

UNKNOWN = sys.float_info.max
"""A standard error that cannot be told; finite, so that a journal can hold it."""

Predictions = Callable[[ArtifactRef], ValidationRows]
"""Returns the stored validation rows of an outcome."""


def no_predictions(ref: ArtifactRef) -> ValidationRows:
    """Raise ``LookupError``: for a search whose rule never compares rows."""
    raise LookupError(f"no predictions are known of {ref.stage} {ref.key}")


class Scores:
    """Scores the trials of studies, by name, and chooses between them.

    Decisions of the ``past`` that are final are repeated; ``predictions`` are asked for by rules
    that compare configurations row by row.
    """

    def __init__(
        self, studies: Mapping[str, StudyState], past: Past, predictions: Predictions
    ) -> None:
        self._studies, self._past, self._predictions = studies, past, predictions

    def score(self, study: StudyState, one: Ended, position: int = 0) -> TrialScored | None:
        """Return the value that a trial on a seed is minimised by; None for a failed one."""
        metrics, status = one.outcome.metrics, one.outcome.status
        if status == "failed":
            return None
        reference = self._reference(study, position)
        if reference is None:
            return TrialScored(key=one.trial.key, objective=study.rule.score(metrics))
        error = None
        if study.rule.pairs_accuracy and status == FINISHED:
            error = self._accuracy_error(one, reference)
        value = study.rule.score(metrics, reference.outcome.metrics, error or 0.0)
        return TrialScored(key=one.trial.key, objective=value, error=error)

    def choice(self, study: StudyState, trials: int) -> tuple[Ended | None, Margin | None]:
        """Return the choice of a study from its first trials, which are all scored."""
        ranked = [
            Rank(objective, number)
            for number, objective in study.objectives.items()
            if number < trials
            and stands_for_choice(study.trials[number].role, study.outcomes[number].status)
        ]
        if not ranked:
            return None, None
        best, margin = study.rule.choose(ranked, partial(self._margin, study))
        return study.ended(best.number), margin

    def _reference(self, study: StudyState, position: int = 0) -> Ended | None:
        """Return the plain cross-entropy that guards a study on a seed, if one does."""
        reference = self._studies.get(study.plan.reference or "")
        return reference.seeds.get(position) if reference else None

    def _accuracy_error(self, one: Ended, plain: Ended) -> float:
        known = self._past.accuracy_error(one.trial)
        if known is not None:
            return known
        lost = self._terms("acc", plain) - self._terms("acc", one)
        return standard_error(lost, self._predictions(one.ref).images)

    def _terms(self, metric: str, one: Ended) -> Tensor:
        rows = self._predictions(one.ref)
        return objective_terms(metric, rows.logits, rows.labels)

    def _margin(self, study: StudyState, best: Rank, default: Rank) -> Margin:
        known = self._past.margin(study.plan.id)
        if known is not None:
            return known
        first, other = study.ended(best.number), study.ended(default.number)
        change = self._guarded_terms(study, other) - self._guarded_terms(study, first)
        error = standard_error(change, self._predictions(first.ref).images)
        return Margin(default.objective - best.objective, error)

    def _guarded_terms(self, study: StudyState, one: Ended) -> Tensor:
        """Return the share of each row in the guarded objective of a trial, up to a constant."""
        terms, reference = self._terms(study.rule.metric, one), self._reference(study)
        if reference is None or one.objective == one.outcome.metrics[study.rule.objective]:
            return terms
        return terms + self._terms("acc", reference) - self._terms("acc", one)


def standard_error(difference: Tensor, images: Tensor | None = None) -> float:
    """Return the standard error of a mean of differences (N,), one a row.

    Where rows are pixels, their ``images`` (N,) are independent: the error is that of the
    sums over images, with the number of pixels taken as known. It cannot be estimated from a
    single row or image: then it is ``UNKNOWN``, of which no multiple is exceeded.
    """
    sums = difference
    if images is not None:
        units, place = images.unique(return_inverse=True)
        away = difference - difference.mean()
        sums = away.new_zeros(len(units)).index_add_(0, place, away)
    if len(sums) < 2:
        return UNKNOWN
    return float(sums.std() * len(sums) ** 0.5 / len(difference))
