"""Which differences in a table are more than chance.

``compare`` puts the recipes of one task beside a baseline: differences with paired bootstrap
intervals over test rows, and noise floors; ``search_gains`` compares each with the published
default that its search began with. ``rank_comparison`` asks for differences that hold over
(dataset, model) blocks. Both need no training: they read what evaluations have stored.
"""

from orchestrator.statistics._arena import ARENA_METRICS, Arena, Interval, Standing, arena
from orchestrator.statistics._bootstrap import Difference, PairedBootstrap, paired_bootstrap
from orchestrator.statistics._claims import ClaimVerdict, PairVerdict, judge_claim
from orchestrator.statistics._compare import (
    Board,
    KeptPredictions,
    StoredPredictions,
    TaskComparison,
    board,
    compare,
)
from orchestrator.statistics._contrast import Contrast, contrast
from orchestrator.statistics._diagram import critical_difference_diagram
from orchestrator.statistics._gain import search_gains
from orchestrator.statistics._letters import letters
from orchestrator.statistics._ranks import (
    BlockScores,
    PairTest,
    RankComparison,
    block_scores,
    holm,
    rank_comparison,
)
from orchestrator.statistics._resampled import BOOTSTRAPPED
from orchestrator.statistics._ties import Need, Ties, ties

__all__ = [
    "ARENA_METRICS",
    "BOOTSTRAPPED",
    "Arena",
    "BlockScores",
    "Board",
    "ClaimVerdict",
    "Contrast",
    "Difference",
    "Interval",
    "KeptPredictions",
    "Need",
    "PairTest",
    "PairVerdict",
    "PairedBootstrap",
    "RankComparison",
    "Standing",
    "StoredPredictions",
    "TaskComparison",
    "Ties",
    "arena",
    "block_scores",
    "board",
    "compare",
    "contrast",
    "critical_difference_diagram",
    "holm",
    "judge_claim",
    "letters",
    "paired_bootstrap",
    "rank_comparison",
    "search_gains",
    "ties",
]
