"""Whether stored runs confirm what papers claim."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import scipy

from orchestrator.statistics._bootstrap import DRAWS, LEVEL, Difference
from orchestrator.statistics._compare import compare
from orchestrator.storage.results import StudyResult
from orchestrator.tables.claims import Claim
from trainables.metrics import METRICS
from trainables.store.artifacts import ArtifactStore

CONFIRMED, REFUTED, NOT_TESTABLE = "confirmed", "refuted", "not testable here"
POWER = 0.8


@dataclass(frozen=True)
class PairVerdict:
    """One pair of recipes that a claim speaks of, on one task.

    Attributes:
        sweep: Whose runs they are.
        task: Its name.
        better: The recipe that is said to be better.
        than: The recipe that it is compared with.
        values: The metric of both, the mean over seeds; fractions (nats for NLL).
        difference: ``better`` minus ``than``, with an interval that holds for all pairs of a claim
            together (Bonferroni).
        detectable: The smallest difference that such a comparison finds in 80% of cases.
        verdict: ``confirmed``, ``refuted`` or ``not testable here``.
    """

    sweep: str
    task: str
    better: str
    than: str
    values: tuple[float, float]
    difference: Difference
    detectable: float
    verdict: str


@dataclass(frozen=True)
class ClaimVerdict:
    """What stored runs say of a claim.

    Attributes:
        claim: The claim.
        pairs: Every pair of recipes with predictions that it speaks of.
    """

    claim: Claim
    pairs: tuple[PairVerdict, ...]

    @property
    def verdict(self) -> str:
        """``refuted`` by any pair, ``confirmed`` by all of them; else ``not testable here``."""
        found = {pair.verdict for pair in self.pairs}
        if REFUTED in found:
            return REFUTED
        return CONFIRMED if found == {CONFIRMED} else NOT_TESTABLE


def judge_claim(
    claim: Claim,
    results: Iterable[StudyResult],
    store: ArtifactStore,
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> ClaimVerdict:
    """Compare every pair of recipes that a claim speaks of, by ``paired_bootstrap``.

    A pair confirms the claim if its whole interval lies where the claim says, and refutes it if it
    lies on the other side. A difference inside the noise floor does neither. The intervals speak of
    other test rows for the networks at hand, not of other seeds.

    Args:
        claim: The claim.
        results: Studies of any number of sweeps and tasks.
        store: The store ``STORAGE/artifacts`` that the sweeps wrote to.
        draws: Resamples of the test rows.
        seed: Decides the resamples.

    Raises:
        InputError: See ``StoredPredictions``.
    """
    pairs = list(_pairs(claim, results))
    level = 1 - (1 - LEVEL) / max(len(pairs), 1)
    return ClaimVerdict(
        claim, tuple(_judge(claim, pair, store, level, draws, seed) for pair in pairs)
    )


def _pairs(
    claim: Claim, results: Iterable[StudyResult]
) -> Iterator[tuple[StudyResult, StudyResult]]:
    """Yield the studies of each pair that has predictions."""
    tasks: dict[tuple[str, str], dict[str, StudyResult]] = {}
    for result in results:
        if claim.speaks_of(result.dataset) and result.status == "finished" and result.predictions:
            tasks.setdefault((result.sweep, result.task), {})[result.recipe] = result
    for studies in tasks.values():
        for better, than in claim.pairs(list(studies)):
            yield studies[better], studies[than]


def _judge(
    claim: Claim,
    pair: tuple[StudyResult, StudyResult],
    store: ArtifactStore,
    level: float,
    draws: int,
    seed: int,
) -> PairVerdict:
    better, than = pair
    found = compare(
        pair, store, claim.metric, baseline=than.recipe, level=level, draws=draws, seed=seed
    )
    difference = found.bootstrap.differences[better.recipe]
    higher = METRICS[claim.metric].better == "higher"
    worst, best = difference.high, difference.low
    if higher:
        worst, best = -difference.low, -difference.high
    verdict = NOT_TESTABLE
    if claim.margin > 0 or not found.inside_floor(better.recipe):
        verdict = CONFIRMED if worst < claim.margin else verdict
        verdict = REFUTED if best > claim.margin else verdict
    quantile = float(scipy.stats.norm.ppf((1 + level) / 2))
    reach = (difference.high - difference.low) / 2
    return PairVerdict(
        better.sweep,
        better.task,
        better.recipe,
        than.recipe,
        (found.bootstrap.values[better.recipe], found.bootstrap.values[than.recipe]),
        difference,
        reach * (1 + float(scipy.stats.norm.ppf(POWER)) / quantile),
        verdict,
    )
