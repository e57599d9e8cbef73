"""``calsweep compare`` and ``calsweep ranks``: which differences are more than chance."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli._console import echo, output
from orchestrator.cli._options import Storage, TrackingUri
from trainables.errors import InputError

if TYPE_CHECKING:
    from orchestrator.results import StudyResult
    from orchestrator.statistics import BlockScores, RankComparison, TaskComparison

__all__ = ["compare", "ranks"]

HEADINGS = ("noise floor", "difference", "95% interval", "verdict")
FIELDS = ("task", "metric", "recipe", "value", "floor", "difference", "low", "high", "verdict")


class CompareFormat(StrEnum):
    """How a comparison is printed."""

    terminal = "terminal"
    markdown = "markdown"
    csv = "csv"


Metric = Annotated[str, typer.Option(help="What is compared, such as ece or acc.")]


def compare(
    sweep: Annotated[str, typer.Argument(help="The sweep's name.")] = "demo",
    task: Annotated[str | None, typer.Option(help="Only this task; default: each.")] = None,
    baseline: Annotated[str, typer.Option(help="The recipe to compare with.")] = "ce",
    metric: Metric = "ece",
    draws: Annotated[int, typer.Option(min=1, help="Resamples of the test rows.")] = 2000,
    seed: Annotated[int, typer.Option(help="Decides the resamples.")] = 0,
    format: Annotated[CompareFormat, typer.Option(help="Output format.")] = CompareFormat.terminal,
    tracking_uri: TrackingUri = None,
    storage: Storage = "calsweep-storage",
) -> int:
    """Compare recipes with a baseline: paired bootstrap over test rows, and noise floors."""
    from rich.console import Console
    from rich.progress import Progress

    from orchestrator import statistics
    from trainables.artifacts import ArtifactStore
    from trainables.paths import storage_folder

    tasks = _by_task(_results([sweep], tracking_uri, storage), task)
    store = ArtifactStore(storage_folder(storage) / "artifacts")
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        line = progress.add_task("resampling", total=sum(map(len, tasks.values())))
        found = [
            statistics.compare(
                results,
                store,
                metric,
                baseline=baseline,
                draws=draws,
                seed=seed,
                done=lambda recipe: progress.advance(line),
            )
            for results in tasks.values()
        ]
    if format is CompareFormat.csv:
        echo(_csv(found), nl=False)
        return 0
    for comparison in found:
        _show(comparison, format)
    return 0


def ranks(
    sweeps: Annotated[list[str], typer.Argument(help="Names of sweeps.", show_default=False)],
    metric: Metric = "ece",
    control: Annotated[
        str, typer.Option(help="Compare with this recipe only, which needs fewer blocks.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="Write the critical-difference diagram: .pdf, .png, .svg.")
    ] = None,
    tracking_uri: TrackingUri = None,
    storage: Storage = "calsweep-storage",
) -> int:
    """Rank recipes over (dataset, model) blocks and test whether they differ."""
    from orchestrator.statistics import block_scores, rank_comparison
    from orchestrator.tables import column

    if out is not None and out.suffix not in (".pdf", ".png", ".svg"):
        raise InputError(f"--out {out}: ending {out.suffix!r}, allowed are .pdf, .png, .svg")
    shown = column(metric)
    found = block_scores(_results(sweeps, tracking_uri, storage), metric)
    if control and control not in found.scores:
        there = ", ".join(found.scores)
        raise InputError(f"--control {control!r} is not ranked; there are: {there}")
    comparison = rank_comparison(found.scores, higher=shown.higher, control=control)
    for text in _rank_lines(comparison, found, shown.heading):
        output().print(text, markup=False)
    if out is not None:
        # Bars join recipes of which no two differ, so that takes the tests of all pairs.
        pairwise = rank_comparison(found.scores, higher=shown.higher)
        _save_diagram(pairwise, shown.heading, out)
    return 0


def _results(sweeps: list[str], tracking_uri: str | None, storage: str) -> list[StudyResult]:
    from orchestrator.selection import default_tracking_uri
    from orchestrator.tracking import study_results

    uri = tracking_uri or default_tracking_uri(storage)
    return [result for name in dict.fromkeys(sweeps) for result in study_results(uri, name)]


def _by_task(results: list[StudyResult], task: str | None) -> dict[str, list[StudyResult]]:
    tasks: dict[str, list[StudyResult]] = {}
    for result in results:
        tasks.setdefault(result.task, []).append(result)
    if task is None:
        return tasks
    if task not in tasks:
        raise InputError(f"--task {task!r} is not in this sweep; there are: {', '.join(tasks)}")
    return {task: tasks[task]}


def _show(comparison: TaskComparison, format: CompareFormat) -> None:
    from rich.box import MARKDOWN, SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from orchestrator.tables import column

    markdown = format is CompareFormat.markdown
    console, shown = output(), column(comparison.bootstrap.metric)
    console.print(f"{'**' * markdown}{comparison.task}{'**' * markdown}", markup=False)
    table = Table(box=MARKDOWN if markdown else SIMPLE_HEAD, padding=(0, 1))
    for heading in ("recipe", shown.heading, *HEADINGS):
        is_text = heading in ("recipe", "verdict")
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=True)
    for cells in _rows(comparison):
        table.add_row(*map(Text, cells))
    console.print(table)
    for note in _notes(comparison):
        console.print(note, markup=False)


def _rows(comparison: TaskComparison) -> Iterator[tuple[str, ...]]:
    from orchestrator.tables import column

    bootstrap, shown = comparison.bootstrap, column(comparison.bootstrap.metric)
    for recipe, value in bootstrap.values.items():
        floor = comparison.floors.get(recipe)
        start = (recipe, shown.show(value), "–" if floor is None else shown.show(floor))
        if recipe == bootstrap.baseline:
            yield (*start, "", "", "baseline")
            continue
        found = bootstrap.differences[recipe]
        ends = f"[{shown.show_change(found.low)}, {shown.show_change(found.high)}]"
        yield (*start, shown.show_change(found.value), ends, _verdict(comparison, recipe))
    for recipe, reason in comparison.absent.items():
        yield (recipe, "", "", "", "", reason)


def _verdict(comparison: TaskComparison, recipe: str) -> str:
    from orchestrator.tables import column

    bootstrap = comparison.bootstrap
    if recipe == bootstrap.baseline:
        return "baseline"
    found = bootstrap.differences[recipe]
    higher = column(bootstrap.metric).higher
    side = "better *" if (found.low > 0) == higher else "worse *"
    words = [side] if found.excludes_zero else []
    words += ["≈ inside the noise floor"] if comparison.inside_floor(recipe) else []
    return ", ".join(words)


def _notes(comparison: TaskComparison) -> Iterator[str]:
    bootstrap = comparison.bootstrap
    counts = sorted({*bootstrap.seeds.values()})
    seeds = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    yield (
        f"{bootstrap.rows} test rows, {bootstrap.draws} paired resamples, seeds a recipe: {seeds}; "
        "* the interval excludes 0"
    )
    if comparison.floors:
        yield (
            "noise floor: what a perfectly calibrated network with the same probabilities shows; "
            "≈ a difference not above it, for which the interval is too narrow"
        )


def _csv(comparisons: list[TaskComparison]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*FIELDS, "inside_floor", "rows", "draws", "seeds"])
    for comparison in comparisons:
        for recipe in (*comparison.bootstrap.values, *comparison.absent):
            writer.writerow(_csv_row(comparison, recipe))
    return stream.getvalue()


def _csv_row(comparison: TaskComparison, recipe: str) -> list[object]:
    bootstrap = comparison.bootstrap
    start = [comparison.task, bootstrap.metric, recipe]
    if recipe in comparison.absent:
        return [*start, *[None] * 5, comparison.absent[recipe], None, None, None, None]
    found = bootstrap.differences.get(recipe)
    gap = [None] * 3 if found is None else [found.value, found.low, found.high]
    figures = [bootstrap.values[recipe], comparison.floors.get(recipe), *gap]
    verdict = [_verdict(comparison, recipe), int(comparison.inside_floor(recipe))]
    return [*start, *figures, *verdict, bootstrap.rows, bootstrap.draws, bootstrap.seeds[recipe]]


def _rank_lines(comparison: RankComparison, found: BlockScores, heading: str) -> Iterator[str]:
    low, high = found.seeds
    seeds = str(low) if low == high else f"{low} to {high}"
    yield (
        f"average rank by {heading} over {comparison.blocks} (dataset, model) blocks, "
        f"mean over seeds: {seeds}"
    )
    for recipe, rank in comparison.ranks.items():
        yield f"  {rank:5.2f}  {recipe}"
    friedman = comparison.friedman
    yield f"Friedman, all alike: {'not testable' if friedman is None else f'p = {friedman:.4f}'}"
    if comparison.critical_difference is not None:
        width = comparison.critical_difference
        yield f"critical difference of average ranks (Nemenyi): {width:.2f}"
    yield from _pair_lines(comparison)
    for recipe, blocks in found.incomplete.items():
        listing = ", ".join("/".join(block) for block in blocks)
        yield f"not ranked: {recipe} has no figure on {listing}"


def _pair_lines(comparison: RankComparison) -> Iterator[str]:
    title = "Wilcoxon's signed-rank test, p with Holm's correction"
    count = len(comparison.pairs)
    if not comparison.testable:
        yield f"{title}: not testable, too few blocks ({comparison.blocks}) for {count} pairs"
        return
    yield f"{title} for {count} pairs (* below 5%):"
    for pair in comparison.pairs:
        p = "not testable" if pair.p is None else f"p = {pair.p:.4f}{' *' * pair.differs}"
        yield f"  {pair.first} before {pair.second}: {p}"


def _save_diagram(comparison: RankComparison, title: str, out: Path) -> None:
    from orchestrator.statistics import critical_difference_diagram

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        critical_difference_diagram(comparison, title).savefig(out, dpi=150)
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written: {error}") from error
    echo(f"wrote {out}")
