"""``calsweep compare``: significant differences between recipes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from orchestrator.cli._claims import chosen_claims, show_claims
from orchestrator.cli._console import (
    echo,
    output,
    print_csv,
    print_records,
    print_table,
    progress_bar,
)
from orchestrator.cli._options import (
    Json,
    StorageFolder,
    Sweeps,
    TextFormat,
    TrackingUri,
    tracked_results,
    use_columns,
    use_metrics,
)
from orchestrator.cli._ranks import check_diagram, show_ranks
from trainables.common.errors import InputError, known_names
from trainables.common.paths import DEFAULT_STORAGE

if TYPE_CHECKING:
    from orchestrator.statistics import Spread, TaskComparison
    from orchestrator.storage.results import StudyResult
    from orchestrator.tables.columns import Column
    from trainables.store.artifacts import ArtifactStore

    Tasks: TypeAlias = dict[str, list[StudyResult]]

HEADINGS = ("noise floor", "difference", "95% interval", "detectable", "flipped %", "verdict")
SPREAD = ("task", "metric", "recipe", "deviation", "rows", "seeds", "search", "splits")
RECORDS = ("json", "csv")
FIELDS = (
    *("task", "metric", "recipe", "value", "floor", "difference", "low", "high", "verdict"),
    *("inside_floor", "rows", "draws", "seeds", "flipped", "detectable"),
)


def compare(
    sweeps: Sweeps = None,
    ranks: Annotated[
        bool, typer.Option("--ranks", help="Rank recipes over data sets and models; test them.")
    ] = False,
    claims: Annotated[
        bool, typer.Option("--claims", help="Show which claims of papers the sweeps confirm.")
    ] = False,
    question: Annotated[
        Literal["deploy", "spread"] | None,
        typer.Option(help="deploy: the best recipes by several metrics; spread: variance shares."),
    ] = None,
    task: Annotated[str | None, typer.Option(help="Only this task; default: all tasks.")] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Recipe to compare with; default: ce (given logits: given).")
    ] = None,
    metric: Annotated[str, typer.Option(help="Metric to compare, such as ece or acc.")] = "ece",
    draws: Annotated[int, typer.Option(min=1, help="Resamples of the test data.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the resamples.")] = 0,
    over_seeds: Annotated[
        bool, typer.Option("--over-seeds", help="Intervals over seeds and over test rows.")
    ] = False,
    control: Annotated[str, typer.Option(help="With --ranks: compare with this recipe only.")] = "",
    out: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="With --ranks: a diagram, .pdf, .png or .svg."),
    ] = None,
    claim: Annotated[
        list[str] | None, typer.Option(help="With --claims: only this one; may be repeated.")
    ] = None,
    format: TextFormat = "terminal",
    as_json: Json = False,
    tracking_uri: TrackingUri = None,
    storage: StorageFolder = DEFAULT_STORAGE,
) -> None:
    """Compare recipes with a baseline, using a paired bootstrap over test data and noise floors.

    --ranks, --claims and --question spread accept several sweeps and judge them together.
    """
    from orchestrator import statistics
    from orchestrator.storage.storage import Storage

    names, shape = sweeps or ["demo"], "json" if as_json else format
    if len(names) > 1 and not (ranks or claims or question == "spread"):
        raise InputError(
            "compare takes one sweep; --ranks, --claims and --question spread take several"
        )
    check_diagram(out)
    wanted = chosen_claims(claim) if claims else []
    every = list(chain.from_iterable(tracked_results(names, tracking_uri, storage)))
    if ranks:
        show_ranks(use_columns(every, [metric], storage), metric, control, out, as_json)
        return
    if claims:
        show_claims(wanted, every, storage, draws, seed, shape)
        return
    use_metrics(every, [metric], storage)
    if question == "deploy" and metric != "ece":
        raise InputError("--question deploy has its own metrics; remove --metric")
    if question is not None:
        answer = _show_deployment if question == "deploy" else _show_spread
        answer(_by_task(every, task), Storage(storage).store(), metric, draws, seed, shape)
        return
    tasks, store, numbers = _by_task(every, task), Storage(storage).store(), count(1)
    with progress_bar("resampling") as show:
        total = sum(map(len, tasks.values()))
        found = [
            statistics.compare(
                results,
                store,
                metric,
                baseline=baseline,
                draws=draws,
                seed=seed,
                over_seeds=over_seeds,
                done=lambda recipe: show(next(numbers), total),
            )
            for results in tasks.values()
        ]
    _show_differences(found, over_seeds, shape)


def _show_differences(found: Sequence[TaskComparison], over_seeds: bool, format: str) -> None:
    if format in RECORDS:
        _print_records(format, FIELDS, chain.from_iterable(map(_csv_rows, found)))
        return
    for comparison in found:
        _show(comparison, markdown=format == "markdown")
    over = "seeds and test rows (Student's t); with one seed over test rows only"
    of_rows = "test rows of these trained networks; --over-seeds: over seeds as well"
    output().print(f"intervals over {over if over_seeds else of_rows}")


def _print_records(format: str, fields: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    show_rows = print_records if format == "json" else print_csv
    show_rows(fields, rows)


def _show_deployment(
    tasks: Tasks, store: ArtifactStore, metric: str, draws: int, seed: int, format: str
) -> None:
    from orchestrator import statistics

    total, numbers = 4 * sum(map(len, tasks.values())), count(1)
    with progress_bar("resampling") as show:
        found = [
            statistics.deployment(
                own, store, draws=draws, seed=seed, done=lambda _: show(next(numbers), total)
            )
            for own in tasks.values()
        ]
    lines = list(chain.from_iterable(found))
    if format in RECORDS:
        _print_records(format, ("task", "topic", "text"), lines)
        return
    for task, own in zip(tasks, found, strict=True):
        echo(f"**{task}**\n" if format == "markdown" else task)
        for line in own:
            echo(f"{'- ' if format == 'markdown' else ''}{line.topic}: {line.text}")


def _show_spread(
    tasks: Tasks, store: ArtifactStore, metric: str, draws: int, seed: int, format: str
) -> None:
    from orchestrator import statistics
    from orchestrator.tables.columns import column

    found: list[statistics.Spread] = []
    varied = any(own[0].varied for own in tasks.values())
    for own in tasks.values():
        sweeps = list(_by_sweep(own).values())
        _check_apart(sweeps)
        boards = [statistics.board(each, store, metric, draws=draws, seed=seed) for each in sweeps]
        # If each seed draws its own split, the shares of seeds and splits cannot be separated.
        splits = ["" if varied else each[0].fingerprint for each in sweeps]
        found += statistics.spreads(boards, splits)
    if format in RECORDS:
        _print_records(format, SPREAD, ((one.task, metric, *one[1:]) for one in found))
        return
    shown = column(metric)
    rows = [
        (one.task, one.recipe, shown.show(one.deviation), *map(_percent, one[3:])) for one in found
    ]
    seeds = "seeds and splits %" if varied else "seeds %"
    shares = ("test rows %", seeds, "search %", "splits %")
    headings = ("task", "recipe", f"deviation of {shown.label}", *shares)
    print_table(headings, rows, ("task", "recipe"), format == "markdown")
    echo(f"shares of the variance of one network{_not_known(found, varied)}")


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f}"


def _not_known(found: Sequence[Spread], varied: bool) -> str:
    """Return the end of a line: the unknown shares of the variance, and how to measure them."""
    again = "sweeps with other names and other `seeds`"
    missing = {
        "seeds (run with several `seeds`)": any(one.seeds is None for one in found),
        f"search ({again})": any(one.search is None for one in found),
        f"splits ({again}, with another `split: {{seed: 1}}`)": not varied
        and any(one.splits is None for one in found),
    }
    told = ", ".join(text for text, absent in missing.items() if absent)
    both = any(one.search is None and one.splits is not None for one in found)
    search = "; splits include the search on them" if both else ""
    return f"{search}; not known: {told}" if told else search


def _by_sweep(results: list[StudyResult]) -> dict[str, list[StudyResult]]:
    found: dict[str, list[StudyResult]] = {}
    for result in results:
        found.setdefault(result.sweep_id or result.sweep, []).append(result)
    return found


def _check_apart(sweeps: Sequence[list[StudyResult]]) -> None:
    """Raise ``InputError`` if two sweeps share a network: their results are not independent."""
    known: dict[str, StudyResult] = {}
    for results in sweeps:
        for result in results:
            for key in result.predictions:
                other = known.setdefault(key, result)
                if other.sweep_id != result.sweep_id:
                    raise InputError(
                        f"{result.recipe} has the same network in two of the sweeps; give each "
                        "sweep its own `seeds`, such as [0, 1, 2] and [10, 11, 12]"
                    )


def _by_task(results: list[StudyResult], task: str | None) -> dict[str, list[StudyResult]]:
    names = dict.fromkeys(result.task for result in results)
    if task is not None and task not in names:
        raise InputError(f"--task {task!r} is not in this sweep; {known_names(task, names)}")
    return {name: [r for r in results if r.task == name] for name in names if task in (None, name)}


def _show(comparison: TaskComparison, markdown: bool) -> None:
    from orchestrator.tables.columns import column

    console, shown = output(), column(comparison.bootstrap.metric)
    console.print(f"{'**' * markdown}{comparison.task}{'**' * markdown}")
    headings = ("recipe", shown.heading, *HEADINGS)
    print_table(headings, _rows(comparison, shown), ("recipe", "verdict"), markdown)
    for note in _notes(comparison):
        console.print(note)


def _rows(comparison: TaskComparison, shown: Column) -> Iterator[tuple[str, ...]]:
    bootstrap = comparison.bootstrap
    for recipe, value in bootstrap.values.items():
        floor = comparison.floors.get(recipe)
        start = (recipe, shown.show(value), "–" if floor is None else shown.show(floor))
        change, ends, least, flipped = "", "", "", comparison.flipped.get(recipe)
        if found := bootstrap.differences.get(recipe):
            change = shown.show_change(found.value)
            ends = f"[{shown.show_change(found.low)}, {shown.show_change(found.high)}]"
            least = "" if isnan(found.detectable) else shown.show(found.detectable)
        share = "" if flipped is None else f"{100 * flipped:.2f}"
        yield (*start, change, ends, least, share, _verdict(comparison, recipe))
    for recipe, reason in comparison.absent.items():
        yield (recipe, *[""] * 6, reason)


def _verdict(comparison: TaskComparison, recipe: str) -> str:
    if recipe == comparison.bootstrap.baseline:
        return "baseline"
    side = comparison.side(recipe)
    words = [f"{side} *"] if side else []
    words += ["≈ inside the noise floor"] if comparison.inside_floor(recipe) else []
    return ", ".join(words)


def _notes(comparison: TaskComparison) -> Iterator[str]:
    bootstrap = comparison.bootstrap
    counts = sorted({*bootstrap.seeds.values()})
    seeds = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    yield (
        f"{bootstrap.drawn}, {bootstrap.draws} paired resamples, seeds per recipe: {seeds}; "
        "* the interval excludes 0"
    )
    yield "detectable: the smallest true difference that would be found in 80% of cases"
    if comparison.flipped:
        yield "flipped: share of test rows with another predicted class than the baseline's"
    if comparison.floors:
        yield (
            "noise floor: the metric of a perfectly calibrated network with the same "
            "probabilities; ≈ the difference is not above the floor, and its interval is too narrow"
        )


def _csv_rows(comparison: TaskComparison) -> Iterator[list[object]]:
    bootstrap = comparison.bootstrap
    for recipe, value in bootstrap.values.items():
        found = bootstrap.differences.get(recipe)
        gap = [None] * 3 if found is None else [found.value, found.low, found.high]
        figures = [value, comparison.floors.get(recipe), *gap]
        verdict = [_verdict(comparison, recipe), int(comparison.inside_floor(recipe))]
        counts = [bootstrap.rows, bootstrap.draws, bootstrap.seeds[recipe]]
        least = None if found is None or isnan(found.detectable) else found.detectable
        row = [*figures, *verdict, *counts, comparison.flipped.get(recipe), least]
        yield [comparison.task, bootstrap.metric, recipe, *row]
    for recipe, reason in comparison.absent.items():
        yield [comparison.task, bootstrap.metric, recipe, *[None] * 5, reason, *[None] * 6]
