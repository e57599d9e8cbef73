"""The plots of a journal: which files, and what is drawn in them."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from orchestrator.storage.events import (
    Epoch,
    Event,
    StudyClosed,
    StudyOpened,
    SweepStarted,
    TrialFinished,
    TrialScored,
    TrialStarted,
)
from orchestrator.storage.ledger import Ledger
from orchestrator.view._search import CURVES
from orchestrator.view.plots import Plot, study_plots, write_plots
from tests.charts import axes_of, check_chart, is_log, layer_of, points_of, rows_of
from trainables.charts.chart import side_by_side
from trainables.common.errors import InputError

TASK = "digits/convnet/digits"
STUDY = f"{TASK}|ce+macal"
SVG = "{http://www.w3.org/2000/svg}"


def started(study: str, number: int, role: str = "search", **parameters: Any) -> Event:
    return TrialStarted(
        study=study,
        number=number,
        key=f"{study}#{number}",
        role=role,
        seed=0 if role == "search" else 1,
        stage="refine",
        parameters={f"macal.{name}": value for name, value in parameters.items()},
        configuration={"fl": {"gamma": 3.0}, "macal": parameters},
    )


def epochs(study: str, number: int, count: int = 4, **figures: float) -> Iterable[Event]:
    for step in range(1, count + 1):
        metrics = {"val_ece": 0.1 / step, "val_acc": 1 - 0.1 / step, **figures}
        yield Epoch(key=f"{study}#{number}", step=step, metrics=metrics)


def scored(study: str, number: int, objective: float) -> Event:
    return TrialScored(key=f"{study}#{number}", objective=objective)


def opened(study: str, tolerance: float | None = None) -> list[Event]:
    search = {"objective": "ece", "accuracy_tolerance": tolerance}
    return [
        SweepStarted(sweep="s", sweep_id="i", spec={"search": search}, provenance={}),
        StudyOpened(study=study, task=TASK, recipe="ce+macal", trials=3, row=True),
    ]


@pytest.fixture
def events() -> list[Event]:
    gammas = [0.95, 0.8, 0.9]
    told = opened(STUDY)
    for number, gamma in enumerate(gammas):
        told.append(started(STUDY, number, gamma=gamma))
        told.extend(epochs(STUDY, number, q=gamma / 2))
        told.append(scored(STUDY, number, 0.01 + abs(gamma - 0.9)))
    told.append(StudyClosed(study=STUDY, chosen=f"{STUDY}#2", finished=3, failed=0))
    told.append(started(STUDY, 3, role="seed", gamma=0.9))
    told.extend(epochs(STUDY, 3, q=0.4))
    return told


def drawn(events: list[Event]) -> dict[str, Plot]:
    history = Ledger(events, CURVES)
    (study,) = history.studies.values()
    return {plot.kind: plot for plot in study_plots(study, history)}


def places(plot: Plot, position: int, layer: str) -> list[tuple[Any, Any]]:
    return points_of(plot.charts[position], layer)


def values(plot: Plot, position: int, layer: str, name: str) -> list[Any]:
    """Return one field of what a layer shows."""
    return [row[name] for row in rows_of(plot.charts[position], layer)]


def test_the_files_are_named_by_study_and_kind_and_are_images(events, tmp_path):
    written = write_plots(events, tmp_path / "new" / "plots")
    stem = "digits-convnet-digits--ce+macal"
    names = [f"{stem}-{kind}.svg" for kind in ("slice", "learning", "q")]
    assert [path.name for path in written] == names
    for path, own in zip(written, drawn(events).values(), strict=True):
        texts = list(ElementTree.parse(path).getroot().itertext())
        assert {*own.title.split("\n"), *axes_of(own.charts[0])} <= {*texts}
        for chart in own.charts:
            check_chart(chart)


def test_charts_beyond_four_are_in_another_row(events: list[Event]) -> None:
    plot = drawn(events)["slice"]
    whole = side_by_side(plot.title.split("\n"), plot.charts * 6).alone
    assert (len(whole["concat"]), whole["columns"]) == (6, 4)
    root = ElementTree.fromstring(side_by_side(["six"], plot.charts * 6).image(".svg"))
    assert [text.text for text in root.iter(f"{SVG}text")].count("macal.gamma") == 12


def test_files_of_odd_names_are_named_plainly(tmp_path: Path) -> None:
    told: list[Event] = []
    for odd in ('a b/"ü"|ce', "a/b|ce", "a-b|ce"):
        told += [*opened(odd), started(odd, 0, gamma=0.9), *epochs(odd, 0, count=2)]
    names = ["a-b---ce-learning.svg", "a-b--ce-learning.svg", "a-b--ce-2-learning.svg"]
    assert write_plots(told, tmp_path) == [tmp_path / name for name in names]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_the_slice_shows_every_trial_and_marks_the_chosen_one(events: list[Event]) -> None:
    plot = drawn(events)["slice"]
    expected = [pytest.approx(point) for point in ([0.95, 6], [0.8, 11], [0.9, 1])]
    assert places(plot, 0, "search") == expected
    assert places(plot, 0, "ring") == expected[2:]
    assert places(plot, 0, "other") == expected  # Vega joins them from left to right.
    (chart,) = plot.charts
    assert chart.title == "macal.gamma"
    assert chart.label == "validation ECE against macal.gamma"
    assert axes_of(chart) == ["macal.gamma", "validation ECE %"]
    assert [(row["trial"], row["value"], row["told"]) for row in rows_of(chart, "search")] == [
        (0, "0.95", "6"),
        (1, "0.8", "11"),
        (2, "0.9", "1"),
    ]
    tip = layer_of(chart, "search")["encoding"]["tooltip"]
    assert [line["title"] for line in tip] == ["trial", "macal.gamma", "objective"]
    assert {kind: own.title for kind, own in drawn(events).items()} == {
        "slice": f"{STUDY}\nvalidation ECE % by parameter, ringed: chosen",
        "learning": f"{STUDY}\nthick: chosen",
        "q": f"{STUDY}\nthick: chosen, dashed: further seeds",
    }
    tones = [own.charts[0].spec["layer"][-1]["encoding"]["color"] for own in drawn(events).values()]
    assert [tone["title"] for tone in tones] == ["trial", "trial", "gamma"]
    assert [tone["scale"]["domain"] for tone in tones] == [[0, 2], [0, 2], [0.8, 0.95]]


def test_a_slice_shows_every_metric_that_was_searched_for(events: list[Event]) -> None:
    search = {"objective": "ece", "pareto": ["acc", "nll"]}
    told = [replace(events[0], spec={"search": search}), *events[1:]]
    for number, (accuracy, nll) in enumerate([(0.8, 1.0), (0.9, 0.2), (0.7, 0.6)]):
        metrics = {"val_acc": accuracy, "val_nll": nll}
        told.append(TrialFinished(key=f"{STUDY}#{number}", status="finished", metrics=metrics))
    plot = drawn(told)["slice"]
    assert plot.title.split("\n")[1] == "validation ECE %, Acc %, NLL by parameter, ringed: chosen"
    assert [(chart.title, chart.label) for chart in plot.charts] == [
        (f"{label}, macal.gamma", f"validation {label} against macal.gamma")
        for label in ("ECE", "Acc", "NLL")
    ]
    heights = [[6, 11, 1], [80, 90, 70], [1.0, 0.2, 0.6]]
    for position, expected in enumerate(heights):
        spots = list(zip([0.95, 0.8, 0.9], expected, strict=True))
        assert places(plot, position, "search") == [pytest.approx(spot) for spot in spots]
        assert places(plot, position, "ring") == [pytest.approx(spots[2])]
        assert len(places(plot, position, "other")) == 3
    words = [layer_of(chart, "search")["encoding"]["tooltip"][-1]["title"] for chart in plot.charts]
    assert words == ["objective", "Acc", "NLL"]
    assert [values(plot, p, "search", "told")[1] for p in range(3)] == ["11", "90", "0.2"]


def test_a_parameter_that_only_later_trials_have_is_shown_of_those() -> None:
    told = [*opened(STUDY)]
    tried = [{"gamma": 0.9}, {"gamma": 0.8, "hidden": 64}, {"gamma": 0.7, "hidden": 32}]
    for number, values in enumerate(tried):
        told += [started(STUDY, number, **values), scored(STUDY, number, 0.1)]
    plot = drawn(told)["slice"]
    assert [chart.title for chart in plot.charts] == ["macal.gamma", "macal.hidden"]
    assert [len(places(plot, position, "search")) for position in (0, 1)] == [3, 2]


def test_the_front_is_of_all_that_was_searched_for(events: list[Event]) -> None:
    assert "front" not in drawn(events)
    told = [*events]
    assert isinstance(told[0], SweepStarted)
    told[0] = replace(told[0], spec={"search": {"objective": "ece", "pareto": ["acc", "nll"]}})
    measured = [(0.8, 1.0), (0.9, 0.2), (0.8, 0.7)]  # By ECE they are the other way round.
    for number, (accuracy, nll) in enumerate(measured):
        metrics = {"val_acc": accuracy, "val_nll": nll}
        told.append(TrialFinished(key=f"{STUDY}#{number}", status="finished", metrics=metrics))
    once = [*told[:2], started(STUDY, 2, gamma=0.9), scored(STUDY, 2, 0.1), told[-1]]
    assert "front" not in drawn(once)
    told.append(scored(STUDY, 1, 0.09))
    plot = drawn(told)["front"]
    assert [chart.title for chart in plot.charts] == ["Acc against ECE", "NLL against ECE"]
    assert [chart.title for chart in plot.charts] == ["Acc against ECE", "NLL against ECE"]
    spots = [pytest.approx(point) for point in ([6, 80], [9, 90], [1, 80])]
    assert places(plot, 0, "search") == spots
    assert [values(plot, position, "search", "kept") for position in (0, 1)] == [
        [False, True, True]
    ] * 2
    assert places(plot, 1, "search")[0] == pytest.approx([6, 1.0])
    assert places(plot, 1, "ring") == [pytest.approx([1, 0.7])]
    names = ("trial", "told0", "told1", "told2", "parameters")
    assert [tuple(row[name] for name in names) for row in rows_of(plot.charts[0], "search")] == [
        (0, "6.00", "80.00", "1.0000", "macal.gamma 0.95"),
        (1, "9.00", "90.00", "0.2000", "macal.gamma 0.8"),
        (2, "1.00", "80.00", "0.7000", "macal.gamma 0.9"),
    ]
    labels = [chart.label for chart in plot.charts]
    assert labels == ["validation Acc against ECE", "validation NLL against ECE"]
    assert plot.title == f"{STUDY}\ngrey: dominated, ringed: chosen"
    assert axes_of(plot.charts[0]) == ["validation ECE %", "validation Acc %"]
    assert axes_of(plot.charts[1]) == ["validation ECE %", "validation NLL"]
    metrics = {"val_acc": 0.7, "val_nll": 0.2}  # The best by NLL alone.
    last = TrialFinished(key=f"{STUDY}#1", status="finished", metrics=metrics)
    again = drawn([*told, last])["front"]
    assert values(again, 0, "search", "kept") == [False, True, True]
    far = drawn([*told, scored(STUDY, 1, 0.9)])["front"]
    assert [is_log(own.charts[0], "x") for own in (plot, far)] == [False, True]
    colour = layer_of(plot.charts[0], "search")["encoding"]["color"]
    assert (colour["condition"]["test"], colour["value"]) == ("datum.kept", "var(--reference)")
    told[0] = replace(told[0], spec={"search": {"objective": "nll"}})
    assert drawn(told)["slice"].title == (f"{STUDY}\nvalidation NLL by parameter, ringed: chosen")
    heights = [height for _, height in places(drawn(told)["slice"], 0, "search")]
    assert heights == pytest.approx([0.06, 0.09, 0.01])


def test_a_trial_without_any_error_is_part_of_the_front() -> None:
    begun, *told = opened(STUDY)
    assert isinstance(begun, SweepStarted)
    told.insert(0, replace(begun, spec={"search": {"objective": "ece", "pareto": ["acc"]}}))
    for number, objective in enumerate((0.0, 0.25)):
        metrics = {"val_acc": 0.5 + objective}
        told += [started(STUDY, number, gamma=0.9), scored(STUDY, number, objective)]
        told.append(TrialFinished(key=f"{STUDY}#{number}", status="finished", metrics=metrics))
    spots = places(drawn(told)["front"], 0, "search")
    assert spots == [pytest.approx(point) for point in ([0, 50], [25, 75])]


def test_a_guarded_objective_says_so(events: list[Event]) -> None:
    guarded = [*opened(STUDY, 0.01), *events[2:]]
    assert drawn(guarded)["slice"].title == (
        f"{STUDY}\nvalidation ECE % + lost accuracy beyond tolerance by parameter, ringed: chosen"
    )
    assert "lost accuracy" not in drawn(events)["slice"].title


def test_learning_curves_are_those_of_the_search(events: list[Event]) -> None:
    plot = drawn(events)["learning"]
    errors = [height for _, height in places(plot, 0, "trial")]
    assert errors == pytest.approx([10, 5, 10 / 3, 2.5] * 3)
    accuracies = [height for _, height in places(plot, 1, "trial")]
    assert accuracies == pytest.approx([90, 95, 100 - 10 / 3, 97.5] * 3)
    # The chosen one above the others, and of those the better one.
    assert values(plot, 1, "trial", "trial") == [1, 0, 2]
    assert values(plot, 0, "trial", "chosen") == [False, False, True]
    assert values(plot, 0, "trial", "epoch") == [[1, 2, 3, 4]] * 3
    assert [(chart.title, chart.label) for chart in plot.charts] == [
        ("validation ECE % by epoch",) * 2,
        ("validation Acc % by epoch",) * 2,
    ]
    assert axes_of(plot.charts[1]) == ["epoch", "validation Acc %"]


def test_trajectories_of_q_are_labelled_by_gamma(events: list[Event]) -> None:
    plot = drawn(events)["q"]
    title = "retention probability q by epoch"
    assert [(chart.title, chart.label) for chart in plot.charts] == [(title, title)]
    assert axes_of(plot.charts[0]) == ["epoch", "retention probability q"]
    heights = [height for _, height in places(plot, 0, "trial")]
    assert sorted(heights) == pytest.approx([0.4] * 8 + [0.45] * 4 + [0.475] * 4)
    assert sorted(values(plot, 0, "trial", "gamma")) == [0.8, 0.9, 0.9, 0.95]
    seeds = [row["gamma"] for row in rows_of(plot.charts[0], "trial") if row["seed"]]
    assert seeds == [0.9]


def test_categories_and_wide_ranges_have_axes_of_their_own() -> None:
    told = opened(STUDY)
    for number, (lr, sparsity) in enumerate([(0.001, "fixed"), (0.1, "decaying"), (0.5, "fixed")]):
        told.append(started(STUDY, number, lr=lr, sparsity=sparsity, q0=0.5))
        told.append(scored(STUDY, number, 0.02))
    plot = drawn(told)["slice"]
    assert [chart.title for chart in plot.charts] == ["macal.lr", "macal.sparsity"]
    assert is_log(plot.charts[0], "x")
    assert [x for x, _ in places(plot, 1, "search")] == ["fixed", "decaying", "fixed"]
    assert layer_of(plot.charts[1], "search")["encoding"]["x"]["type"] == "nominal"
    assert not places(plot, 0, "other")
    check_chart(plot.charts[1])


def test_values_that_are_on_or_off_are_named(events: list[Event]) -> None:
    told = opened(STUDY)
    for number, views in enumerate((True, False, True)):
        told += [started(STUDY, number, views=views), scored(STUDY, number, number / 100)]
    plot = drawn(told)["slice"]
    assert [x for x, _ in places(plot, 0, "search")] == ["True", "False", "True"]
    assert not places(plot, 0, "other")


def test_studies_without_data_get_no_plots(tmp_path: Path) -> None:
    told = [*opened(STUDY), started(STUDY, 0, gamma=0.9), scored(STUDY, 0, 0.1)]
    assert write_plots(told, tmp_path) == []
    assert write_plots([], tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_a_failed_trial_has_a_curve_and_no_point(events: list[Event]) -> None:
    lost = [started(STUDY, 4, gamma=0.99), *epochs(STUDY, 4, count=2)]
    # Before the others, and a further seed that told nothing.
    failed = drawn([*events[:2], *lost, *events[2:], started(STUDY, 5, role="seed", gamma=0.5)])
    assert values(failed["slice"], 0, "search", "trial") == [0, 1, 2]
    assert sorted(values(failed["learning"], 0, "trial", "trial")) == [0, 1, 2, 4]
    assert {*values(failed["q"], 0, "trial", "gamma")} == {0.8, 0.9, 0.95}


def test_curves_leave_out_values_that_are_not_finite(events: list[Event]) -> None:
    told = [*events, started(STUDY, 4, gamma=0.99), *epochs(STUDY, 4, count=1)]
    for number, value in enumerate([0.3, float("nan"), 0.1, float("inf")], start=2):
        metrics = {"val_ece": value, "val_acc": 0.5}
        told.append(Epoch(key=f"{STUDY}#4", step=number, metrics=metrics))
    told += [started(STUDY, 5, gamma=0.7), *epochs(STUDY, 5, count=1)]  # A point is no line.
    plot = drawn(told)["learning"]
    lines = {row["trial"]: row for row in rows_of(plot.charts[0], "trial")}
    assert sorted(lines) == [0, 1, 2, 4]
    assert (lines[4]["epoch"], lines[4]["value"]) == ([1, 2, 4], [10, 30, 10])


def test_a_plot_that_cannot_be_written_is_named(events: list[Event], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    path = tmp_path / "file" / "digits-convnet-digits--ce+macal-slice.svg"
    with pytest.raises(InputError) as caught:
        write_plots(events, tmp_path / "file")
    assert str(caught.value) == f"plot {path} cannot be written: File exists"
