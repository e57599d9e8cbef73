"""The fold from a journal to a sweep's state, against naive answers to each question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.storage.events import (
    Epoch,
    Evaluated,
    Event,
    StudyClosed,
    StudyOpened,
    SweepEnded,
    SweepStarted,
    TrialFinished,
    TrialScored,
    TrialStarted,
)
from orchestrator.storage.ledger import Ledger
from trainables.common.errors import InputError

STUDY, KEYS = "task|ce", ("a", "b", "c", "d")
ROLES = dict(zip(KEYS, ("search", "search", "seed", "seed"), strict=True))
OPENED = StudyOpened(study=STUDY, task="task", recipe="ce", trials=2, row=True)

started = st.sampled_from(KEYS).map(
    lambda key: TrialStarted(
        study=STUDY,
        number=KEYS.index(key),
        key=key,
        role=ROLES[key],
        seed=0,
        stage="train",
        configuration={"ce": {}},
    )
)
reported = st.builds(
    lambda key, step, value: Epoch(key=key, step=step, metrics={"val_ece": value}),
    st.sampled_from(KEYS),
    st.integers(0, 4),
    st.floats(0, 1),
)
ended = st.builds(
    lambda key, status, value: TrialFinished(key=key, status=status, metrics={"val_acc": value}),
    st.sampled_from(KEYS),
    st.sampled_from(["finished", "failed", "pruned"]),
    st.floats(0, 1),
)
journals = st.lists(st.one_of(started, started, reported, ended), min_size=15, max_size=40)

word, number = st.sampled_from(["", "x", "y"]), st.integers(0, 3)
unsure = st.none() | st.floats(0, 9)
ended_in_full = st.builds(
    TrialFinished,
    key=st.sampled_from(KEYS),
    status=st.sampled_from(["finished", "failed", "pruned"]),
    metrics=st.dictionaries(st.sampled_from(["val_ece", "val_acc"]), st.floats(0, 1)),
    artifact=word,
    reason=word,
    fault=word,
    reused=st.booleans(),
    seconds=unsure,
    epoch_seconds=unsure,
    peak_memory=unsure,
)
scored = st.builds(TrialScored, key=st.sampled_from(KEYS), objective=st.floats(0, 1), error=unsure)
evaluated = st.builds(
    Evaluated,
    key=st.sampled_from(KEYS),
    study=st.just(STUDY),
    seed=st.just(0),
    metrics=st.dictionaries(st.sampled_from(["test_ece", "test_acc"]), st.floats(0, 1)),
    predictions=word,
    default_predictions=st.none() | word,
    seconds=unsure,
    computed=st.dictionaries(word, st.just({})),
)
closed = st.builds(
    StudyClosed,
    study=st.just(STUDY),
    chosen=st.none() | st.sampled_from(KEYS),
    finished=number,
    failed=number,
    reason=word,
)
run = st.builds(
    SweepStarted,
    sweep=st.just("s"),
    sweep_id=st.just("1d"),
    spec=st.just({}),
    provenance=st.builds(lambda commit: {"git_commit": commit}, word),
)
over = st.builds(SweepEnded, status=st.sampled_from(["finished", "failed"]), time=st.integers(1))
parts = [started, started, reported, ended_in_full, scored, evaluated]
stories = st.lists(
    st.one_of(*parts, *parts, closed, run, over, st.just(OPENED)), min_size=25, max_size=60
)


def known(events: Sequence[Event], key: str) -> Sequence[Event]:
    """Return a trial's events from the one that gave it out first."""
    own = [event for event in events if getattr(event, "key", None) == key]
    begun = [isinstance(event, TrialStarted) for event in own]
    return own[begun.index(True) :] if any(begun) else []


def last_status(events: Sequence[Event], key: str) -> str | None:
    endings = [e.status for e in known(events, key) if isinstance(e, TrialFinished)]
    return endings[-1] if endings else None


@given(journals)
def test_a_study_counts_how_its_search_trials_ended_last(events: list[Event]) -> None:
    study = Ledger([OPENED, *events]).studies[STUDY]
    searched = [last_status(events, key) for key in KEYS if ROLES[key] == "search"]
    assert study.finished == searched.count("finished")
    assert study.failed == searched.count("failed")


@given(journals)
def test_a_trial_keeps_the_first_report_of_a_step_and_the_last_ending(events: list[Event]) -> None:
    ledger = Ledger([OPENED, *events], curves=("val_ece",))
    assert set(ledger.trials) == {key for key in KEYS if known(events, key)}
    for key, trial in ledger.trials.items():
        steps: list[tuple[int, float]] = []
        for event in known(events, key):
            if isinstance(event, Epoch) and event.step > max((at for at, _ in steps), default=-1):
                steps.append((event.step, event.metrics["val_ece"]))
        curve = trial.curves.get("val_ece", ((), ()))
        assert list(zip(*curve, strict=True)) == steps
        assert trial.status == (last_status(events, key) or "running")
        endings = [e for e in known(events, key) if isinstance(e, TrialFinished)]
        if endings:
            assert trial.metrics["val_acc"] == endings[-1].metrics["val_acc"]


