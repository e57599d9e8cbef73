"""``calsweep logits arena``: compare all calibrators on many sets of logits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli._console import echo, print_csv, print_table, progress_bar
from orchestrator.cli._options import Processes, SweepFile, TextFormat
from trainables.common.words import many

if TYPE_CHECKING:
    from orchestrator.statistics import Arena, Interval, Standing

ENDS = ("", "_low", "_high")
GAINS = ("nll", "brier", "ece")
FIELDS = (
    *("recipe", "strength"),
    *(f"{name}{end}" for name in ("wins", *(f"{gain}_gain" for gain in GAINS)) for end in ENDS),
    *("cpu_seconds", "group"),
)
HEADINGS = (
    "recipe",
    "group",
    "strength",
    "wins %",
    "NLL gain",
    "Brier gain",
    "ECE % gain",
    "CPU s",
)


def arena(
    sweep: SweepFile,
    format: TextFormat = "terminal",
    diagram: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="File for a diagram of NLL ranks: .pdf, .png or .svg."),
    ] = None,
    processes: Processes = None,
) -> None:
    """Fit every calibrator of a sweep file on every split of its logits, and compare the results.

    Calibrators use their published parameter values. Nothing is searched, tracked or stored, so
    thousands of fits take minutes. The sweep file is the same as for `calsweep run`.
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
    show_arena(found, format)
    if diagram is not None:
        ranked = rank_comparison(block_scores(results, "nll").scores)
        save_diagram(ranked, "NLL", diagram, "--diagram")


def show_arena(found: Arena, format: str) -> None:
    """Print the results of an arena: as CSV, or as a table followed by notes."""
    if format == "csv":
        print_csv(FIELDS, map(_figures, found.standings))
        return
    print_table(HEADINGS, map(_cells, found.standings), HEADINGS[:2], format == "markdown")
    for note in _notes(found):
        echo(note)


def _notes(found: Arena) -> Iterator[str]:
    yield (
        f"{many(len(found.networks), 'network')} ({', '.join(found.networks)}), "
        f"{many(found.tasks, 'task')}, {many(found.seeds, 'split')} of each; "
        f"gains are relative to {found.baseline!r}, above 0 is better; "
        f"strength: Elo points relative to {found.baseline!r}, from a Bradley-Terry model in which "
        "the lower NLL wins; in brackets: 95 % intervals from resampled networks and splits"
    )
    if found.lacking:
        yield f"groups: too few networks for a test by NLL; add at least {found.lacking} more"
    else:
        yield "group: recipes that share a letter do not differ by NLL over networks (5 %)"
    for recipe, reason in found.absent.items():
        yield f"excluded: {recipe} ({reason})"


def _cells(standing: Standing) -> tuple[str, ...]:
    gains = standing.gains
    return (
        standing.recipe,
        standing.group,
        f"{standing.strength:.0f}",
        _shown(standing.wins, 0, 100),
        _shown(gains["nll"], 4, sign="+"),
        _shown(gains["brier"], 4, sign="+"),
        _shown(gains["ece"], 2, 100, sign="+"),
        "" if standing.seconds is None else f"{standing.seconds:.3f}",
    )


def _figures(standing: Standing) -> list[object]:
    ends = chain(standing.wins, *(standing.gains[metric] for metric in GAINS))
    return [standing.recipe, standing.strength, *ends, standing.seconds, standing.group]


def _shown(found: Interval, digits: int, factor: float = 1, sign: str = "") -> str:
    value, low, high = (f"{factor * end:{sign}.{digits}f}" for end in found)
    return f"{value} [{low}; {high}]"
