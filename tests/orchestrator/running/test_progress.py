"""The line that a person watching a sweep reads."""

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from orchestrator.running.control import Snapshot, _panel, say, show_progress, snapshot
from orchestrator.search.state import SweepState
from orchestrator.search.study_state import TrialSpec
from orchestrator.storage.ledger import Ledger
from orchestrator.sweep.plan import make_plan
from orchestrator.sweep.spec import parse_sweep
from trainables.data import PreparedData, SplitSpec, prepare


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    folder: Path = tmp_path_factory.mktemp("data")
    return prepare("digits", folder, SplitSpec(), folder / "prepared")


def make_state(
    data: PreparedData, tasks: int = 1, emit: Callable[[Any], None] = lambda _: None
) -> SweepState:
    listed = ", ".join(
        f"{{name: t{n}, dataset: digits, model: convnet, protocol: digits}}" for n in range(tasks)
    )
    spec = parse_sweep(
        f"name: p\ntasks: [{listed}]\nrecipes: [ce, ls]\n"
        "search: {trials: 2, accuracy_tolerance: null, objective: ece}\nseeds: [0, 1]\n",
        "p",
    )
    prepared = {task.id: data for task in spec.tasks}
    return SweepState(make_plan(spec), "sweep", prepared, emit)


def ends(state: SweepState, trial: TrialSpec | None, ece: float | None) -> TrialSpec:
    """Have a trial end, failed without an error."""
    assert trial is not None
    if ece is None:
        outcome = trial.ending("failed", {}, reason="nan")
    else:
        metrics = {"val_ece": ece, "val_acc": 0.9}
        outcome = trial.ending("finished", metrics, artifact=trial.key)
    state.record(trial, outcome)
    return trial


def test_a_snapshot_counts_studies_and_trials(data: PreparedData) -> None:
    state = make_state(data)
    assert snapshot(state).line() == "studies 0/2 · trials 0/5, 0 running"
    first, other = state.next_trial(), state.next_trial()
    trial = ends(state, first, 0.25)
    now = snapshot(state)
    assert (now.trials, now.all_trials, now.running, now.failed) == (1, 5, 1, 0)
    assert now.best == f"{trial.study.split('|')[1]} (validation ece 0.2500)"
    failed = ends(state, other, None)
    assert " · 1 failed · best so far " in snapshot(state).line()
    ends(state, next(t for t in iter(state.next_trial, None) if t.study == failed.study), None)
    assert " · 2 failed · best so far " in snapshot(state).line()


def test_trials_stopped_early_are_not_shown_as_the_best(data: PreparedData) -> None:
    events: list[Any] = []
    first = make_state(data, emit=events.append)
    ends(first, first.next_trial(), 0.25)
    spec = first.plan.spec
    again = SweepState(
        make_plan(spec), "sweep", {spec.tasks[0].id: data}, lambda _: None, Ledger(events)
    )
    again.take_over()
    assert snapshot(again).trials == 1
    trial = next(one for one in iter(again.next_trial, None) if one.study.endswith("|ls"))
    again.record(trial, trial.ending("pruned", {"val_ece": 0.125, "val_acc": 0.9}))
    now = snapshot(again, 75.0)
    assert (now.trials, now.seconds_left) == (2, 75.0)
    assert now.best.endswith("(validation ece 0.2500)")


def test_studies_are_done_with_their_last_seed(data: PreparedData) -> None:
    state = make_state(data)
    ended = []
    while (trial := state.next_trial()) is not None:
        ends(state, trial, 0.1)
        ended.append(snapshot(state))
    assert [now.studies for now in ended] == [0, 1, 1, 1, 2]
    assert [(now.trials, now.all_trials) for now in ended] == [(n, 5) for n in range(1, 6)]


def test_with_several_tasks_the_best_names_its_own(data: PreparedData) -> None:
    state = make_state(data, tasks=2)
    trial = ends(state, state.next_trial(), 0.125)
    best = f"{trial.study} (validation ece 0.1250)"
    assert snapshot(state).best == best
    worse = ends(state, state.next_trial(), 0.25)
    assert (worse.study != trial.study, snapshot(state).best) == (True, best)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (5.2, "5 s"), (65, "1 min 05 s"), (59.7, "1 min 00 s"), (7260, "2 h 01 min")],
)
def test_the_time_left_is_readable(seconds: float | None, text: str) -> None:
    line = Snapshot(1, 2, 3, 4, 1, 0, "", seconds).line()
    assert line == "studies 1/2 · trials 3/4, 1 running" + (f" · about {text} left" if text else "")


def test_without_a_terminal_a_line_is_shown_seldom() -> None:
    output = io.StringIO()
    now = Snapshot(1, 2, 3, 4, 1, 0, "ls (validation ece 0.1)", 5.0)
    with show_progress(Console(file=output, width=20)) as show:
        for _ in range(5):
            show(lambda: now)
    assert output.getvalue() == f"{now.line()}\n"
    with show_progress(None) as show:
        show(lambda: pytest.fail("nobody looks"))
    assert output.getvalue() == f"{now.line()}\n"


@pytest.mark.parametrize(("terminal", "seconds"), [(False, 10.0), (True, 0.25)])
def test_progress_is_refreshed_every_quarter_second_or_every_ten_seconds(
    monkeypatch, terminal, seconds
):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("orchestrator.running.control.time", clock)
    looks: list[float] = []

    def look() -> Snapshot:
        looks.append(clock.now)
        return Snapshot(1, 2, 3, 4, 1, 0, "", None)

    with show_progress(Console(file=io.StringIO(), force_terminal=terminal)) as show:
        for share in (0.0, 0.5, 0.99, 1.0, 1.99, 2.5, 3.49, 3.5):
            clock.now = share * seconds
            show(look)
    assert looks == [0.0, seconds, 2.5 * seconds, 3.5 * seconds]


def test_a_terminal_shows_a_bar_that_goes_away() -> None:
    output = io.StringIO()
    console = Console(file=output, width=100, force_terminal=True)
    with show_progress(console) as show:
        show(lambda: Snapshot(1, 2, 3, 4, 1, 0, "", None))
        assert "trials 3/4" in output.getvalue(), "at once"
    assert output.getvalue().endswith("\x1b[1A\x1b[2K" * 2), "both lines are cleared again"
    panel: Any = _panel(Snapshot(1, 2, 3, 4, 1, 0, "", None))
    line, bar = panel.renderables
    assert line.plain == "studies 1/2 · trials 3/4, 1 running"
    assert (bar.completed, bar.total, bar.width) == (3, 4, 60)
    empty: Any = _panel(Snapshot(0, 0, 0, 0, 0, 0, "", None))
    assert empty.renderables[1].total == 1


def test_messages_are_one_line_of_plain_text() -> None:
    output = io.StringIO()
    say(Console(file=output, width=10), "[red] a name with \x1b[31m in it")
    say(None, "nobody hears")
    shown = io.StringIO()
    say(Console(file=shown, force_terminal=True), "aside")
    assert shown.getvalue() == "\x1b[2maside\x1b[0m\n"
    assert output.getvalue() == "[red] a name with \\x1b[31m in it\n"
