"""The fold from a journal to a sweep's state, against naive answers to each question."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.storage.events import Epoch, Event, StudyOpened, TrialFinished, TrialStarted
from orchestrator.storage.ledger import Ledger

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
    st.integers(1, 4),
    st.floats(0, 1),
)
ended = st.builds(
    lambda key, status, value: TrialFinished(key=key, status=status, metrics={"val_acc": value}),
    st.sampled_from(KEYS),
    st.sampled_from(["finished", "failed", "pruned"]),
    st.floats(0, 1),
)
journals = st.lists(st.one_of(started, started, reported, ended), max_size=40)


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
