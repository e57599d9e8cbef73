"""What ``run`` and ``plan`` print when they are done."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from orchestrator.cli._console import output
from orchestrator.plan import Plan, StudyPlan
from orchestrator.run import SweepOutcome
from orchestrator.selection import DEFAULT_METRICS
from orchestrator.spec import SweepSpec
from orchestrator.tables import ComparisonTable, build_table, render, to_rich
from trainables.addresses import redacted
from trainables.artifacts import ArtifactStore
from trainables.errors import InputError

if TYPE_CHECKING:
    from orchestrator.preview import DataPreview

__all__ = ["show_outcome", "show_plan"]

EXIT_CODES = {"finished": 0, "failed": 1, "interrupted": 130}


def show_outcome(outcome: SweepOutcome, address: str | None = None) -> int:
    """Print the table and where everything lies; return the exit code.

    Args:
        outcome: What the sweep left behind.
        address: The Ray cluster that it ran on.

    Raises:
        InputError: If the tables cannot be written.
    """
    if outcome.status == "interrupted":
        output().print(_how_to_go_on(outcome.spec, address), markup=False)
    else:
        _show_results(outcome)
    if not outcome.tracked:
        output().print(
            f"not everything has reached {redacted(outcome.spec.tracking_uri)}; "
            f"deliver the rest with: calsweep sync {shlex.quote(str(outcome.journal))}",
            markup=False,
        )
    return EXIT_CODES[outcome.status]


def _how_to_go_on(spec: SweepSpec, address: str | None) -> str:
    command = ["calsweep", "run", "--resume", spec.name, "--storage", spec.storage]
    if address is not None:
        command += ["--address", address]
    return f"sweep {spec.name} was interrupted; go on with: {shlex.join(command)}"


def _show_results(outcome: SweepOutcome) -> None:
    console, table = output(), build_table(outcome.results, DEFAULT_METRICS)
    console.print(to_rich(table))
    _write_tables(table, outcome.spec.directory)
    console.print(_where(outcome), markup=False)
    console.print(_report(outcome), markup=False)


def _write_tables(table: ComparisonTable, folder: Path) -> None:
    for format, ending in (("markdown", "md"), ("csv", "csv"), ("latex", "tex"), ("html", "html")):
        path = folder / f"table.{ending}"
        try:
            path.write_text(render(table, format), encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}") from error


def _report(outcome: SweepOutcome) -> str:
    """Write the report and return what to say of it; without it the tables are there still."""
    from orchestrator.cli._report_page import PAGE, write_page
    from orchestrator.report import from_folder

    spec = outcome.spec
    store = ArtifactStore(spec.storage_path / "artifacts")
    try:
        source = from_folder(spec.name, spec.directory, store)
        return f"report: {_relative(write_page(source, spec.directory / PAGE))}"
    except InputError as error:
        return f"no report: {error}"


def _where(outcome: SweepOutcome) -> str:
    spec = outcome.spec
    place = _relative(spec.directory)
    return (
        f"{outcome.seconds:.0f} s · tracking: {_tracking(spec.tracking_uri)} · "
        f"artifacts: {_relative(spec.storage_path)}/artifacts · "
        f"configurations: {place}/chosen · tables: {place}/table.md, .csv, .tex, .html"
    )


def _tracking(uri: str) -> str:
    """Return the page of a tracking server, or the command that shows a store without one."""
    if uri.startswith("http"):
        return redacted(uri)
    return f"mlflow ui --backend-store-uri {shlex.quote(redacted(uri))}"


def _relative(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def show_plan(plan: Plan) -> None:
    """Print studies, trials, distinct trainings, and what an earlier run has left to reuse.

    Raises:
        InputError: If a run would refuse the data.
    """
    from orchestrator.preview import preview_data

    console, data = output(), preview_data(plan.spec)
    console.print(_studies(plan))
    stages = plan.stage_trials()
    console.print(
        f"{len(plan.studies)} studies, {plan.trials} trials: at most {stages['train']} trainings, "
        f"{stages['refine']} refinements on stored features, "
        f"{stages['calibrate']} calibrations of stored logits",
        markup=False,
    )
    console.print(
        f"with a training of its own for every trial it would be {plan.trials} trainings",
        markup=False,
    )
    console.print(_preview(plan, data))
    for missing in data.missing:
        console.print(missing)
    console.print(
        f"sweep {plan.spec.name!r}; hours are of one after another, by the last runs on the same "
        "data, model and protocol that the tracking store knows"
    )


def _studies(plan: Plan) -> Table:
    table = Table(box=None)
    for heading in ("task", "recipe", "stage", "trials", "searches", "builds on"):
        table.add_column(heading, overflow="fold")
    for study in plan:
        recipe = study.recipe.name if study.row else f"({study.recipe.name})"
        upstream = study.recipe.upstream
        table.add_row(
            study.task.id,
            recipe,
            study.stage,
            str(study.trials),
            _searches(study),
            upstream.name if upstream else "",
        )
    return table


def _searches(study: StudyPlan) -> str:
    names = [f"{part}.{name}" for part, parameters in study.searched.items() for name in parameters]
    return ", ".join(names) or "nothing: one trial"


def _preview(plan: Plan, data: DataPreview) -> Table:
    from orchestrator.preview import preview

    table = Table(box=None)
    for heading in ("task", "stage", "to compute, at most", "reused", "s each", "hours in all"):
        table.add_column(heading, justify="left" if heading in ("task", "stage") else "right")
    for stage in preview(plan, data):
        seconds = "" if stage.seconds is None else f"{stage.seconds:.1f}"
        hours = "no estimate" if stage.hours is None else f"{stage.hours:.2f}"
        table.add_row(
            stage.task, stage.stage, str(stage.computed), str(stage.reused), seconds, hours
        )
    return table
