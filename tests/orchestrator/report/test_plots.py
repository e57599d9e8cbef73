"""The plots of a journal: which files, and what is drawn in them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from orchestrator.report._chart import Mark
from orchestrator.report._page import environment
from orchestrator.report._search import CURVES
from orchestrator.report.plots import Plot, study_plots, write_plots
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


def marks(plot: Plot, position: int, style: str) -> list[Mark]:
    return [mark for mark in plot.charts[position].chart.marks if style in mark.style.split()]


def places(plot: Plot, position: int, style: str) -> list[list[float]]:
    """Return where marks are in the units of the axes, which are linear here."""
    chart = plot.charts[position].chart
    found = []
    for mark in marks(plot, position, style):
        for x, y in mark.points:
            across = (x - chart.left) / (chart.right - chart.left)
            up = (chart.bottom - y) / (chart.bottom - chart.top)
            width, height = chart.x.high - chart.x.low, chart.y.high - chart.y.low
            found.append([chart.x.low + across * width, chart.y.low + up * height])
    return found


def words(plot: Plot, position: int) -> list[str]:
    return [mark.text for mark in plot.charts[position].chart.marks if mark.tag == "text"]


def test_the_files_are_named_by_study_and_kind_and_are_images(
    events: list[Event], tmp_path: Path
) -> None:
    written = write_plots(events, tmp_path / "new" / "plots")
    stem = "digits-convnet-digits--ce+macal"
    names = [f"{stem}-{kind}.svg" for kind in ("slice", "learning", "q")]
    assert [path.name for path in written] == names
    for path, own in zip(written, drawn(events).values(), strict=True):
        check_written(ElementTree.parse(path).getroot(), own)


def check_written(root: ElementTree.Element, plot: Plot) -> None:
    wide, high = (float(root.attrib[name]) for name in ("width", "height"))
    width, height = plot.charts[0].chart.size
    texts = [text.text for text in root.findall(f"{SVG}text")]
    assert texts[:2] == plot.title.split("\n")
    assert texts[2:] == [plot.measure, *(f"{number:.4g}" for number in sorted(plot.key))]
    colours = [key.attrib["color"] for key in root.findall(f"{SVG}path")]
    assert colours == [plot.key[number] for number in sorted(plot.key)]
    corners = []
    for figure, group in zip(plot.charts, root.findall(f"{SVG}g"), strict=True):
        corners.append(tuple(map(int, re.findall(r"\d+", group.attrib["transform"]))))
        assert group.findtext(f"{SVG}text") == figure.title
        (inner,) = group.findall(f"{SVG}svg")
        assert len([each for each in inner if each.tag != f"{SVG}title"]) == len(figure.chart.marks)
    # No two on the same place, and all of them on the picture.
    assert len({*corners}) == len(plot.charts)
    assert all(x + width < wide and y + height <= high for x, y in corners)


def test_charts_beyond_four_stand_in_another_row(events: list[Event]) -> None:
    plot = drawn(events)["slice"]
    many = plot._replace(charts=plot.charts * 6)
    root = ElementTree.fromstring(environment().get_template("plot.svg").render(plot=many))
    check_written(root, many)
    places = [group.attrib["transform"] for group in root.findall(f"{SVG}g")]
    assert places[3:5] == ["translate(734, 62)", "translate(8, 256)"]


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
    assert places(plot, 0, "other") == [expected[1], expected[2], expected[0]]
    (figure,) = plot.charts
    assert figure.title == "macal.gamma"
    assert figure.chart.label == "validation ECE against macal.gamma"
    assert [mark.text for mark in marks(plot, 0, "search")] == [
        "trial 0: macal.gamma 0.95, objective 6",
        "trial 1: macal.gamma 0.8, objective 11",
        "trial 2: macal.gamma 0.9, objective 1",
    ]
    assert {kind: own.title for kind, own in drawn(events).items()} == {
        "slice": f"{STUDY}\nvalidation ECE % by parameter, ringed: chosen",
        "learning": f"{STUDY}\nthick: chosen",
        "q": f"{STUDY}\nthick: chosen, dashed: further seeds",
    }
    assert [own.measure for own in drawn(events).values()] == ["trial", "trial", "gamma"]
    # Room of 8 % beside the values of a parameter, of 6 % above and below the objective.
    assert figure.chart.x[:2] == pytest.approx((0.8 - 0.012, 0.95 + 0.012))
    assert figure.chart.y[:2] == pytest.approx((1 - 0.6, 11 + 0.6))
    assert words(plot, 0) == ["5", "10", "0.8", "0.85", "0.9", "0.95"]
    assert [mark.colour for mark in marks(plot, 0, "search")] == [*plot.key.values()]
    assert list(plot.key) == [0, 1, 2]


def test_a_slice_shows_every_metric_that_was_searched_for(events: list[Event]) -> None:
    search = {"objective": "ece", "pareto": ["acc", "nll"]}
    told = [replace(events[0], spec={"search": search}), *events[1:]]
    for number, (accuracy, nll) in enumerate([(0.8, 1.0), (0.9, 0.2), (0.7, 0.6)]):
        metrics = {"val_acc": accuracy, "val_nll": nll}
        told.append(TrialFinished(key=f"{STUDY}#{number}", status="finished", metrics=metrics))
    plot = drawn(told)["slice"]
    assert plot.title.split("\n")[1] == "validation ECE %, Acc %, NLL by parameter, ringed: chosen"
    assert [(figure.title, figure.chart.label) for figure in plot.charts] == [
        (f"{label}, macal.gamma", f"validation {label} against macal.gamma")
        for label in ("ECE", "Acc", "NLL")
    ]
    heights = [[6, 11, 1], [80, 90, 70], [1.0, 0.2, 0.6]]
    for position, expected in enumerate(heights):
        spots = list(zip([0.95, 0.8, 0.9], expected, strict=True))
        assert places(plot, position, "search") == [pytest.approx(spot) for spot in spots]
        assert places(plot, position, "ring") == [pytest.approx(spots[2])]
        assert places(plot, position, "other") == [pytest.approx(s) for s in sorted(spots)]
    texts = [marks(plot, position, "search")[1].text for position in range(3)]
    assert [text.rpartition(", ")[2] for text in texts] == ["objective 11", "Acc 90", "NLL 0.2"]


def test_a_parameter_that_only_later_trials_have_is_shown_of_those() -> None:
    told = [*opened(STUDY)]
    tried = [{"gamma": 0.9}, {"gamma": 0.8, "hidden": 64}, {"gamma": 0.7, "hidden": 32}]
    for number, values in enumerate(tried):
        told += [started(STUDY, number, **values), scored(STUDY, number, 0.1)]
    plot = drawn(told)["slice"]
    assert [figure.title for figure in plot.charts] == ["macal.gamma", "macal.hidden"]
    assert [len(marks(plot, position, "search")) for position in (0, 1)] == [3, 2]


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
    assert [figure.title for figure in plot.charts] == ["Acc against ECE", "NLL against ECE"]
    assert places(plot, 0, "search") == [pytest.approx(point) for point in ([9, 90], [1, 80])]
    assert places(plot, 1, "beaten") == [pytest.approx([6, 1.0])]
    assert places(plot, 1, "ring") == [pytest.approx([1, 0.7])]
    assert [mark.text for mark in marks(plot, 0, "mark")] == [
        "trial 0: objective 6.00, Acc 80.00, NLL 1.0000; macal.gamma 0.95",
        "trial 1: objective 9.00, Acc 90.00, NLL 0.2000; macal.gamma 0.8",
        "trial 2: objective 1.00, Acc 80.00, NLL 0.7000; macal.gamma 0.9",
    ]
    labels = [figure.chart.label for figure in plot.charts]
    assert labels == ["validation Acc against ECE", "validation NLL against ECE"]
    assert plot.title == f"{STUDY}\ngrey: beaten in all, ringed: chosen"
    assert plot.measure == "trial"
    assert words(plot, 0) == ["80", "85", "90", "5"]
    assert words(plot, 1) == ["0.2", "0.4", "0.6", "0.8", "1", "5"]
    metrics = {"val_acc": 0.7, "val_nll": 0.2}  # The best by NLL alone.
    last = TrialFinished(key=f"{STUDY}#1", status="finished", metrics=metrics)
    assert places(drawn([*told, last])["front"], 0, "beaten") == [pytest.approx([6, 80])]
    far = drawn([*told, scored(STUDY, 1, 0.9)])["front"]
    assert [own.charts[0].chart.x.log for own in (plot, far)] == [False, True]
    assert plot.key == drawn(told)["slice"].key
    assert marks(plot, 1, "search")[1].colour == plot.key[2]
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
    assert [len(marks(plot, position, "trial")) for position in (0, 1)] == [3, 3]
    errors = [height for _, height in places(plot, 0, "trial")]
    assert errors == pytest.approx([10, 5, 10 / 3, 2.5] * 3)
    accuracies = [height for _, height in places(plot, 1, "trial")]
    assert accuracies == pytest.approx([90, 95, 100 - 10 / 3, 97.5] * 3)
    assert [mark.text for mark in marks(plot, 0, "chosen")] == ["trial 2"]
    epochs_told = ["1", "2", "3", "4"]
    assert words(plot, 0) == ["4", "6", "8", "10", *epochs_told]
    assert words(plot, 1) == ["90", "92", "94", "96", *epochs_told]
    # The chosen one above the others, and of those the better one.
    assert [mark.text for mark in marks(plot, 1, "trial")] == ["trial 1", "trial 0", "trial 2"]
    assert [(figure.title, figure.chart.label) for figure in plot.charts] == [
        ("validation ECE % by epoch",) * 2,
        ("validation Acc % by epoch",) * 2,
    ]


@pytest.mark.parametrize(("count", "ticks"), [(10, ["2", "4", "6", "8", "10"]), (12, ["5", "10"])])
def test_epochs_have_about_four_ticks(count: int, ticks: list[str]) -> None:
    told = [*opened(STUDY), started(STUDY, 0, gamma=0.9), *epochs(STUDY, 0, count=count)]
    for position in (0, 1):
        assert words(drawn(told)["learning"], position)[-len(ticks) :] == ticks


def test_the_trajectory_of_q_is_told_apart_by_the_refinements_gamma(events: list[Event]) -> None:
    plot = drawn(events)["q"]
    assert (plot.measure, list(plot.key)) == ("gamma", [0.8, 0.9, 0.95])
    assert words(plot, 0) == ["0", "0.5", "1", "1", "2", "3", "4"]
    title = "retention probability q by epoch"
    assert [(own.title, own.chart.label) for own in plot.charts] == [(title, title)]
    lines = {mark.text: mark for mark in marks(plot, 0, "trial") if "seed" not in mark.style}
    assert {text: mark.colour for text, mark in lines.items()} == {
        f"gamma {gamma}": colour for gamma, colour in plot.key.items()
    }
    heights = [height for _, height in places(plot, 0, "trial")]
    assert sorted(heights) == pytest.approx([0.4] * 8 + [0.45] * 4 + [0.475] * 4)
    assert [mark.text for mark in marks(plot, 0, "seed")] == ["gamma 0.9"]


@pytest.mark.parametrize(("count", "step"), [(1, None), (12, 1), (13, 2), (24, 2), (25, 3)])
def test_a_key_names_a_few_of_many(events: list[Event], count: int, step: int | None) -> None:
    plot = drawn(events)["slice"]._replace(key=dict.fromkeys(range(count), "#000000"))
    shown = [] if step is None else [str(number) for number in range(0, count, step)]
    assert plot.shown_key == [(number, "#000000") for number in shown]


def test_categories_and_wide_ranges_have_axes_of_their_own() -> None:
    told = opened(STUDY)
    for number, (lr, sparsity) in enumerate([(0.001, "fixed"), (0.1, "decaying"), (0.5, "fixed")]):
        told.append(started(STUDY, number, lr=lr, sparsity=sparsity, q0=0.5))
        told.append(scored(STUDY, number, 0.02))
    plot = drawn(told)["slice"]
    assert [figure.title for figure in plot.charts] == ["macal.lr", "macal.sparsity"]
    assert plot.charts[0].chart.x.log
    words = [mark.text for mark in plot.charts[1].chart.marks if mark.tag == "text"]
    assert words[-2:] == ["decaying", "fixed"]
    assert [x for x, _ in places(plot, 1, "search")] == pytest.approx([1, 0, 1])
    assert not marks(plot, 0, "other")


def test_what_is_on_or_off_is_named_and_stands_in_its_order() -> None:
    told = opened(STUDY)
    for number, views in enumerate((True, False, True)):
        told += [started(STUDY, number, views=views), scored(STUDY, number, number / 100)]
    plot = drawn(told)["slice"]
    chart = plot.charts[0].chart
    assert (chart.x.low, chart.x.high) == pytest.approx((-0.6, 1.6))
    assert [mark.text for mark in chart.marks if mark.tag == "text"][-2:] == ["False", "True"]
    assert [x for x, _ in places(plot, 0, "search")] == pytest.approx([1, 0, 1])
    assert not marks(plot, 0, "other")


def test_what_is_not_there_is_not_drawn(tmp_path: Path) -> None:
    told = [*opened(STUDY), started(STUDY, 0, gamma=0.9), scored(STUDY, 0, 0.1)]
    assert write_plots(told, tmp_path) == []
    assert write_plots([], tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_a_failed_trial_has_a_curve_and_no_point(events: list[Event]) -> None:
    lost = [started(STUDY, 4, gamma=0.99), *epochs(STUDY, 4, count=2)]
    # Before the others, and a further seed that told nothing.
    failed = drawn([*events[:2], *lost, *events[2:], started(STUDY, 5, role="seed", gamma=0.5)])
    assert len(places(failed["slice"], 0, "search")) == 3
    assert len(marks(failed["learning"], 0, "trial")) == 4
    keys = {kind: list(plot.key) for kind, plot in failed.items()}
    assert keys == {"slice": [0, 1, 2], "learning": [0, 1, 2, 4], "q": [0.8, 0.9, 0.95]}
    for kind, style in (("slice", "search"), ("learning", "trial")):
        told = {mark.text.split(":")[0]: mark.colour for mark in marks(failed[kind], 0, style)}
        assert told == {f"trial {number}": tone for number, tone in failed[kind].key.items()}


def test_what_is_not_finite_is_left_out_of_a_curve(events: list[Event]) -> None:
    told = [*events, started(STUDY, 4, gamma=0.99), *epochs(STUDY, 4, count=1)]
    for number, value in enumerate([0.3, float("nan"), 0.1, float("inf")], start=2):
        metrics = {"val_ece": value, "val_acc": 0.5}
        told.append(Epoch(key=f"{STUDY}#4", step=number, metrics=metrics))
    told += [started(STUDY, 5, gamma=0.7), *epochs(STUDY, 5, count=1)]  # A point is no line.
    plot = drawn(told)["learning"]
    lines = {mark.text: mark for mark in marks(plot, 0, "trial")}
    assert sorted(lines) == ["trial 0", "trial 1", "trial 2", "trial 4"]
    chart = plot.charts[0].chart
    spots = [chart.at(step, 100 * value) for step, value in ((1, 0.1), (2, 0.3), (4, 0.1))]
    assert lines["trial 4"].points == spots


def test_a_plot_that_cannot_be_written_is_named(events: list[Event], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    path = tmp_path / "file" / "digits-convnet-digits--ce+macal-slice.svg"
    with pytest.raises(InputError) as caught:
        write_plots(events, tmp_path / "file")
    assert str(caught.value) == f"plot {path} cannot be written: File exists"
