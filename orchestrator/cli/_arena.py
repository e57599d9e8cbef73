"""``calsweep arena``: every calibrator against every other on many sets of logits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli._console import echo, progress_bar
from orchestrator.cli._options import SweepFile, TextFormat

if TYPE_CHECKING:
    from orchestrator.statistics import Arena, Interval, Standing

HEADINGS = ("recipe", "strength", "wins %", "NLL gain", "Brier gain", "ECE % gain", "CPU s")


def arena(
    sweep: SweepFile,
    format: TextFormat = "terminal",
    diagram: Annotated[
        Path | None, typer.Option(help="Write the critical-difference diagram: .pdf, .png, .svg.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes; default: one a core.")
    ] = None,
) -> None:
    """Fit every calibrator of a sweep of logits on every split at its published values.

    Nothing is searched, tracked or stored, so that thousands of fits take minutes. The sweep file
    is one that `calsweep run` takes too.
    """
    from orchestrator.cli._ranks import check_diagram, save_diagram
    from orchestrator.running.arena import run_arena
    from orchestrator.statistics import arena as judge
    from orchestrator.statistics import block_scores, rank_comparison
    from orchestrator.storage.results import usual_baseline
    from orchestrator.sweep.spec import load_sweep

    check_diagram(diagram, "--diagram")
    spec = load_sweep(sweep)
    with progress_bar("fitting") as show:
        results = run_arena(spec, processes, show)
    found = judge(results, usual_baseline(results))
    for line in lines(found, format):
        echo(line)
    if diagram is not None:
        ranked = rank_comparison(block_scores(results, "nll").scores)
        save_diagram(ranked, "NLL", diagram, "--diagram")


def lines(found: Arena, format: str) -> Iterator[str]:
    """Yield the table of an arena, and what it is of."""
    table = [HEADINGS, *(_cells(standing) for standing in found.standings)]
    if format == "csv":
        yield from (",".join(cells) for cells in table)
        return
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    edge = "| " if format == "markdown" else ""
    for number, cells in enumerate(table):
        padded = (text.ljust(width) for text, width in zip(cells, widths, strict=True))
        yield f"{edge}{(' | ' if edge else '  ').join(padded)}{edge[::-1]}".rstrip(" ")
        if edge and number == 0:
            yield f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    yield ""
    yield (
        f"{len(found.networks)} networks ({', '.join(found.networks)}), {found.tasks} tasks, "
        f"{found.seeds} splits of each; gains are over {found.baseline!r}, above 0 is better; "
        "strength: points of Elo over it, by the Bradley-Terry model of who has the lower NLL; in "
        "brackets 95 % intervals, networks and splits resampled"
    )
    for recipe, reason in found.absent.items():
        yield f"left out: {recipe} ({reason})"


def _cells(standing: Standing) -> tuple[str, ...]:
    gains = standing.gains
    return (
        standing.recipe,
        f"{standing.strength:.0f}",
        _shown(standing.wins, 0, 100),
        _shown(gains["nll"], 4, sign="+"),
        _shown(gains["brier"], 4, sign="+"),
        _shown(gains["ece"], 2, 100, sign="+"),
        "" if standing.seconds is None else f"{standing.seconds:.3f}",
    )


def _shown(found: Interval, digits: int, factor: float = 1, sign: str = "") -> str:
    value, low, high = (f"{factor * end:{sign}.{digits}f}" for end in found)
    return f"{value} [{low}; {high}]"
