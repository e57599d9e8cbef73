from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli._console import output, print_json, print_plain
from orchestrator.cli._options import Json, SweepFile, SweepStorage
from trainables.common.words import HOUR, duration, many

if TYPE_CHECKING:
    from orchestrator.cluster.size import ClusterSize
    from orchestrator.running.preview import StagePreview
    from orchestrator.sweep.plan import StudyPlan
    from orchestrator.sweep.spec import SweepSpec

FIELDS = ("task", "recipe", "stage", "trials", "searches", "builds_on", "row")


def plan(
    sweep: SweepFile,
    storage: SweepStorage = None,
    as_json: Json = False,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Show concurrent trials on a cluster of this size.")
    ] = None,
    gpus_per_node: Annotated[int, typer.Option(min=0, help="With --nodes: GPUs per node.")] = 0,
    cpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="With --nodes: CPUs per node; default: no limit.")
    ] = None,
) -> None:
    """Show the trials of a sweep file, and how many of the results are stored already."""
    from orchestrator.cluster.size import PLENTY, ClusterSize
    from orchestrator.sweep.plan import make_plan
    from orchestrator.sweep.spec import load_sweep

    size = None if nodes is None else ClusterSize(nodes, gpus_per_node, cpus_per_node or PLENTY)
    spec = load_sweep(sweep, storage)
    if size is not None:
        size.require_room(make_plan(spec))
    (_print_plan if as_json else show_plan)(spec, size)


def _print_plan(spec: SweepSpec, size: ClusterSize | None) -> None:
    from orchestrator.running.data import preview_data
    from orchestrator.running.preview import at_once, fewest_hours, preview, refusal
    from orchestrator.sweep.plan import make_plan

    plan, data = make_plan(spec), preview_data(spec)
    studies = [dict(zip(FIELDS, _study(study), strict=True)) for study in plan]
    stages = preview(plan, data)
    content: dict[str, object] = {
        "sweep": spec.name,
        "studies": studies,
        "stages": [{**asdict(stage), "hours": stage.hours} for stage in stages],
        "missing": data.missing,
        "copies": {task: copies._asdict() for task, copies in data.copies.items()},
    }
    if fault := refusal(spec):
        content["refused"] = fault
    if size is not None:
        content["cluster"] = {
            "nodes": size.nodes,
            "at_once": at_once(plan, size),
            "hours": fewest_hours(plan, stages, size),
        }
    print_json(content)


def show_plan(spec: SweepSpec, size: ClusterSize | None = None) -> None:
    """Print studies, trials, trainings, and the number of stored results that can be reused."""
    from orchestrator.running.data import preview_data
    from orchestrator.running.preview import at_once, fewest_hours, preview, refusal
    from orchestrator.sweep.plan import make_plan
    from trainables.plugins import load_plugins

    plan = make_plan(spec)
    console, data = output(), preview_data(spec)
    rows = []
    for study in plan:
        task, recipe, *others, row = _study(study)
        rows.append((task, recipe if row else f"({recipe})", *map(str, others)))
    print_plain([heading.replace("_", " ") for heading in FIELDS[:-1]], rows)
    stages = plan.stage_trials()
    counted = f"{many(len(plan.studies), 'study', 'studies')}, {many(plan.trials, 'trial')}"
    if spec.given:
        console.print(f"{counted}: {many(stages['calibrate'], 'calibration')} of given logits")
    else:
        console.print(
            f"{counted}: at most {many(stages['train'], 'training')}, "
            f"{many(stages['refine'], 'refinement')} on stored features, "
            f"{many(stages['calibrate'], 'calibration')} of stored logits"
        )
        console.print(f"one training per trial would be {many(plan.trials, 'training')}")
    previewed = preview(plan, data)
    _print_work(previewed)
    if size is not None:
        held = ", ".join(f"{stage} {count}" for stage, count in at_once(plan, size).items())
        hours = fewest_hours(plan, previewed, size)
        least = "no estimate of the time" if hours is None else f"at least {duration(hours * HOUR)}"
        console.print(f"on {many(size.nodes, 'node')}, at most at once: {held}; {least}")
    for missing in data.missing:
        console.print(missing)
    for task, copies in data.copies.items():
        for line in copies.lines():
            console.print(f"{task}: {line}")
    for named, plugin in zip(spec.used_plugins, load_plugins(spec.pinned), strict=True):
        console.print(f"plugin {named.name}, code {named.code[:12]}: {named.path}")
        console.print(f"plugin {named.name}: {plugin.covers}")
    if fault := refusal(spec):
        console.print(f"calsweep run refuses this file: {fault}")
    console.print(
        f"sweep {plan.spec.name!r}; times are for one trial at a time, estimated from the last "
        "tracked runs on the same data, model and protocol"
    )


def _study(study: StudyPlan) -> tuple[str, str, str, int, str, str, bool]:
    """Return the values of ``FIELDS`` for a study."""
    upstream = study.recipe.upstream.name if study.recipe.upstream else ""
    found = [f"{part}.{name}" for part, parameters in study.searched.items() for name in parameters]
    searches = ", ".join(found) if study.trials > 1 and found else "nothing: one trial"
    names = (study.task.id, study.recipe.name, study.stage)
    return (*names, study.trials, searches, upstream, study.row)


def _print_work(stages: Sequence[StagePreview]) -> None:
    """Print how many results of each stage are computed, reused, or must be computed again."""
    rows = []
    for stage in stages:
        each = "" if stage.seconds is None else duration(stage.seconds)
        whole = "no estimate" if stage.hours is None else duration(stage.hours * HOUR)
        counts = str(stage.computed), str(stage.reused)
        rows.append((stage.task, stage.stage, *counts, each, whole))
    headings = ("task", "stage", "to compute, at most", "reused", "time each", "time in all")
    print_plain(headings, rows, headings[:2])
    for stage in stages:
        if stage.dropped:
            output().print(
                f"{stage.task}: at least {many(stage.dropped, f'{stage.stage} outcome')} must be "
                "computed again, because `keep: logits` removed their weights"
            )
