"""Tests the claims of papers on stored runs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from orchestrator.statistics._bootstrap import DRAWS, Difference, Measured
from orchestrator.statistics._compare import Board, board
from orchestrator.statistics._contrast import Contrast, contrast, reach
from orchestrator.statistics._ranks import LEVEL, holm
from orchestrator.storage.results import StudyResult
from orchestrator.tables.claims import Claim
from orchestrator.tables.columns import column
from trainables.common.later import torch
from trainables.common.stages import GIVEN
from trainables.metrics import METRICS
from trainables.store.artifacts import ArtifactStore

CONFIRMED, REFUTED, NOT_TESTABLE = "confirmed", "refuted", "not testable here"
HOLDS, FAILS, LOST = "holds in this regime", "fails in this regime", "accuracy lost"
HOLDS_GIVEN, FAILS_GIVEN = "holds on these logits", "fails on these logits"
TOLERANCE = 0.02
"""A pair is not judged if accuracy is more than this below that of the method alone."""
AS_GOOD = 0.03
"""A network is in the paper's regime if its accuracy is at most this much below the paper's
worst network."""


@dataclass(frozen=True)
class PairVerdict:
    """The verdict on one pair of recipes of a claim, on one task.

    Attributes:
        better: The recipe that is claimed to be better.
        values: Metric of both recipes, the mean over seeds; fractions (nats for NLL).
        accuracies: Accuracy of both recipes, the mean over seeds.
        difference: ``better`` minus ``than``, with its own 95% interval over seeds and test rows.
        p: p-value with Holm's correction for all pairs of the claim; 1 if it was not tested.
        detectable: The smallest difference that such a comparison finds in 80% of cases.
        seeds: Number of seeds that both have.
        verdict: ``confirmed`` or ``refuted`` in the paper's regime, ``holds in this regime`` or
            ``fails in this regime`` elsewhere, ``holds on these logits`` or ``fails on these
            logits`` for given logits, ``not testable here`` or ``accuracy lost``.
        given: Whether the recipes calibrate given logits.
    """

    sweep: str
    task: str
    better: str
    than: str
    values: tuple[float, float]
    accuracies: tuple[float, float]
    difference: Difference
    p: float
    detectable: float
    seeds: int
    verdict: str
    given: bool = False


@dataclass(frozen=True)
class ClaimVerdict:
    """The verdict of stored runs on a claim, over all its ``pairs`` of recipes."""

    claim: Claim
    pairs: tuple[PairVerdict, ...]

    @property
    def verdict(self) -> str:
        """Return the verdict over all pairs, without those that lost accuracy.

        It is that of the decided pairs in the paper's regime, else of those in other regimes, else
        of those on given logits. It is against the claim if one of these pairs is. If all of them
        are for the claim, the verdict is too, unless any pair is not testable: then, and if no pair
        is decided, it is ``not testable here``.
        """
        found = {pair.verdict for pair in self.pairs} - {LOST}
        words = ((REFUTED, CONFIRMED), (FAILS, HOLDS), (FAILS_GIVEN, HOLDS_GIVEN))
        for against, favour in words:
            if against in found:
                return against
            if favour in found:
                return NOT_TESTABLE if NOT_TESTABLE in found else favour
        return NOT_TESTABLE


@dataclass(frozen=True)
class _Pair:
    better: StudyResult
    than: StudyResult
    measured: Board
    own: Contrast
    accuracies: tuple[float, float]
    lost: bool


def judge_claim(
    claim: Claim,
    results: Iterable[StudyResult],
    store: ArtifactStore,
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> ClaimVerdict:
    """Test every pair of recipes of a claim by ``contrast``.

    A claim applies only to networks that kept their accuracy: for both recipes, it must be above
    twice chance (75% with two classes), and at most ``TOLERANCE`` below their method alone, if that
    was run. In a claim on accuracy, this is required of ``than`` only. Other pairs do not count in
    Holm's correction. A pair decides if its difference is on one side of the margin at the
    5% level, over seeds and test rows. One seed of trained networks never decides; without a
    margin, neither does a difference inside the noise floor. The seed used for the search is left
    out if all studies of the pair have others, because the search selected for it.

    The verdicts ``confirmed`` and ``refuted`` need networks about as accurate as the paper's (see
    ``Claim.accuracy``) on the whole data set. Given logits have no other networks, so a single seed
    is judged over test rows, and the verdict is about these logits.

    Seconds and metrics of suites have one figure per seed, so they are judged over seeds only.

    Args:
        claim: The claim.
        results: Studies of any number of sweeps and tasks.
        store: The store ``STORAGE/artifacts`` that the sweeps wrote to.
        draws: Number of resamples of the test rows.
        seed: Determines the resamples.
    """
    pairs = [_measured(claim, own, store, draws, seed) for own in _pairs(claim, results)]
    tested = [number for number, pair in enumerate(pairs) if not pair.lost]
    raw = [_p_value(claim, pairs[number]) for number in tested]
    corrected = dict(zip(tested, holm(raw)[1].tolist(), strict=True))
    level = LEVEL / max(len(tested), 1)
    return ClaimVerdict(
        claim,
        tuple(_judged(claim, pair, corrected.get(n, 1.0), level) for n, pair in enumerate(pairs)),
    )


def _pairs(claim: Claim, results: Iterable[StudyResult]) -> Iterator[tuple[StudyResult, ...]]:
    """Yield for each pair with predictions its two studies and those of the methods alone."""
    tasks: dict[tuple[str, str], dict[str, StudyResult]] = {}
    for result in results:
        measured = result.status == "finished" and result.predictions
        if claim.speaks_of(result.dataset) and measured:
            tasks.setdefault((result.sweep, result.task), {})[result.recipe] = result
    for studies in tasks.values():
        known = [recipe for recipe, study in studies.items() if _has(study, claim.metric)]
        for pair in claim.pairs(known):
            alone = [_alone(studies[recipe]) for recipe in pair]
            names = dict.fromkeys((*pair, *alone))
            yield _unseen([studies[name] for name in names if name in studies])


def _unseen(studies: Sequence[StudyResult]) -> tuple[StudyResult, ...]:
    """Return studies without the seed used for the search, if all have others.

    If one was searched, all lose that seed, so that seeds stay paired.
    """
    others = [
        tuple(key for key in study.predictions if key != study.searched_predictions)
        for study in studies
    ]
    if not any(study.searched for study in studies) or not all(others):
        return tuple(studies)
    return tuple(_of_seeds(*pair) for pair in zip(studies, others, strict=True))


def _of_seeds(study: StudyResult, keys: Sequence[str]) -> StudyResult:
    kept = [place for place, key in enumerate(study.predictions) if key in keys]
    return replace(
        study,
        predictions=tuple(keys),
        test=tuple(study.test[place] for place in kept if study.test),
        seconds=tuple(study.seconds[place] for place in kept if study.seconds),
    )


def _by_seed(study: StudyResult, metric: str) -> list[float]:
    """Return for each seed the seconds, or a metric's mean over the suites of foreign data."""
    if metric == "seconds":
        return list(study.seconds)
    own = [
        [v for k, v in seed.items() if k.startswith("ood-") and k.endswith(f"/{metric}")]
        for seed in study.test
    ]
    return [fmean(values) for values in own if values]


