"""Show a night as Markdown, HTML and JUnit XML, and a series as sparkline, chart and CSV."""

import base64
import csv
import html
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product

from junitparser import Error, Failure, JUnitXml, TestCase, TestSuite

from orchestrator.nightly.record import WHOLE_NIGHT, CellKey, Finding, NightRecord, Verdict
from orchestrator.nightly.verdict.groups import Group, grouped
from orchestrator.nightly.verdict.judge import changes
from orchestrator.nightly.verdict.limits import measure_of
from orchestrator.storage.provenance import library_version
from orchestrator.tables.columns import templates
from orchestrator.tables.figures import MEMORY, measured, signed
from trainables.charts.chart import Chart, amount, drawn, layer, names, side_by_side, writable
from trainables.common.words import many
from trainables.metrics import METRICS

HEADLINES = {
    "ok": "as before",
    "not comparable": "not comparable with the night before, the benchmark was changed",
    "suspicious": "worse, for one night so far",
    "regression": "something got worse",
    "incomplete": "results are missing",
}
BLOCKS = "▁▂▃▄▅▆▇█"
GAP = "·"
RAREST = 1e-6  # Smaller chances are not shown: noise is not known that precisely.
COLUMNS = 3
NIGHTS = {"labelAngle": 0, "labelOverlap": "greedy", "labelSeparation": 10}
UNITS = {"peak_memory": (1 / MEMORY, "MB"), "images_per_second": (1, "images/s")}
SIGHT = "Smallest change that is found on the second night in nine of ten cases"

Series = Sequence[float | None]


