"""The files of a replay: two tables as CSV, and a plot."""

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from orchestrator.replay.run import Judged, ReplayOutcome, Summary
from orchestrator.tables.columns import Column, column
from trainables.charts.chart import Chart, amount, drawn, layer, names, tips
from trainables.common.errors import UnwrittenError
from trainables.common.files import writing
from trainables.common.words import many

KEYS = ("sweep", "study", "number", "role", "seed", "epoch", "status", "configuration")


def write_replay(outcome: ReplayOutcome, folder: Path) -> list[Path]:
    """Write the outcome of a replay and return the three files.

    ``outcomes.csv`` has a line for each configuration, epoch and seed of the sweeps, with its
    validation metrics. ``searches.csv`` has a line for each simulated search and budget.
    ``replay.png`` shows the test metric against the budget.
    """
    files = [folder / name for name in ("outcomes.csv", "searches.csv", "replay.png")]
    with writing(folder, UnwrittenError):
        folder.mkdir(parents=True, exist_ok=True)
        _write_outcomes(outcome, files[0])
        _write(files[1], [f.name for f in fields(Judged)], (asdict(j) for j in outcome.judged))
        draw(outcome).save(files[2])
    return files


def _write_outcomes(outcome: ReplayOutcome, path: Path) -> None:
    rows = [
        {
            **{"sweep": sweep.folder.name, "study": trial.study, "number": trial.number},
            **{"role": trial.role, "seed": trial.seed, "epoch": epoch, "status": trial.status},
            "configuration": json.dumps(trial.configuration, sort_keys=True),
            **{name: value for name, value in metrics.items() if name.startswith("val_")},
        }
        for sweep in outcome.sweeps
        for trial, epoch, metrics in sweep.epochs()
    ]
    names = dict.fromkeys(name for row in rows for name in row if name not in KEYS)
    _write(path, [*KEYS, *names], rows)


def _write(path: Path, names: Sequence[str], rows: Iterable[dict[str, object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def draw(outcome: ReplayOutcome) -> Chart:
    """Return a chart of each strategy's test metric against the budget.

    A dashed line shows the published default.
    """
    shown = column(outcome.settings.judge)
    rows = [
        {
            **{"strategy": s.strategy, "budget": s.budget},
            **{end: shown.factor * getattr(s, end) for end in ("loss", "low", "high")},
        }
        for s in outcome.summaries()
    ]
    budgets = sorted({row["budget"] for row in rows})
    default = {"loss": shown.factor * outcome.finals()[0].default, "strategy": DEFAULT}
    x = amount("budget", "trials of a study", log=True, axis={"values": budgets})
    y = amount("loss", f"test {shown.heading}")
    strategies = [*outcome.settings.strategies, DEFAULT]
    colour = {"color": names("strategy", "strategy", sort=None, scale={"domain": strategies})}
    band = {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, **colour}
    tip = tips(strategy="strategy", budget="trials", loss=shown.heading)
    layers = [
        layer("band", "area", band, opacity=0.15),
        layer("default", "rule", {"y": y, **colour}, [default], strokeDash=[5, 3]),
        layer("strategy", "line", {"x": x, "y": y, **colour, "tooltip": tip}, point=True),
    ]
    label = f"test {shown.heading} of each strategy by the number of trials"
    return drawn("", label, layers, rows, height=400, width=640)


DEFAULT = "published default"
HEADINGS = ("95% interval", "regret", "worse than default", "default kept", "distance")


def headings(outcome: ReplayOutcome) -> list[str]:
    """Return the headings of the table of strategies."""
    return ["strategy", f"test {column(outcome.settings.judge).heading}", *HEADINGS]


def cells(summary: Summary, outcome: ReplayOutcome) -> list[str]:
    """Return a strategy's line of the table, aligned with ``headings``."""
    shown = column(outcome.settings.judge)
    return [
        summary.strategy,
        shown.show(summary.loss),
        f"[{shown.show(summary.low)}, {shown.show(summary.high)}]",
        shown.show(summary.regret),
        _percent(summary.worse),
        _percent(summary.kept),
        _percent(summary.distance),
    ]


def notes(outcome: ReplayOutcome) -> list[str]:
    """Return the notes below the table, a line each."""
    shown: Column = column(outcome.settings.judge)
    first = outcome.finals()[0]
    studies = len({(judged.sweep, judged.study) for judged in outcome.judged})
    settings = outcome.settings
    drawn = f"{settings.validation} drawn for each search (the others score its choice)"
    same = "the same for all searches"
    rows = "resampled for each search" if settings.resampled else ""
    rows = rows or (drawn if settings.validation else same)
    return [
        *(
            f"sweep {name}: with its own settings, the replay repeats "
            f"{sum(choice.same for choice in choices)} of {many(len(choices), 'choice')}"
            for name, choices in outcome.repeated.items()
        ),
        f"{many(studies, 'study', 'studies')}, {many(settings.searches, 'search', 'searches')} per "
        f"study and strategy; validation rows: {rows}; "
        f"the published default has a test {shown.label} of {shown.show(first.default)}",
        "regret: test metric of the choice minus that of the best recorded trial; distance: "
        "difference between a suggested configuration and the recorded one whose results it got, "
        "in % of the range of the parameter that differs most",
        *_left_out(outcome),
    ]


def _left_out(outcome: ReplayOutcome) -> list[str]:
    """Return a line per study that was not replayed, with the sweeps unless none replayed it."""
    found: dict[str, list[str]] = {}
    for (sweep, study), reason in outcome.skipped.items():
        found.setdefault(f"{study}: not replayed: {reason}", []).append(sweep)
    every = len(outcome.sweeps)
    return [
        line if len(sweeps) == every else f"{line} (sweep {', '.join(sweeps)})"
        for line, sweeps in found.items()
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
