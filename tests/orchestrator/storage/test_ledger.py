from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
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
from orchestrator.storage.ledger import Ledger, read_ledger
from trainables.common.errors import InputError

STUDY, OTHER, KEYS = "task|ce", "task|ls", ("a", "b", "c", "d", "e")
STUDIES = dict(zip(KEYS, (STUDY, STUDY, STUDY, OTHER, OTHER), strict=True))
ROLES = dict(zip(KEYS, ("search", "search", "seed", "search", "seed"), strict=True))
OPENED = StudyOpened(study=STUDY, task="task", recipe="ce", trials=2, row=True)
BOTH = [OPENED, StudyOpened(study=OTHER, task="task", recipe="ls", trials=1, row=False)]

started = st.sampled_from(KEYS).map(
    lambda key: TrialStarted(
        study=STUDIES[key],
        number=KEYS[::-1].index(key),
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
    study=st.sampled_from([STUDY, OTHER]),
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
    st.one_of(*parts, *parts, closed, run, over, st.sampled_from(BOTH)), min_size=25, max_size=60
)


def known(events: Sequence[Event], key: str) -> Sequence[Event]:
    own = [event for event in events if getattr(event, "key", None) == key]
    begun = [isinstance(event, TrialStarted) for event in own]
    return own[begun.index(True) :] if any(begun) else []


def last_status(events: Sequence[Event], key: str) -> str | None:
    endings = [e.status for e in known(events, key) if isinstance(e, TrialFinished)]
    return endings[-1] if endings else None


@given(journals)
def test_a_study_counts_how_its_search_trials_ended_last(events: list[Event]) -> None:
    for name, study in Ledger([*BOTH, *events]).studies.items():
        assert study.finished == count(events, name, "finished")
        assert study.failed == count(events, name, "failed")


@given(journals)
def test_a_trial_keeps_the_first_report_of_a_step_and_the_last_ending(events: list[Event]) -> None:
    ledger = Ledger([*BOTH, *events], curves=("val_nll", "val_ece"))
    assert set(ledger.trials) == {key for key in KEYS if known(events, key)}
    for key, trial in ledger.trials.items():
        steps: list[tuple[int, float]] = []
        for event in known(events, key):
            if isinstance(event, Epoch) and event.step > max((at for at, _ in steps), default=-1):
                steps.append((event.step, event.metrics["val_ece"]))
        assert list(zip(*trial.curve("val_ece"), strict=True)) == steps
        assert trial.curve("val_nll") == trial.curve("unasked") == ([], [])
        assert trial.epochs == len(steps)
        assert trial.last_step == max((at for at, _ in steps), default=-1)
        assert trial.ended == (last_status(events, key) is not None)
        assert trial.status == (last_status(events, key) or "running")
        endings = [e for e in known(events, key) if isinstance(e, TrialFinished)]
        if endings:
            assert trial.metrics["val_acc"] == endings[-1].metrics["val_acc"]


@settings(max_examples=200)
@given(run, stories)
def test_the_ledger_has_the_last_event_of_each_trial_and_study(
    first: SweepStarted, events: list[Event]
) -> None:
    events = [first, *BOTH, *events]
    ledger = Ledger(events)
    order = list(dict.fromkeys(e.key for e in events if isinstance(e, TrialStarted)))
    assert [*ledger.trials] == order
    assert [(study.name, study.index) for study in ledger.studies.values()] == [
        (STUDY, 0),
        (OTHER, 1),
    ]
    for name, study in ledger.studies.items():
        begun = [key for key in order if STUDIES[key] == name]
        assert [*study.begun] == begun
        searched = sorted((key for key in begun if ROLES[key] == "search"), reverse=True)
        assert [trial.key for trial in study.searched] == searched
        for field, value in expected_of_study(events, name).items():
            assert getattr(study, field) == value, field
        assert study.chosen_trial is study.begun.get(study.chosen or "")
        assert (study.code, study.sweep_id) == (commits(events[:1])[-1], "1d")
    for key in order:
        trial, own = ledger.trials[key], known(events, key)
        at = next(place for place, event in enumerate(events) if event is own[0])
        for name, value in expected_of_trial(events, at, key).items():
            assert getattr(trial, name) == value, name
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
        "role": ROLES[key],
        "time": own[0].time,
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


def expected_of_study(events: Sequence[Event], name: str) -> dict[str, Any]:
    status, reason = "running", ""
    ours = [e for e in events if isinstance(e, SweepEnded) or getattr(e, "study", "") == name]
    for event in ours:
        if isinstance(event, StudyClosed):
            status, reason = "finished" if event.chosen else "failed", event.reason
        elif isinstance(event, StudyOpened):
            status, reason = "running", ""
        elif isinstance(event, SweepEnded) and status == "running":
            status, reason = "interrupted", f"the sweep ended ({event.status}) before this study"
    close = next((event for event in ours[::-1] if isinstance(event, StudyClosed)), None)
    at = next((n for n, event in enumerate(events) if event is close), -1)
    counts = {
        kind: getattr(close, kind, 0)
        + count(events, name, kind)
        - count(events[: at + 1], name, kind)
        for kind in ("finished", "failed")
    }
    chosen = close.chosen if close else None
    return {"status": status, "reason": reason, "closed": close, "chosen": chosen, **counts}


def count(events: Sequence[Event], study: str, status: str) -> int:
    searched = [key for key in KEYS if ROLES[key] == "search" and STUDIES[key] == study]
    return [last_status(events, key) for key in searched].count(status)


def test_a_ledger_without_a_journal_is_empty(tmp_path: Path) -> None:
    ledger = read_ledger(tmp_path / "journal.jsonl")
    assert (ledger.sweep, ledger.sweep_id, ledger.status, ledger.ended) == ("", "", "running", None)
    assert ledger.spec == ledger.provenance == {}
    assert ledger.studies == ledger.trials == {}


def test_epochs_are_not_read_with_a_journal(writer: Any) -> None:
    writer.start()
    key = writer.trial(writer.open("ce"), 0, 0.5)
    found = read_ledger(writer.path).trials[key]
    assert (found.epochs, found.last_step) == (0, -1)
    assert "train_loss" not in found.metrics


def test_a_journal_holds_one_sweep() -> None:
    first = SweepStarted(sweep="s", sweep_id="1d", spec={}, provenance={})
    other = SweepStarted(sweep="s", sweep_id="2d", spec={}, provenance={})
    with pytest.raises(InputError, match="the journal of sweep 1d contains another sweep, 2d"):
        Ledger([first, first, other])


@pytest.mark.parametrize(
    ("spec", "objective", "pareto", "guarded"),
    [
        (None, "ece", (), False),
        (
            {"search": {"accuracy_tolerance": None, "pareto": ["nll", "acc"]}},
            "ece",
            ("nll", "acc"),
            False,
        ),
        ({"search": {"objective": "nll", "accuracy_tolerance": 0.0}}, "nll", (), True),
    ],
)
def test_a_sweep_says_how_it_searched(spec, objective, pareto, guarded):
    ledger = Ledger([SweepStarted(sweep="s", sweep_id="1d", spec=spec, provenance=spec), OPENED])
    assert (ledger.spec, ledger.provenance) == (spec or {}, spec or {})
    assert (ledger.objective, ledger.pareto, ledger.guarded) == (objective, pareto, guarded)
    assert (ledger.git_commit, ledger.studies[STUDY].versions) == ("", {})


def test_a_study_keeps_the_versions_that_it_was_opened_with() -> None:
    first, later = (
        SweepStarted(sweep="s", sweep_id="1d", spec={}, provenance={"versions": {"torch": number}})
        for number in ("1", "2")
    )
    ledger = Ledger([first, BOTH[0], later, *BOTH])
    assert [study.versions["torch"] for study in ledger.studies.values()] == ["1", "2"]


def test_a_study_knows_the_seeds_of_its_table() -> None:
    told = replace(OPENED, origin={"seeds": [1, 2]})
    for opened, shown in ((OPENED, [0, 1, 2]), (told, [1, 2])):
        study = Ledger([opened]).studies[STUDY]
        assert [seed for seed in range(3) if study.shows(seed)] == shown
