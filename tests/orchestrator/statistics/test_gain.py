from dataclasses import replace

import pytest
import torch

from orchestrator.cli._table import _with_gains
from orchestrator.statistics import _compare, compare, paired_bootstrap, search_gains
from orchestrator.tables.arrange import build_table
from orchestrator.tables.table import Gain
from trainables.metrics import noise_floor

LABELS = torch.arange(300) % 4
FIELDS = {"dataset": "digits", "model": "convnet"}


@pytest.fixture
def searched(evaluated, made_up):
    """Return a function giving the result of a search, with the predictions of its default."""

    def make(recipe, chosen, default, trials=4, **fields):
        test = {"test": ({"ece": 0.1, "smooth_ece": 0.2},), "trials_finished": trials}
        tables = {"chosen": chosen, "default": default}
        keys = {
            name: evaluated(f"{recipe}-{name}", [table], LABELS).predictions[0]
            for name, table in tables.items()
            if table is not None
        }
        known = {"searched_predictions": keys["chosen"]}
        known["default_predictions"] = keys.get("default", "")
        return evaluated(recipe, [chosen], LABELS, **{**FIELDS, **test, **known, **fields})

    return make


def test_a_gain_is_the_paired_difference_from_the_default(searched, made_up, artifacts):
    chosen, default = made_up(LABELS, 0), made_up(LABELS, 1, sharpness=3.0)
    found = search_gains([searched("mbls", chosen, default)], artifacts, "nll", draws=50)
    tables = {"mbls": [chosen], "default": [default]}
    expected = paired_bootstrap(tables, LABELS, "nll", baseline="default", draws=50)
    assert found.bootstrap.differences == expected.differences
    assert found.side("mbls") == "better"


def test_a_gain_is_compared_with_the_larger_of_both_noise_floors(searched, made_up, artifacts):
    tables = {"ls": (made_up(LABELS, 0, 4.0), made_up(LABELS, 1))}
    tables["fl"] = tables["ls"][::-1]
    done = []
    results = [searched(recipe, *pair) for recipe, pair in tables.items()]
    found = search_gains(results, artifacts, "ece", draws=20, seed=2, done=done.append)
    assert done == ["ls", "fl"]
    assert (found.bootstrap.rows, found.bootstrap.draws, found.task) == (300, 20, results[0].task)
    for recipe, (chosen, default) in tables.items():
        floors = [noise_floor(table.float()).mean for table in (chosen, default)]
        assert found.floors[recipe] == max(floors) > 1.5 * min(floors)
        pair = {"chosen": [chosen], "default": [default]}
        expected = paired_bootstrap(pair, LABELS, baseline="default", draws=20, seed=2)
        assert found.bootstrap.differences[recipe] == expected.differences["chosen"]
        assert found.bootstrap.values[recipe] == expected.values["chosen"]
    assert found.bootstrap.seeds == {"ls": 1, "fl": 1}  # The search's own.
    assert found.bootstrap.drawn == "300 test rows"
    inside = replace(found, floors={**found.floors, "ls": 1.0})
    assert [inside.inside_floor(recipe) for recipe in ("ls", "fl")] == [True, False]


def test_a_task_without_results_has_no_gain(artifacts):
    found = search_gains([], artifacts)
    assert (found.task, found.bootstrap.differences, found.floors, found.absent) == ("", {}, {}, {})


def test_a_search_that_chose_the_default_has_no_gain(searched, made_up, artifacts, monkeypatch):
    result = searched("mbls", made_up(LABELS, 0), None)
    (key,) = result.predictions
    kept = searched(
        "ls", made_up(LABELS, 0), None, searched_predictions=key, default_predictions=key
    )
    assert kept.kept_default
    assert not result.kept_default
    draws = []

    def compared(*arguments, **options):
        draws.append(options["draws"])
        return compare(*arguments, **options)

    monkeypatch.setattr(_compare, "compare", compared)
    change = search_gains([kept], artifacts, "ece").bootstrap.differences["ls"]
    assert (change.value, change.low, change.high) == (0, 0, 0)
    assert draws == [1], "what is the same was resampled"


