from ._arena import ARENA_METRICS, Arena, Interval, Standing, arena
from ._bootstrap import Difference, Measured, PairedBootstrap, measure, paired_bootstrap
from ._claims import ClaimVerdict, PairVerdict, judge_claim
from ._columns import with_columns
from ._compare import (
    Board,
    KeptPredictions,
    StoredPredictions,
    TaskComparison,
    board,
    compare,
    search_gains,
)
from ._contrast import Contrast, contrast
from ._deploy import Answer, Spread, deployment, spreads
from ._diagram import critical_difference_diagram
from ._letters import letters
from ._ranks import BlockScores, PairTest, RankComparison, block_scores, holm, rank_comparison
from ._resampled import BOOTSTRAPPED
from ._ties import Need, Ties, ties

__all__ = [
    "ARENA_METRICS",
    "BOOTSTRAPPED",
    "Answer",
    "Arena",
    "BlockScores",
    "Board",
    "ClaimVerdict",
    "Contrast",
    "Difference",
    "Interval",
    "KeptPredictions",
    "Measured",
    "Need",
    "PairTest",
    "PairVerdict",
    "PairedBootstrap",
    "RankComparison",
    "Spread",
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
    "deployment",
    "holm",
    "judge_claim",
    "letters",
    "measure",
    "paired_bootstrap",
    "rank_comparison",
    "search_gains",
    "spreads",
    "ties",
    "with_columns",
]
