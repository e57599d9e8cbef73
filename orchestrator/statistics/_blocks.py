"""The scores of recipes over (dataset, model) blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from orchestrator.results import StudyResult
from trainables.errors import InputError

__all__ = ["Block", "BlockScores", "block_scores"]

Block = tuple[str, str]


@dataclass(frozen=True)
class BlockScores:
    """Scores of the recipes that have one on every block.

    Attributes:
        scores: Recipe to block to score, the mean over seeds.
        blocks: The (dataset, model) blocks.
        incomplete: Recipe to the blocks on which it has no score; these are not ranked.
        seeds: Fewest and most seeds of a score.
    """

    scores: dict[str, dict[Block, float]]
    blocks: tuple[Block, ...]
    incomplete: dict[str, tuple[Block, ...]]
    seeds: tuple[int, int]


def block_scores(results: Iterable[StudyResult], metric: str) -> BlockScores:
    """Arrange test metrics of finished studies by recipe and block.

    Args:
        results: Studies of any number of sweeps and tasks.
        metric: A name in ``StudyResult.test``, also of a suite, such as ``cifar10-c/ece``.

    Raises:
        InputError: If a recipe occurs twice on a block (of two protocols, say), or no two recipes
            have the metric on every block.
    """
    found: dict[str, dict[Block, float]] = {}
    origins: dict[tuple[str, Block], StudyResult] = {}
    counts: set[int] = set()
    blocks: dict[Block, None] = {}
    for result in results:
        block = (result.dataset or result.task, result.model)
        own = found.setdefault(result.recipe, {})
        blocks[block] = None
        if other := origins.get((result.recipe, block)):
            raise InputError(
                f"{result.recipe} on {' and '.join(block)} twice: {other.task} of {other.sweep} "
                f"and {result.task} of {result.sweep}; choose one"
            )
        origins[result.recipe, block] = result
        values = [row[metric] for row in result.test if metric in row]
        if result.status == "finished" and values and math.isfinite(score := fmean(values)):
            own[block] = score
            counts.add(len(values))
    gaps = {recipe: tuple(b for b in blocks if b not in own) for recipe, own in found.items()}
    complete = {recipe: own for recipe, own in found.items() if not gaps[recipe]}
    if len(complete) < 2:
        raise InputError(
            f"{len(complete)} recipes have a test {metric} on all of {len(blocks)} blocks; "
            "ranks need at least 2"
        )
    incomplete = {recipe: missing for recipe, missing in gaps.items() if missing}
    return BlockScores(complete, tuple(blocks), incomplete, (min(counts), max(counts)))
