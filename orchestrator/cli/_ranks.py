"""``calsweep compare --ranks``: rank recipes over data sets and models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli._console import echo, output, print_json
from trainables.common.errors import InputError, UnwrittenError
from trainables.common.files import writing

if TYPE_CHECKING:
    from orchestrator.statistics import BlockScores, RankComparison
    from orchestrator.storage.results import StudyResult


def show_ranks(
    results: list[StudyResult], metric: str, control: str, out: Path | None, as_json: bool
) -> None:
    """Print the ranks of recipes over the blocks of ``block_scores``, and tests of differences."""
    from orchestrator.statistics import block_scores, rank_comparison
    from orchestrator.tables.columns import column

    shown = column(metric)
    found = block_scores(results, metric)
    if control and control not in found.scores:
        there = ", ".join(found.scores)
        raise InputError(f"--control {control!r} is not among the ranked recipes: {there}")
    comparison = rank_comparison(found.scores, higher=shown.higher, control=control)
    if as_json:
        print_json({"metric": metric, **asdict(comparison), "incomplete": found.incomplete})
    else:
        for text in _rank_lines(comparison, found, shown.heading):
            output().print(text)
    if out is not None:
        # The diagram's bars join recipes that do not differ pairwise, so test all pairs.
        pairwise = rank_comparison(found.scores, higher=shown.higher)
        save_diagram(pairwise, shown.heading, out)


def _rank_lines(comparison: RankComparison, found: BlockScores, heading: str) -> Iterator[str]:
    low, high = found.seeds
    seeds = str(low) if low == high else f"{low} to {high}"
    yield (
        f"average rank by {heading} over {comparison.blocks} {found.unit}, mean over seeds: {seeds}"
    )
    groups = comparison.letters()
    for recipe, rank in comparison.ranks.items():
        yield f"  {rank:5.2f}  {recipe}{f'  {groups[recipe]}' if groups else ''}"
    if groups:
        yield "recipes that share a letter do not differ significantly (all pairs, 5 %)"
    friedman = comparison.friedman
    p = "not testable" if friedman is None else f"p = {friedman:.4f}"
    yield f"Friedman test that all recipes are equal: {p}"
    if comparison.critical_difference is not None:
        width = comparison.critical_difference
        yield f"critical difference of average ranks (Nemenyi): {width:.2f}"
    yield from _pair_lines(comparison)
    for recipe, blocks in found.incomplete.items():
        listing = ", ".join("/".join(block) for block in blocks)
        yield f"not ranked: {recipe} has no test result on {listing}"


def _pair_lines(comparison: RankComparison) -> Iterator[str]:
    title = "Wilcoxon's signed-rank test, p with Holm's correction"
    count = len(comparison.pairs)
    if not comparison.testable:
        more = comparison.needed - comparison.blocks
        needs = f"; add at least {more} more" if more > 0 else ""
        few = f"{comparison.blocks} blocks are too few for {count} pairs{needs}"
        yield f"{title}: not testable, {few}"
        return
    yield f"{title} for {count} pairs (* below 5%):"
    for pair in comparison.pairs:
        p = "not testable" if pair.p is None else f"p = {pair.p:.4f}{' *' * pair.differs}"
        yield f"  {pair.first} before {pair.second}: {p}"


def check_diagram(out: Path | None, option: str = "--out") -> None:
    """Raise ``InputError`` if the ending of a diagram's file is unknown."""
    from trainables.charts.chart import KINDS

    if out is not None and out.suffix not in KINDS:
        allowed = ", ".join(KINDS)
        raise InputError(
            f"{option} {out}: expected a name that ends with one of {allowed}, got {out.suffix!r}"
        )


def save_diagram(comparison: RankComparison, title: str, out: Path, option: str = "--out") -> None:
    """Write the critical-difference diagram."""
    from orchestrator.statistics import critical_difference_diagram

    with writing(f"{option} {out}", UnwrittenError):
        out.parent.mkdir(parents=True, exist_ok=True)
        critical_difference_diagram(comparison, title).save(out)
    echo(f"wrote {out}")
