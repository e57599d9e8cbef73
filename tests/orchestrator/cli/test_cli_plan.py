"""``calsweep plan`` and the dry runs: the numbers are right, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[3] / "examples" / "demo.yaml"
SMALL = """
name: small
tasks:
  - {dataset: digits, model: convnet, protocol: digits}
recipes: [mbls, mbls+ts]
search: {trials: 3}
"""


def table_rows(out):
    """Return the lines of the plan's table, split, and the lines below it."""
    lines = out.splitlines()
    end = next(i for i, line in enumerate(lines) if " studies, " in line)
    return [line.split() for line in lines[1:end]], lines[end:]


def counts(below):
    """Return what is to be computed and what is reused, by stage."""
    rows = [line.split() for line in below if line.split()[1:2] and "/" in line.split()[0]]
    return {row[1]: (int(row[2]), int(row[3])) for row in rows}


@pytest.fixture
def small(empty_folder):
    path = empty_folder / "small.yaml"
    path.write_text(SMALL)
    return path


def test_the_demo_has_28_rows_and_far_fewer_trainings_than_trials(calsweep, empty_folder):
    code, out, err = calsweep("plan", DEMO)
    rows, below = table_rows(out)
    assert (code, err) == (0, "")
    assert len({row[1] for row in rows}) == len(rows) == 28
    # ce has nothing to search, the six other methods four trials each; ts searches nothing.
    assert below[0] == (
        "28 studies, 67 trials: at most 25 trainings, 28 refinements on stored features, "
        "14 calibrations of stored logits"
    )
    assert "67 trainings" in below[1]
    assert counts(below) == {"train": (25, 0), "refine": (28, 0), "calibrate": (14, 0)}
    assert list(empty_folder.iterdir()) == []


def test_every_row_says_what_it_searches_and_builds_on(calsweep):
    rows, _ = table_rows(calsweep("plan", DEMO).out)
    by_recipe = {row[1]: row for row in rows}
    task = "digits/convnet/digits"
    assert by_recipe["mbls"] == [task, "mbls", "train", "4", "mbls.margin,", "mbls.weight"]
    assert by_recipe["ce+macal+ts"][2:4] == ["calibrate", "1"]
    assert by_recipe["ce+macal+ts"][-1] == "ce+macal"


def test_dry_runs_are_plans(calsweep):
    expected = calsweep("plan", DEMO).out
    assert calsweep("demo", "--dry-run").out == expected
    assert calsweep("run", "--dry-run", DEMO).out == expected


def test_studies_that_are_no_rows_stand_in_brackets(calsweep, small):
    small.write_text(SMALL.replace("[mbls, mbls+ts]", "[mbls+ts]"))
    rows, below = table_rows(calsweep("plan", small).out)
    assert [row[1] for row in rows] == ["(ce)", "(mbls)", "mbls+ts"]
    assert below[0].startswith("3 studies, 5 trials: at most 4 trainings, 0 refinements")


def test_the_demo_takes_other_recipes_trials_and_seeds(calsweep):
    out = calsweep(
        "demo", "--dry-run", "--recipes", "ce, mbls", "--trials", 2, "--seeds", "1,2"
    ).out
    rows, below = table_rows(out)
    assert [row[1:4] for row in rows] == [["ce", "train", "1"], ["mbls", "train", "2"]]
    assert below[0].startswith("2 studies, 5 trials: at most 5 trainings")


def test_the_demo_takes_other_tasks(calsweep):
    tasks = "digits/resnet8/digits,digits/convnet/digits/0.5"
    rows, below = table_rows(calsweep("demo", "--dry-run", "--tasks", tasks).out)
    assert {row[0] for row in rows} == set(tasks.split(","))
    assert below[0].startswith("56 studies, 134 trials")


def test_another_choice_is_another_sweep(calsweep):
    def name(*options):
        return calsweep("demo", "--dry-run", *options).out.partition("sweep '")[2].split("'")[0]

    names = [name(), name("--trials", 2), name("--trials", 3), name("--recipes", "ce")]
    assert names[0] == name("--storage", "elsewhere") == "demo"
    assert len(set(names)) == 4
