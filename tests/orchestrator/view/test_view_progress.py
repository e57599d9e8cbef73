"""Charts of the best so far, of parallel coordinates and of learning curves over seeds."""

import pytest

from orchestrator.storage.journal import iterate_events
from orchestrator.storage.ledger import Ledger
from orchestrator.view import study_part
from orchestrator.view._progress import progress
from orchestrator.view._search import CURVES
from tests.charts import axes_of, check_chart, is_log, layer_of, points_of, rows_of


@pytest.fixture
def sweep(tmp_path, journal_writer):
    """Return a writer of a sweep with two recipes, and a function that reads its journal."""
    writer = journal_writer(tmp_path / "night", "night")
    writer.start(spec={"search": {"objective": "ece"}, "seeds": [0, 1, 2]})
    return writer, lambda: Ledger(iterate_events(writer.path, kinds=None), CURVES)


def searched(writer, recipe, objectives, **parameters):
    """Write a study with a trial for each objective; None is one that failed."""
    study = writer.open(recipe, trials=len(objectives))
    for number, objective in enumerate(objectives):
        given = {name: values[number] for name, values in parameters.items()}
        key = writer.begin(study, number, parameters=given)
        if objective is None:
            writer.finish(key, status="failed")
        else:
            writer.finish(key, val_ece=objective)
            writer.score(key, objective)
    return study


def test_the_best_so_far_is_a_step_by_trial_and_recipe(sweep):
    writer, read = sweep
    searched(writer, "mbls", [0.03, None, 0.05, 0.02, 0.04])
    searched(writer, "ce", [0.06])
    (chart,) = progress(read())
    check_chart(chart)
    assert axes_of(chart) == ["trial number", "validation ECE %"]
    expected = [(0, 3), (3, 2), (4, 2), (0, 6)]
    assert points_of(chart, "best") == [pytest.approx(point) for point in expected]
    assert [row["recipe"] for row in rows_of(chart, "best")] == ["mbls"] * 3 + ["ce"]
    assert layer_of(chart, "best")["mark"]["interpolate"] == "step-after"
    assert layer_of(chart, "best")["encoding"]["color"]["scale"]["domain"] == ["mbls", "ce"]


def test_nothing_is_drawn_before_two_trials_of_a_study_are_scored(sweep):
    writer, read = sweep
    searched(writer, "mbls", [0.03, None])
    searched(writer, "ce", [0.02])
    assert progress(read()) == []
    assert study_part(next(iter(read().studies.values())), read(), live=True)["best"] == []


def test_each_task_has_charts_of_its_own(sweep):
    writer, read = sweep
    searched(writer, "mbls", [0.03, 0.02])
    writer.trial(writer.open("mbls", task="other"), 0, 0.1)
    writer.trial("other|mbls", 1, 0.2)
    titles = [chart.title.partition(" so far by trial, ")[2] for chart in progress(read())]
    assert titles == ["digits/convnet/digits", "other"]


def test_a_study_shows_its_trials_around_the_best_so_far(sweep):
    writer, read = sweep
    study = searched(writer, "mbls", [0.03, 0.05, 0.02])
    writer.close(study, writer.key(study, 2))
    history = read()
    (chart,) = study_part(history.studies[study], history, live=True)["best"]
    check_chart(chart)
    dots = [pytest.approx(point) for point in [(0, 3), (1, 5), (2, 2)]]
    assert points_of(chart, "search") == dots
    assert points_of(chart, "ring") == dots[2:]
    assert points_of(chart, "best") == [dots[0], dots[2]]
    assert axes_of(chart) == ["trial number", "validation ECE %"]


def test_a_chart_without_a_chosen_trial_has_no_empty_layer(sweep):
    """Vega warns of one in the console of the browser."""
    writer, read = sweep
    study = searched(writer, "mbls", [0.03, 0.05], margin=[1.0, 2.0], scale=[1, 2])
    history = read()
    part = study_part(history.studies[study], history, live=True)
    charts = [*part["best"], *part["slices"], *part["parallel"]]
    assert len(charts) == 4
    for chart in charts:
        assert all(rows_of(chart, each["name"]) for each in chart.spec["layer"])


