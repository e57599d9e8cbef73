"""The plots of a journal: which files, and what is drawn in them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from orchestrator import plots
from orchestrator._history import read_history
from orchestrator.cli._plot import plot
from orchestrator.plots import write_plots
from trainables.errors import InputError

Event = dict[str, Any]
TASK = "digits/convnet/digits"
STUDY = f"{TASK}|ce+macal"


def started(study: str, number: int, role: str = "search", **parameters: Any) -> Event:
    return {
        "event": "trial_started",
        "study": study,
        "number": number,
        "key": f"{study}#{number}",
        "role": role,
        "seed": 0 if role == "search" else 1,
        "stage": "refine",
        "parameters": {f"macal.{name}": value for name, value in parameters.items()},
        "configuration": {"fl": {"gamma": 3.0}, "macal": parameters},
    }


def epochs(study: str, number: int, count: int = 4, **figures: float) -> Iterable[Event]:
    for step in range(1, count + 1):
        metrics = {"val_ece": 0.1 / step, "val_acc": 1 - 0.1 / step, **figures}
        key = f"{study}#{number}"
        yield {"event": "epoch", "key": key, "step": step, "metrics": metrics}


def scored(study: str, number: int, objective: float) -> Event:
    return {"event": "trial_scored", "key": f"{study}#{number}", "objective": objective}


def opened(study: str, tolerance: float | None = None) -> list[Event]:
    search = {"objective": "ece", "accuracy_tolerance": tolerance}
    return [
        {"event": "sweep_started", "sweep": "s", "sweep_id": "i", "spec": {"search": search}},
        {"event": "study_opened", "study": study, "task": TASK, "recipe": "ce+macal"},
    ]


@pytest.fixture
def events() -> list[Event]:
    gammas = [0.95, 0.8, 0.9]
    told = opened(STUDY)
    for number, gamma in enumerate(gammas):
        told.append(started(STUDY, number, gamma=gamma))
        told.extend(epochs(STUDY, number, q=gamma / 2))
        told.append(scored(STUDY, number, 0.01 + abs(gamma - 0.9)))
    told.append({"event": "study_closed", "study": STUDY, "chosen": f"{STUDY}#2"})
    told.append(started(STUDY, 3, role="seed", gamma=0.9))
    told.extend(epochs(STUDY, 3, q=0.4))
    return told


def figures(events: list[Event]) -> dict[str, Any]:
    history = read_history(events)
    (study,) = history.studies.values()
    return dict(plots._figures(study, history))


def test_the_files_are_named_by_study_and_kind_and_are_images(
    events: list[Event], tmp_path: Path
) -> None:
    written = write_plots(events, tmp_path / "new" / "plots")
    stem = "digits-convnet-digits--ce+macal"
    assert [path.name for path in written] == [
        f"{stem}-slice.png",
        f"{stem}-learning.png",
        f"{stem}-q.png",
    ]
    for path in written:
        pixels = imread(path)
        assert min(pixels.shape[:2]) > 300
        assert pixels[..., :3].std() > 0.05


def test_the_slice_shows_every_trial_and_marks_the_chosen_one(events: list[Event]) -> None:
    axes = figures(events)["slice"].axes[0]
    trials, chosen = (collection.get_offsets() for collection in axes.collections)
    assert trials.tolist() == [pytest.approx(p) for p in ([0.95, 6], [0.8, 11], [0.9, 1])]
    assert chosen.tolist() == [pytest.approx([0.9, 1.0])]
    assert axes.get_xlabel() == "macal.gamma"
    assert axes.get_ylabel() == "validation ECE %"
    (curve,) = axes.lines
    assert curve.get_xdata().tolist() == [0.8, 0.9, 0.95]


def test_a_guarded_objective_says_so(events: list[Event]) -> None:
    guarded = [*opened(STUDY, 0.01), *events[2:]]
    label = figures(guarded)["slice"].axes[0].get_ylabel()
    assert "lost accuracy" in label


def test_learning_curves_are_those_of_the_search(events: list[Event]) -> None:
    error, accuracy = figures(events)["learning"].axes[:2]
    assert len(error.lines) == len(accuracy.lines) == 3
    assert error.lines[0].get_ydata().tolist() == pytest.approx([10, 5, 10 / 3, 2.5])
    assert accuracy.lines[0].get_ydata().tolist() == pytest.approx([90, 95, 100 - 10 / 3, 97.5])
    assert [line.get_label() for line in error.lines].count("chosen") == 1


def test_the_trajectory_of_q_is_told_apart_by_the_refinements_gamma(events: list[Event]) -> None:
    figure = figures(events)["q"]
    (axes,) = figure.axes
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["0.8", "0.9", "0.95"]
    styles = [(line.get_ydata()[0], line.get_linestyle()) for line in axes.lines]
    assert styles == [(0.4, "-"), (0.45, "-"), (0.4, "--"), (0.475, "-")]


def test_categories_and_wide_ranges_have_axes_of_their_own() -> None:
    told = opened(STUDY)
    for number, (lr, sparsity) in enumerate([(0.001, "fixed"), (0.1, "decaying"), (0.5, "fixed")]):
        told.append(started(STUDY, number, lr=lr, sparsity=sparsity, q0=0.5))
        told.append(scored(STUDY, number, 0.02))
    first, second = figures(told)["slice"].axes[:2]
    assert first.get_xscale() == "log"
    assert [text.get_text() for text in second.get_xticklabels()] == ["decaying", "fixed"]
    assert second.collections[0].get_offsets()[:, 0].tolist() == [1, 0, 1]


def test_what_is_not_there_is_not_drawn(tmp_path: Path) -> None:
    told = [*opened(STUDY), started(STUDY, 0, gamma=0.9), scored(STUDY, 0, 0.1)]
    assert write_plots(told, tmp_path) == []
    assert write_plots([], tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_a_failed_trial_has_a_curve_and_no_point(events: list[Event]) -> None:
    failed = [*events, started(STUDY, 4, gamma=0.99), *epochs(STUDY, 4, count=2)]
    drawn = figures(failed)
    assert len(drawn["slice"].axes[0].collections[0].get_offsets()) == 3
    assert len(drawn["learning"].axes[0].lines) == 4


def test_a_resumed_trial_adds_nothing_to_an_epoch_that_it_repeats(events: list[Event]) -> None:
    again = [*events, started(STUDY, 0, gamma=0.95), *epochs(STUDY, 0, q=0.9, val_ece=0.9)]
    trial = next(iter(read_history(again).studies.values())).searched[0]
    assert trial.curve("q") == ([1, 2, 3, 4], [0.475] * 4)


def test_a_folder_that_cannot_be_made_is_named(events: list[Event], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match=r"plot .*file/digits-.*png cannot be written"):
        write_plots(events, tmp_path / "file")


def test_the_command_names_the_sweeps_there_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no sweep 'x' in .*; there are: none"):
        plot("x", str(tmp_path))