@dataclass(frozen=True)
class Block:
    """A heading with lines of text and a table; the first row of the table is its header."""

    heading: str
    lines: tuple[str, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()


def headline(name: str, night: str, verdict: Verdict) -> str:
    """Return the verdict in one line."""
    groups = grouped(verdict.alarms or verdict.suspicions)
    tail = f": {told(groups[0])}" if groups else ""
    others = len(groups) - 1
    more = f"; {many(others, 'more finding')}" if others > 0 else ""
    return f"nightly {name}, {night}: {HEADLINES[verdict.status]}{tail}{more}"


def told(group: Group) -> str:
    """Return as text a group's worst finding (size and certainty if soft) and how many others."""
    worst, more = group[0], len(group) - 1
    text = worst.text
    if worst.kind == "soft" and worst.value is not None:
        before, after = figure(worst.cell, worst.expected), figure(worst.cell, worst.value)
        text = f"{worst.cell} {before} -> {after} ({difference(worst)}; {_sureness(worst)})"
    others = f", and {many(more, 'more figure')} with it" if more else ""
    return " ".join(f"{text}{others}".split())


def difference(found: Finding) -> str:
    """Return the difference of a figure from its expectation; see ``change``."""
    if found.value is None or found.expected is None:
        return "-"
    return change(found.cell, found.value - found.expected, found.expected)


def change(cell: CellKey, difference: float, expected: float) -> str:
    """Write a difference in percent (costs), in points (percentages), or as it is."""
    if measure_of(cell.metric).ratio:
        return f"{signed(difference / expected, 1, 100)} %"
    percent = METRICS[cell.metric.rsplit("/", 1)[-1]].percent
    return f"{signed(difference, 2, 100)} points" if percent else signed(difference)


def _sureness(found: Finding) -> str:
    if found.chance is None:
        return "sure"
    if found.chance < RAREST:
        return "by chance in fewer than 1 of 1,000,000 nights"
    return f"by chance in 1 of {float(f'{1 / found.chance:.2g}'):,.0f} nights"


def night_summary(
    name: str,
    history: Sequence[NightRecord],
    verdict: Verdict,
    sight: Mapping[CellKey, tuple[float, float]] | None = None,
    title: str = "",
) -> list[Block]:
    """Summarise the last night of ``history`` (oldest first); ``sight``: see ``detectable``."""
    record = history[-1]
    means = {cell: figure(cell, record.mean(cell)) for cell in record.cells}
    seen = {
        cell: change(cell, beyond - usual, usual) for cell, (usual, beyond) in (sight or {}).items()
    }
    return [
        Block(headline(name, title or record.night, verdict), verdict.notes),
        *(_findings(kind.capitalize(), rows) for kind, rows in verdict.findings.items() if rows),
        Block("Changes since the night before", changes(history[-2:]) or ("none",)),
        Block("Figures (mean over seeds)", table=_by_metric(record, means)),
        *([Block(SIGHT, table=_by_metric(record, seen))] if seen else []),
        Block("Environment", table=(("name", "value"), *record.environment.items())),
    ]


def _findings(heading: str, findings: Sequence[Finding]) -> Block:
    rows = [
        ("worst", "tonight", "expected", "change", "since", "finding", "with it", "likely causes")
    ]
    for group in grouped(findings):
        found = group[0]
        value, expected = (figure(found.cell, number) for number in (found.value, found.expected))
        causes = "; ".join(dict.fromkeys(cause for each in group for cause in each.causes))
        others = (
            other.text if other.kind == "hard" else f"{other.cell} {difference(other)}"
            for other in group[1:]
        )
        rows.append(
            (
                *(str(found.cell), value, expected, difference(found), found.since, found.text),
                *("; ".join(others) or "-", causes or "none known"),
            )
        )
    return Block(heading, table=tuple(rows))


def _by_metric(record: NightRecord, texts: Mapping[CellKey, str]) -> tuple[tuple[str, ...], ...]:
    """Return a table with a row per task and recipe and a column per metric."""
    metrics, rows = record.shape.metrics, []
    for task, recipe in product(record.shape.tasks, record.shape.recipes):
        reason = record.failed.get((recipe, task))
        values = [texts.get(CellKey(recipe, task, metric), "-") for metric in metrics]
        rows.append((task, recipe, *([f"failed: {reason}"] if reason else values)))
    return (("task", "recipe", *metrics), *rows)


def figure(cell: CellKey, value: float | None) -> str:
    """Write a figure in the unit of its metric."""
    return measured(cell.metric, value)


def to_markdown(blocks: Sequence[Block]) -> str:
    """Render blocks as Markdown; special characters in them are escaped."""
    environment = templates(__package__, keep_trailing_newline=True)
    environment.filters["plain"] = _plain
    return environment.get_template("page.md.j2").render(blocks=blocks)


def to_html(blocks: Sequence[Block], charts: Sequence[Chart] = ()) -> str:
    """Render blocks as a self-contained page; charts are images, for mail without scripts."""
    from orchestrator.view import environment

    images = [{"label": chart.label, "address": _address(chart)} for chart in charts]
    template = environment().get_template("night.html")
    return template.render(blocks=blocks, charts=images, version=library_version("calsweep"))


def _plain(text: str) -> str:
    escaped = html.escape(" ".join(text.split()), quote=False)
    for mark in "\\`*_[]|#":
        escaped = escaped.replace(mark, f"\\{mark}")
    return escaped


def _address(chart: Chart) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(chart.image('.svg')).decode()}"


def night_junit(name: str, record: NightRecord, verdict: Verdict) -> str:
    """Return the JUnit XML of a judged night: a recipe on a task fails if it has an alarm."""
    shape = record.shape
    pairs = [(recipe, task) for task in shape.tasks for recipe in shape.recipes]
    alarmed = (found.cell.pair for found in verdict.alarms)
    cases = []
    for pair in dict.fromkeys([*pairs, WHOLE_NIGHT, *alarmed]):
        metric = "total_seconds" if pair == WHOLE_NIGHT else "wall_seconds"
        seconds = sum(record.cells.get(CellKey(*pair, metric), {}).values())
        named = ("night", record.night) if pair == WHOLE_NIGHT else pair
        alarms = [found for found in verdict.alarms if found.cell.pair == pair]
        cases.append(_case(*named, _failure(alarms) if alarms else None, seconds))
    return _junit(f"{name} {record.night}", record.started, cases, record.environment)