def test_a_table_of_gains_gives_the_reason_for_an_unknown_gain(searched, made_up, artifacts):
    table = made_up(LABELS, 0)
    results = [
        searched("ce", table, None, trials=1),
        searched("mbls", table, None),
        searched("ls", table, table, status="failed"),
        searched("fl", table, table, searched_predictions=""),
        searched("acls", table, table, status="running"),
        searched("au", table, None, trials=1, status="failed"),
    ]
    assert search_gains(results, artifacts).absent == {
        "ce": "nothing was searched",
        "mbls": "the published default failed or was not measured",
        "ls": "failed",
        "fl": "the published default failed or was not measured",
        "acls": "running",
        "au": "failed",
    }


@pytest.fixture
def table(command_on, searched, made_up):
    """Return a function that shows the table of four recipes, one a kind of gain."""
    near, far = made_up(LABELS, 0), made_up(LABELS, 0, sharpness=4.0)
    kept = searched("fl", near, None)
    same = dict.fromkeys(("searched_predictions", "default_predictions"), kept.predictions[0])
    results = [
        searched("ce", near, None, trials=1),
        searched("ls", near, far),
        searched("mbls", near, None, **same),
        searched("acls", near, None),
    ]

    def call(*arguments, more=0):
        results.extend(replace(result, task="other") for result in results[:more])
        return command_on(results)("table", "s", "--show", "gain", *arguments)

    return call


def test_the_table_shows_the_gain_of_each_search(table):
    code, out, err = table("--metrics", "ece,ece_floor", "--format", "markdown")
    assert (code, err) == (
        0,
        "--show gain: skipped ece_floor, which test rows alone do not determine\n",
    )
    rows = {line.split("|")[1].strip(): line for line in out.splitlines() if line.startswith("|")}
    assert rows["ls"].count("(-") == 1
    assert "\\[-" in rows["ls"]
    assert "(default)" in rows["mbls"]
    assert "(" not in rows["ce"] + rows["acls"]
    assert "without a search: ce\n" in out
    assert "the published default failed or was not measured" in out
    assert out.rstrip().endswith("measure it): acls")


def test_progress_is_counted_over_recipes_and_metrics(table, progress):
    steps = progress("_table")
    table("--metrics", "ece,nll", more=1)
    assert steps == ["resampling", *((number, 10) for number in range(1, 11))]


@pytest.mark.full
def test_gains_are_those_of_each_task_and_metric(searched, made_up, artifacts, tmp_path):
    near, far = made_up(LABELS, 0), made_up(LABELS, 1, sharpness=4.0)
    kept = searched("fl", near, near)
    kept = replace(kept, default_predictions=kept.searched_predictions)
    other = replace(searched("turned", far, near), recipe="ls", task="other")
    changed = replace(searched("changed", far, near), recipe="fl", task="other")
    results = [searched("ls", near, far), kept, other, changed]
    shown = _with_gains(
        build_table(results, ("acc", "ece_floor", "ece", "smooth_ece")), str(tmp_path)
    )
    expected, first = {}, results[:2]
    for metric in ("acc", "ece", "smooth_ece"):
        for own in (first, results[2:]):
            found = search_gains(own, artifacts, metric)
            for recipe, gap in found.bootstrap.differences.items():
                ends = (gap.value, gap.low, gap.high)
                same = (recipe == "fl" and own is first, found.inside_floor(recipe))
                expected[recipe, own[0].task, metric] = Gain(*ends, *same)
    assert shown.gains == expected
    assert len(expected) == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--baseline", "ce"), "--show gain and --baseline exclude each other"),
        (("--metrics", "ece_floor"), "--show gain: no column of the table is one of acc, nll"),
    ],
)
def test_a_gain_that_cannot_be_shown_gets_one_line(table, arguments, message):
    code, _, err = table(*arguments)
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1
