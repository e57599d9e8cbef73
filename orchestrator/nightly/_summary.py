"""What a person is told of a night, as blocks that every format renders."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from orchestrator.nightly._judge import changes
from orchestrator.nightly._record import CellKey, NightRecord
from orchestrator.nightly._verdict import Finding, Verdict

__all__ = [
    "HEADLINES",
    "Block",
    "failure_summary",
    "figure",
    "headline",
    "night_summary",
    "to_html",
    "to_markdown",
]

HEADLINES = {
    "ok": "as before",
    "suspicious": "as before, with suspicions",
    "regression": "something got worse",
    "incomplete": "results are missing",
}
STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:70em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em;border-bottom:1px solid #ccc;"
    "text-align:left;vertical-align:top}"
)


@dataclass(frozen=True)
class Block:
    """A heading with what stands below it.

    Attributes:
        heading: The heading.
        lines: Paragraphs.
        table: Rows of text, the first one being the head.
    """

    heading: str
    lines: tuple[str, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()


def headline(name: str, night: str, verdict: Verdict) -> str:
    """Return the outcome in one line."""
    count = len(verdict.alarms) or len(verdict.suspicions)
    what = "alarms" if verdict.alarms else "suspicions"
    tail = f" ({count} {what if count > 1 else what[:-1]})" if count else ""
    return f"nightly {name}, {night}: {HEADLINES[verdict.status]}{tail}"


def night_summary(name: str, history: Sequence[NightRecord], verdict: Verdict) -> list[Block]:
    """Return the summary of the last night of ``history``.

    Args:
        name: The benchmark.
        history: Records, oldest first, that night's last.
        verdict: Its verdict.
    """
    record = history[-1]
    found = [
        _findings("Alarms", verdict.alarms),
        _findings("Suspicions", verdict.suspicions),
        _findings("Improvements", verdict.improvements),
    ]
    return [
        Block(headline(name, record.night, verdict), verdict.notes),
        *(block for block in found if block.table),
        Block("Changes since the night before", changes(history[-2:]) or ("none",)),
        Block("Figures (mean over seeds)", table=_figures(record)),
        Block("Environment", table=(("what", "value"), *record.environment.items())),
    ]


def failure_summary(name: str, night: str, reason: str) -> list[Block]:
    """Return the summary of a night that could not run."""
    return [Block(f"nightly {name}, {night}: could not run", (reason,))]


def _findings(heading: str, findings: Sequence[Finding]) -> Block:
    head = ("cell", "tonight", "expected", "since", "what", "likely causes")
    rows = tuple(
        (
            str(found.cell),
            figure(found.cell, found.value),
            figure(found.cell, found.expected),
            found.since,
            found.text,
            "; ".join(found.causes) or "none known",
        )
        for found in findings
    )
    return Block(heading, table=(head, *rows) if rows else ())


def _figures(record: NightRecord) -> tuple[tuple[str, ...], ...]:
    metrics = record.shape.metrics
    rows = []
    for task in record.shape.tasks:
        for recipe in record.shape.recipes:
            reason = record.failed.get((recipe, task))
            cells = [CellKey(recipe, task, metric) for metric in metrics]
            values = [figure(cell, mean(record, cell)) for cell in cells]
            rows.append((task, recipe, *([f"failed: {reason}"] if reason else values)))
    return (("task", "recipe", *metrics), *rows)


def mean(record: NightRecord, cell: CellKey) -> float | None:
    """Return a night's mean over seeds; None where it has no figure."""
    values = record.cells.get(cell)
    return fmean(values.values()) if values else None


def figure(cell: CellKey, value: float | None) -> str:
    """Write a figure in the unit that people read."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    if cell.metric == "peak_memory":
        return f"{value / 2**20:.0f} MB"
    if cell.metric.endswith("_seconds"):
        return f"{value:.2f} s"
    return f"{value:.0f}" if cell.metric == "images_per_second" else f"{value:.4f}"


def to_markdown(blocks: Sequence[Block]) -> str:
    """Render blocks as Markdown; nothing in them can become markup."""
    return "\n".join(
        part
        for depth, block in zip([1, *[2] * len(blocks)], blocks, strict=False)
        for part in _markdown(block, depth)
    )


def _markdown(block: Block, depth: int) -> list[str]:
    parts = [f"{'#' * depth} {_plain(block.heading)}", ""]
    parts += [f"- {_plain(line)}" for line in block.lines]
    if block.table:
        rows = [f"| {' | '.join(map(_plain, row))} |" for row in block.table]
        parts += [rows[0], f"|{' --- |' * len(block.table[0])}", *rows[1:]]
    return [*parts, ""]


def _plain(text: str) -> str:
    escaped = html.escape(" ".join(text.split()), quote=False)
    for mark in "\\`*_[]|#":
        escaped = escaped.replace(mark, f"\\{mark}")
    return escaped


def to_html(blocks: Sequence[Block], drawings: Sequence[str] = ()) -> str:
    """Render blocks as one page that loads nothing.

    Args:
        blocks: The summary.
        drawings: SVG elements below the first block.
    """
    first, *rest = [_html(block, "h1" if i == 0 else "h2") for i, block in enumerate(blocks)]
    title = html.escape(blocks[0].heading)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body>{first}{''.join(drawings)}{''.join(rest)}"
        "</body></html>\n"
    )


def _html(block: Block, tag: str) -> str:
    text: Callable[[str], str] = html.escape
    lines = "".join(f"<p>{text(line)}</p>" for line in block.lines)
    rows = [
        "".join(f"<{cell}>{text(value)}</{cell}>" for value in row)
        for cell, row in zip(["th", *["td"] * len(block.table)], block.table, strict=False)
    ]
    table = f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>" if rows else ""
    return f"<{tag}>{text(block.heading)}</{tag}>{lines}{table}"