def failure_junit(name: str, night: str, started: float, reason: str) -> str:
    """Return the JUnit XML of a night that could not run: one case with an error."""
    case = _case(night, "night", Error(writable(reason), "could not run"))
    return _junit(f"{name} {night}", started, [case], {})


def _failure(alarms: Sequence[Finding]) -> Failure:
    message = "; ".join(f"{found.cell}: {found.text}" for found in alarms)
    kind = "hard" if any(found.kind == "hard" for found in alarms) else "soft"
    failure = Failure(writable(message), kind)
    failure.text = writable("\n".join(cause for found in alarms for cause in found.causes))
    return failure


def _case(name: str, home: str, result: Error | Failure | None, seconds: float = 0.0) -> TestCase:
    case = TestCase(writable(name), writable(home), round(seconds, 3))
    case.result = [result] if result else []
    return case


def _junit(
    name: str, started: float, cases: Sequence[TestCase], properties: Mapping[str, str]
) -> str:
    suite = TestSuite(writable(name))
    suite.timestamp = datetime.fromtimestamp(started, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    for key, value in properties.items():
        suite.add_property(writable(key), writable(value))
    suite.add_testcases(list(cases))
    suite.time = 0.0  # No sum: recipes that share a stage each count its seconds.
    document = JUnitXml()
    document.add_testsuite(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + document.tostring().decode() + "\n"


def series_of(records: Sequence[NightRecord], cell: CellKey) -> list[float | None]:
    """Return a cell's mean over seeds for each night, None where it is missing or not finite."""
    values = (record.mean(cell) for record in records)
    return [value if value is not None and math.isfinite(value) else None for value in values]


def sparkline(values: Series) -> str:
    """Draw a series as one line of text, with a dot for a missing figure."""
    return "".join(
        GAP if height is None else BLOCKS[round(height * (len(BLOCKS) - 1))]
        for height in heights(values)
    )


def heights(values: Series) -> list[float | None]:
    """Scale values to the range from 0 to 1; if all are equal, they become 0.5."""
    known = [value for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    share = {value: (value - low) / (high - low) if high > low else 0.5 for value in known}
    return [None if value is None else share[value] for value in values]


def to_csv(records: Sequence[NightRecord], cells: Sequence[CellKey]) -> str:
    """Return a CSV line for every value of ``cells``, in the units of ``NightRecord.cells``."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["night", "recipe", "task", "metric", "seed", "value"])
    for record in records:
        for cell in cells:
            for seed, value in record.cells.get(cell, {}).items():
                writer.writerow([record.night, *cell, seed, value])
    return text.getvalue()


def series_chart(
    records: Sequence[NightRecord], cell: CellKey, alarmed: Sequence[int] = ()
) -> Chart:
    """Return a chart of one series, oldest night first, with marks at ``alarmed`` nights."""
    values = series_of(records, cell)
    factor, unit = UNITS.get(cell.metric, (1, "s" if cell.metric.endswith("_seconds") else ""))
    rows = [
        {"night": record.night, "value": None if value is None else factor * value}
        for record, value in zip(records, values, strict=True)
    ]
    x = names("night", "night", sort=None, axis=NIGHTS)
    y = amount("value", f"{cell.metric} in {unit}" if unit else cell.metric)
    at, alarms = {"x": x, "y": y}, [rows[night] for night in alarmed]
    layers = [
        layer("series", "line", at, tone="blue", point={"color": "var(--blue)"}),
        layer("alarm", "point", at, alarms, tone="orange", size=220, strokeWidth=3, opacity=1),
    ]
    last = next((value for value in reversed(values) if value is not None), None)
    text = f"{many(len(values), 'night')}, last {figure(cell, last)}"
    return drawn(str(cell), f"{cell}, {text}", layers, rows, height=200, text=text)


def plotted(
    records: Sequence[NightRecord],
    cells: Sequence[CellKey],
    alarmed: Mapping[CellKey, Sequence[int]],
) -> Chart:
    """Return a chart with one panel per cell."""
    charts = [series_chart(records, cell, alarmed.get(cell, ())) for cell in cells]
    return side_by_side([f"{many(len(records), 'night')}; orange: alarms"], charts, COLUMNS)
