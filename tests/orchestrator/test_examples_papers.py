"""The sweep files of the published tables: each fills its layout, at full size and on one CPU."""

from __future__ import annotations

from importlib.resources import files

import pytest

from orchestrator._table import Notice
from orchestrator.layouts import layout_names, load_layout
from orchestrator.plan import Plan, make_plan
from orchestrator.results import StudyResult
from orchestrator.spec import parse_sweep
from orchestrator.tables import TableOptions, make_table

FOLDER = files("orchestrator") / "examples" / "papers"
LAYOUTS = {name.replace("/", "-"): name for name in layout_names()}
# What a finished study has at least; suites come on top.
FIGURES = dict.fromkeys(("acc", "ece", "aece", "cwece", "mce"), 0.1)


def plan(name: str) -> Plan:
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    spec = parse_sweep(text, f"{name}.yaml")
    assert spec.name == name
    return make_plan(spec)


def outcomes(planned: Plan) -> list[StudyResult]:
    """Return what the sweep's rows would come to."""
    return [
        StudyResult(
            sweep=planned.spec.name,
            task=study.task.id,
            recipe=study.recipe.name,
            status="finished",
            test=(FIGURES | dict.fromkeys(_suite_metrics(study.task.suites), 0.5),),
            dataset=study.task.dataset_name,
            model=study.task.model,
            protocol=study.task.protocol_name,
            seconds=(1.0,),
        )
        for study in planned
        if study.row
    ]


def _suite_metrics(suites: tuple[str, ...]) -> list[str]:
    return [f"{suite}/{metric}" for suite in suites for metric in ("auroc", "fpr95")]


def test_every_layout_has_a_sweep_of_either_size_and_there_are_no_others() -> None:
    found = sorted(entry.name.removesuffix(".yaml") for entry in FOLDER.iterdir())
    assert found == sorted([*LAYOUTS, *(f"{name}-cpu" for name in LAYOUTS)])


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_full_sweep_fills_every_cell_of_the_published_table(name: str) -> None:
    table = make_table(
        outcomes(plan(name)), TableOptions(layout=LAYOUTS[name], columns="paper", published=True)
    )
    for row in table.rows:
        for cell in table.line(row):
            assert not isinstance(cell, Notice), f"{row.label}: {cell.text}"
            assert cell.text != "–"
    left_out = [note for note in table.notes() if "not in this layout" in note]
    assert not left_out
    assert bool(table.published) == ("all" not in load_layout(LAYOUTS[name]).incomparable)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_cpu_sweep_fills_every_row_and_is_small(name: str) -> None:
    planned = plan(f"{name}-cpu")
    table = make_table(outcomes(planned), TableOptions(layout=LAYOUTS[name]))
    for row in table.rows:
        assert all(cell.text[0].isdigit() for cell in table.line(row))
    assert not [note for note in table.notes() if "not in this layout" in note]
    assert {study.task.dataset for study in planned} == {"digits"}
    assert planned.trials <= 70
