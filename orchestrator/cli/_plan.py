"""``calsweep plan``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from orchestrator.cli._console import output, print_json, print_plain
from orchestrator.cli._options import Json, SweepFile

if TYPE_CHECKING:
    from orchestrator.running.data import DataPreview
    from orchestrator.sweep.plan import Plan, StudyPlan
    from orchestrator.sweep.spec import SweepSpec


FIELDS = ("task", "recipe", "stage", "trials", "searches", "builds_on", "row")


def plan(sweep: SweepFile, as_json: Json = False) -> None:
    """Show what a sweep file would compute, and which outcomes are stored already."""
    from orchestrator.sweep.spec import load_sweep

    spec = load_sweep(sweep)
    if as_json:
        _print_plan(spec)
    else:
        show_plan(spec)


def _print_plan(spec: SweepSpec) -> None:
    from orchestrator.running.data import preview_data
    from orchestrator.running.preview import preview
    from orchestrator.sweep.plan import make_plan

    plan, data = make_plan(spec), preview_data(spec)
    studies = [dict(zip(FIELDS, _study(study), strict=True)) for study in plan]
    stages = [{**asdict(stage), "hours": stage.hours} for stage in preview(plan, data)]
    print_json({"sweep": spec.name, "studies": studies, "stages": stages, "missing": data.missing})


def show_plan(spec: SweepSpec) -> None:
    """Print studies, trials, distinct trainings, and what an earlier run has left to reuse."""
    from orchestrator.running.data import preview_data
    from orchestrator.sweep.plan import make_plan

    plan = make_plan(spec)
    console, data = output(), preview_data(spec)
    _print_studies(plan)
    stages = plan.stage_trials()
    size = f"{len(plan.studies)} studies, {plan.trials} trials"
    if spec.given:
        console.print(f"{size}: {stages['calibrate']} calibrations of given logits")
    else:
        console.print(
            f"{size}: at most {stages['train']} trainings, "
            f"{stages['refine']} refinements on stored features, "
            f"{stages['calibrate']} calibrations of stored logits"
        )
        console.print(
            f"with a training of its own for every trial it would be {plan.trials} trainings"
        )
    _print_work(plan, data)
    for missing in data.missing:
        console.print(missing)
    for plugin in spec.used_plugins:
        console.print(f"plugin {plugin.name}, code {plugin.code[:12]}: {plugin.path}")
    console.print(
        f"sweep {plan.spec.name!r}; hours are of one after another, by the last runs on the same "
        "data, model and protocol that the tracking store knows"
    )


def _print_studies(plan: Plan) -> None:
    rows = []
    for study in plan:
        task, recipe, *others, row = _study(study)
        rows.append((task, recipe if row else f"({recipe})", *map(str, others)))
    print_plain([heading.replace("_", " ") for heading in FIELDS[:-1]], rows)


def _study(study: StudyPlan) -> tuple[str, str, str, int, str, str, bool]:
    """Return the values of ``FIELDS``."""
    upstream = study.recipe.upstream.name if study.recipe.upstream else ""
    names = (study.task.id, study.recipe.name, study.stage)
    return (*names, study.trials, _searches(study), upstream, study.row)


def _searches(study: StudyPlan) -> str:
    names = [f"{part}.{name}" for part, parameters in study.searched.items() for name in parameters]
    return ", ".join(names) or "nothing: one trial"


def _print_work(plan: Plan, data: DataPreview) -> None:
    """Print what each stage computes and reuses, then what it computes again."""
    from orchestrator.running.preview import preview

    rows, stages = [], preview(plan, data)
    for stage in stages:
        seconds = "" if stage.seconds is None else f"{stage.seconds:.1f}"
        hours = "no estimate" if stage.hours is None else f"{stage.hours:.2f}"
        rows.append(
            (stage.task, stage.stage, str(stage.computed), str(stage.reused), seconds, hours)
        )
    headings = ("task", "stage", "to compute, at most", "reused", "s each", "hours in all")
    print_plain(headings, rows, headings[:2])
    for stage in stages:
        if stage.dropped:
            output().print(
                f"{stage.task}: at least {stage.dropped} {stage.stage} outcomes are computed "
                "again, for their weights were dropped (keep: logits)"
            )