def test_a_sample_of_many_trials_has_the_chosen_one(sweep):
    writer, read = sweep
    objectives = [0.1 + number / 10_000 for number in range(500)]
    objectives[2] = 0.05
    study = searched(writer, "ce", objectives, a=range(500), b=range(500))
    writer.close(study, writer.key(study, 2))
    history = read()
    part = study_part(history.studies[study], history, live=True)
    assert len(rows_of(part["best"][0], "search")) == 401
    lines = rows_of(part["parallel"][0], "trial")
    assert len(lines) == 401
    assert [line["trial"] for line in lines if line["chosen"]] == [2]


def test_parallel_coordinates_have_an_axis_per_parameter_and_one_for_the_objective(sweep):
    writer, read = sweep
    given = {"alpha": [0.001, 0.1, 0.01], "kind": ["step", "flat", "flat"], "fixed": [1, 1, 1]}
    study = searched(writer, "mbls", [0.04, 0.02, 0.03], **given)
    writer.close(study, writer.key(study, 1))
    history = read()
    (chart,) = study_part(history.studies[study], history, live=True)["parallel"]
    check_chart(chart)
    lines = {line["trial"]: line for line in rows_of(chart, "trial")}
    assert [line["axis"] for line in lines.values()] == [["alpha", "kind", "validation ECE %"]] * 3
    assert lines[0]["place"] == pytest.approx([0, 1, 1])
    assert lines[1]["place"] == pytest.approx([1, 0, 0])
    assert lines[2]["place"] == pytest.approx([0.5, 0, 0.5])  # Far values, so by their ratio.
    assert lines[2]["told"] == ["0.01", "flat", "3"]
    assert list(lines) == [0, 2, 1]  # The chosen one is on top.
    marks = [(row["axis"], row["place"], row["text"]) for row in rows_of(chart, "marks")]
    assert marks[:5] == [
        *(("alpha", 0.0, "0.001"), ("alpha", 0.5, "0.01"), ("alpha", 1.0, "0.1")),
        *(("kind", 0.0, "flat"), ("kind", 1.0, "step")),
    ]
    assert axes_of(chart) == [
        "searched parameter; the last axis is the objective",
        "lowest to highest value",
    ]


def test_one_parameter_has_no_parallel_coordinates(sweep):
    writer, read = sweep
    study = searched(writer, "mbls", [0.04, 0.02], margin=[1.0, 2.0], fixed=[1, 1])
    history = read()
    assert study_part(history.studies[study], history, live=True)["parallel"] == []


def over_seeds(writer, values, recipe="ce"):
    """Write a chosen trial and its further seeds, each with its ECE by epoch."""
    study = writer.open(recipe, trials=1)
    for seed, curve in enumerate(values):
        role = "seed" if seed else "search"
        key = writer.begin(study, 0, role=role, seed=seed, configuration={"ce": {}}, key=f"{seed}")
        for step, value in enumerate(curve, 1):
            writer.write("epoch", key=key, step=step, metrics={"val_ece": value})
        writer.finish(key, val_ece=curve[-1])
    writer.close(study, "0")
    return study


def test_learning_curves_are_the_median_and_the_range_over_seeds(sweep):
    writer, read = sweep
    study = over_seeds(writer, [[0.3, 0.2, 0.1], [0.5, 0.1], [0.4, 0.6]])
    history = read()
    (chart,) = study_part(history.studies[study], history, live=True)["seeds"]
    check_chart(chart)
    (row,) = rows_of(chart, "band")
    assert row["epoch"] == [1, 2, 3]
    assert row["low"] == pytest.approx([30, 10, 10])
    assert row["value"] == pytest.approx([40, 20, 10])
    assert row["high"] == pytest.approx([50, 60, 10])
    assert row["seeds"] == [3, 3, 1]
    assert axes_of(chart) == ["epoch", "validation ECE %"]
    assert not is_log(chart, "y")
    assert chart.title == "validation ECE % by epoch, range over seeds"
    assert [each.title for each in progress(history)] == [chart.title]


def test_a_study_of_one_seed_repeats_no_curve(sweep):
    writer, read = sweep
    study = over_seeds(writer, [[0.3, 0.2, 0.1]])
    history = read()
    assert study_part(history.studies[study], history, live=True)["seeds"] == []
    (chart,) = progress(history)
    assert rows_of(chart, "median")[0]["epoch"] == [1, 2, 3]
