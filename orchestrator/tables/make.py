"""Comparison tables from study results, in five formats.

``make_table(results, options)`` arranges what ``calsweep table`` shows, ``build_table(results)``
the plain table; ``render(table, "markdown")`` writes, ``to_rich(table)`` is for a live terminal.
``comparison_table(sweep)`` is the same from the tracking server. Nothing else here reads files (a
layout of one's own apart) or that server.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from orchestrator.storage.results import StudyResult
from orchestrator.sweep.tracking_uri import default_tracking_uri
from orchestrator.tables.arrange import build_table, by_pair, select
from orchestrator.tables.renderers import RENDERERS
from orchestrator.tables.table import ComparisonTable
from trainables.common.errors import InputError


@dataclass(frozen=True)
class TableOptions:
    """What a table shows, as ``calsweep table --help`` describes its options.

    See ``build_table`` for ``rows``, which a layout excludes, and ``arrange_layout`` for
    ``columns`` and ``published``, which need one.
    """

    metrics: Sequence[str] | None = None
    recipes: Sequence[str] | None = None
    tasks: Sequence[str] | None = None
    rows: Sequence[str] = ("recipe",)
    layout: str | None = None
    columns: str = "auto"
    published: bool = False
    baseline: str | None = None
    floor: bool = False
    runs: bool = False


def make_table(
    results: Iterable[StudyResult], options: TableOptions | None = None
) -> ComparisonTable:
    """Arrange results, one a recipe and task, as asked for; see ``combine`` for several sweeps.

    Raises:
        InputError: If an option names something missing, or two do not go together.
    """
    wanted = options or TableOptions()
    chosen = by_pair(select(results, wanted.recipes, wanted.tasks))
    if wanted.layout is None:
        if wanted.published:
            raise InputError("--show published needs --layout, which names the paper's table")
        table = build_table(chosen.values(), wanted.metrics, wanted.rows)
    else:
        if tuple(wanted.rows) != ("recipe",):
            raise InputError("--rows and --layout exclude each other: a layout has its own rows")
        # pandas, which reads published figures, is needed here only
        from orchestrator.tables.layouts import arrange_layout, load_layout

        layout = load_layout(wanted.layout)
        table = arrange_layout(layout, chosen, wanted.metrics, wanted.columns, wanted.published)
    table = replace(table, floor=wanted.floor, runs=wanted.runs)
    return table.compared_with(wanted.baseline) if wanted.baseline else table


def render(table: ComparisonTable, format: str) -> str:
    """Write a table as text.

    Figures are mean ± sample standard deviation over seeds, accuracy and calibration errors in
    percent, NLL and Brier as they are. In each column the best is bold and the second underlined
    (not in plain ``terminal`` text), compared as printed, so equal prints share a mark. ``csv``
    holds plain fractions: of a plain table one line a study with every metric, of a layout one line
    a cell. ``json`` is one document of cells, fractions too.

    Args:
        table: What ``make_table`` or ``build_table`` returned.
        format: ``terminal``, ``markdown``, ``csv``, ``json``, ``latex`` or ``html``.

    Raises:
        InputError: If there is no such format.
    """
    if format not in RENDERERS:
        raise InputError(f"unknown format {format!r}; there are: {', '.join(RENDERERS)}")
    return RENDERERS[format](table)


def comparison_table(
    sweep: str,
    *,
    tracking_uri: str | None = None,
    metrics: Sequence[str] | None = None,
) -> ComparisonTable:
    """Build the comparison table of a sweep from the tracking server.

    Args:
        sweep: The sweep's name.
        tracking_uri: Where to ask; see ``default_tracking_uri``.
        metrics: Columns, such as ``acc`` and ``ece``; see ``build_table``.

    Raises:
        InputError: If there is no such sweep or metric; the text lists what there is.
    """
    from orchestrator.tracking import study_results

    results = study_results(tracking_uri or default_tracking_uri(), sweep)
    return build_table(results, metrics)