def _board(
    claim: Claim,
    studies: Sequence[StudyResult],
    exact: Board,
    store: ArtifactStore,
    draws: int,
    seed: int,
) -> Board:
    """Return the claim's metric of two studies: resampled if possible, else as stored per seed."""
    if claim.metric in METRICS.measurable:
        return board(studies, store, claim.metric, draws=draws, seed=seed)
    values = {s.recipe: torch.tensor(_by_seed(s, claim.metric)).double() for s in studies}
    figures = {name: Measured(own, own[:, None]) for name, own in values.items()}
    return replace(exact, metric=claim.metric, figures=figures, floors={})


def _has(study: StudyResult, metric: str) -> bool:
    return metric in METRICS.measurable or len(_by_seed(study, metric)) == len(study.predictions)


def _measured(
    claim: Claim, studies: Sequence[StudyResult], store: ArtifactStore, draws: int, seed: int
) -> _Pair:
    better, than, *_ = studies
    exact = board(studies, store, "acc", draws=1)
    measured = _board(claim, studies[:2], exact, store, draws, seed)
    accuracy = {name: float(own.values.mean()) for name, own in exact.figures.items()}
    own = contrast(measured.figures[better.recipe], measured.figures[than.recipe])
    # In a claim on accuracy, the loss of accuracy is itself the finding.
    judged = (than,) if claim.metric == "acc" else (better, than)
    lost = any(_lost(study, accuracy, exact.classes) for study in judged)
    accuracies = (accuracy[better.recipe], accuracy[than.recipe])
    return _Pair(better, than, measured, own, accuracies, lost)


def _alone(study: StudyResult) -> str:
    return GIVEN if study.model == GIVEN else study.recipe.partition("+")[0]


def _lost(study: StudyResult, accuracy: dict[str, float], classes: int) -> bool:
    """Return True if accuracy is near chance, or too far below that of the method alone."""
    chance = 1 / classes
    least = min(2 * chance, (1 + chance) / 2)  # With two classes, twice chance is 100%.
    alone, own = accuracy.get(_alone(study), 0.0), accuracy[study.recipe]
    return own <= least or own < alone - TOLERANCE


def _at(claim: Claim) -> float:
    """Return the difference that separates a true from a false claim."""
    return -claim.margin if column(claim.metric).higher else claim.margin


def _p_value(claim: Claim, pair: _Pair) -> float:
    inside = pair.measured.inside_floor(pair.better.recipe, pair.than.recipe)
    unsure = pair.own.seeds == 1 and pair.than.model != GIVEN
    if unsure or (inside and not claim.margin):
        return 1.0
    return pair.own.p_value(_at(claim))


def _judged(claim: Claim, pair: _Pair, p: float, level: float) -> PairVerdict:
    own, better, than = pair.own, pair.better, pair.than
    verdict, given = LOST if pair.lost else NOT_TESTABLE, than.model == GIVEN
    if p <= LEVEL and not pair.lost:
        favour = (own.centre > _at(claim)) == column(claim.metric).higher
        least = claim.accuracy(than.dataset)
        reached = least is not None and pair.accuracies[1] >= least - AS_GOOD
        words = (CONFIRMED, REFUTED) if reached and not than.subset else (HOLDS, FAILS)
        words = (HOLDS_GIVEN, FAILS_GIVEN) if given else words
        verdict = words[0] if favour else words[1]
    first, second = (pair.measured.figures[study.recipe].values for study in (better, than))
    return PairVerdict(
        better.sweep,
        better.task,
        better.recipe,
        than.recipe,
        (float(first.mean()), float(second.mean())),
        pair.accuracies,
        own.interval(),
        p,
        reach(own.freedom, level) * own.error,
        own.seeds,
        verdict,
        given,
    )