@settings(max_examples=200)
@given(run, stories)
def test_whatever_is_said_the_last_word_counts(first: SweepStarted, events: list[Event]) -> None:
    events = [first, OPENED, *events]
    ledger = Ledger(events)
    order = list(dict.fromkeys(e.key for e in events if isinstance(e, TrialStarted)))
    study = ledger.studies[STUDY]
    assert [*ledger.trials] == [*study.begun] == order
    assert [trial.key for trial in study.searched] == sorted(
        key for key in order if ROLES[key] == "search"
    )
    for key in order:
        trial, own = ledger.trials[key], known(events, key)
        at = next(place for place, event in enumerate(events) if event is own[0])
        for name, value in expected_of_trial(events, at, key).items():
            assert getattr(trial, name) == value, name
    for name, value in expected_of_study(events).items():
        assert getattr(study, name) == value, name
    last = [e for e in events if isinstance(e, SweepStarted | SweepEnded)][-1]
    running = isinstance(last, SweepStarted)
    assert ledger.status == ("running" if running else last.status)
    assert ledger.ended == (None if running else last.time)
    assert ledger.git_commit == commits(events)[-1]


def commits(events: Sequence[Event]) -> list[str]:
    return [e.provenance["git_commit"] for e in events if isinstance(e, SweepStarted)]


def expected_of_trial(events: Sequence[Event], at: int, key: str) -> dict[str, Any]:
    """Return fields of a trial that was first given out at a place among the events."""
    own = known(events, key)
    ends = [e for e in own if isinstance(e, TrialFinished)]
    tests = [e for e in own if isinstance(e, Evaluated)]
    scores = [e for e in own if isinstance(e, TrialScored)]
    turns = [
        e
        for e in events[at:]
        if isinstance(e, SweepEnded)
        or (isinstance(e, TrialStarted | TrialFinished) and e.key == key)
    ]
    found: dict[str, Any] = {
        "code": commits(events[:at])[-1],
        "open": isinstance(turns[-1], TrialStarted),
        "objective": scores[-1].objective if scores else None,
        "accuracy_error": scores[-1].error if scores else None,
        "test": {name[5:]: value for e in tests for name, value in e.metrics.items()},
        "chain_seconds": next((e.seconds for e in tests[::-1] if e.seconds is not None), None),
        "default_predictions": next(
            (e.default_predictions for e in tests[::-1] if e.default_predictions), ""
        ),
        "metrics": expected_metrics(own),
    }
    if tests:
        found |= {"predictions": tests[-1].predictions, "computed": tests[-1].computed}
    last = ["status", "artifact", "reason", "fault", "reused", "seconds", "epoch_seconds"]
    return found | {name: getattr(ends[-1], name) for name in [*last, "peak_memory"] if ends}


def expected_metrics(own: Sequence[Event]) -> dict[str, float]:
    """Return what was said last of each metric, and of a trial without epochs what its end said."""
    found: dict[str, float] = {}
    steps = [-1]
    for event in own:
        if isinstance(event, Epoch) and event.step > steps[-1]:
            steps.append(event.step)
            found |= event.metrics
        elif isinstance(event, TrialFinished):
            found = {**found, **event.metrics} if len(steps) > 1 else dict(event.metrics)
    return found


def expected_of_study(events: Sequence[Event]) -> dict[str, Any]:
    status, reason = "running", ""
    for event in events:
        if isinstance(event, StudyClosed):
            status, reason = "finished" if event.chosen else "failed", event.reason
        elif isinstance(event, StudyOpened):
            status, reason = "running", ""
        elif isinstance(event, SweepEnded) and status == "running":
            status, reason = "failed", f"the sweep ended ({event.status}) before this did"
    closes = [place for place, event in enumerate(events) if isinstance(event, StudyClosed)]
    before = events[: closes[-1] + 1] if closes else []
    close = events[closes[-1]] if closes else None
    counts = {
        name: getattr(close, name, 0) + count(events, name) - count(before, name)
        for name in ("finished", "failed")
    }
    chosen = close.chosen if isinstance(close, StudyClosed) else None
    return {"status": status, "reason": reason, "closed": close, "chosen": chosen, **counts}


def count(events: Sequence[Event], status: str) -> int:
    searched = [key for key in KEYS if ROLES[key] == "search"]
    return [last_status(events, key) for key in searched].count(status)


def test_a_journal_holds_one_sweep() -> None:
    first = SweepStarted(sweep="s", sweep_id="1d", spec={}, provenance={})
    other = SweepStarted(sweep="s", sweep_id="2d", spec={}, provenance={})
    with pytest.raises(InputError, match="the journal of sweep 1d holds another sweep, 2d"):
        Ledger([first, first, other])


@pytest.mark.parametrize(
    ("spec", "objective", "guarded"),
    [
        (None, "ece", False),
        ({"search": {"accuracy_tolerance": None}}, "ece", False),
        ({"search": {"objective": "nll", "accuracy_tolerance": 0.0}}, "nll", True),
    ],
)
def test_a_sweep_says_how_it_searched(spec: Any, objective: str, guarded: bool) -> None:
    ledger = Ledger([SweepStarted(sweep="s", sweep_id="1d", spec=spec, provenance=spec)])
    assert (ledger.spec, ledger.provenance) == (spec or {}, spec or {})
    assert (ledger.objective, ledger.guarded) == (objective, guarded)
    assert ledger.git_commit == ""


def test_a_study_says_which_seeds_stand_in_its_table() -> None:
    told = replace(OPENED, origin={"seeds": [1, 2]})
    for opened, shown in ((OPENED, [0, 1, 2]), (told, [1, 2])):
        study = Ledger([opened]).studies[STUDY]
        assert [seed for seed in range(3) if study.shows(seed)] == shown
