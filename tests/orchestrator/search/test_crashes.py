"""Sweeps that crash at any moment, lose artifacts and meet faults choose as undisturbed ones do."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.search.state import SweepState
from orchestrator.search.trials import TrialSpec
from orchestrator.storage.events import TrialFinished
from orchestrator.storage.ledger import Ledger
from orchestrator.sweep.plan import make_plan
from orchestrator.sweep.spec import parse_sweep
from trainables.data import PreparedData, SplitSpec, prepare

TOLERANCE = 0.01
SPEC = parse_sweep(
    f"""
name: crashed
tasks: [{{name: d, dataset: digits, model: convnet, protocol: digits}}]
recipes: [ce, mbls, mbls+ts, mbls+macal]
search:
  {{trials: 4, parallel_trials: 2, sampler: random, accuracy_tolerance: {TOLERANCE}, objective: ece,
    keep_default: false}}
seeds: [0, 1]
""",
    "crashed",
)
PLAN = make_plan(SPEC)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PreparedData]:
    folder = tmp_path_factory.mktemp("data")
    return {"d": prepare("digits", folder, SplitSpec(train_limit=50), folder / "prepared")}


class CrashError(Exception):
    """The driver is gone."""


class Machine:
    """A sweep and the machine it runs on: what is written stays, all else goes with a crash."""

    def __init__(self, data: dict[str, PreparedData], salt: int) -> None:
        self.data, self.salt = data, salt
        self.journal: list[Any] = []
        self.lost: set[str] = set()
        self.again: Counter[str] = Counter()
        self.left: int | None = None
        self.start()

    def start(self) -> None:
        """Resume from the journal; a crash leaves nothing else."""
        while True:
            self.running: list[TrialSpec] = []
            past = Ledger(self.journal)
            try:
                self.state = SweepState(
                    PLAN,
                    "id",
                    self.data,
                    self.write,
                    past,
                    lambda _, key: key not in ("", *self.lost),
                )
                return
            except CrashError:
                self.left = None

    def write(self, event: Any) -> None:
        if self.left == 0:
            raise CrashError
        self.left = None if self.left is None else self.left - 1
        self.journal.append(event)

    def give(self) -> bool:
        try:
            trial = self.state.next_trial()
        except CrashError:
            self.crash()
            return True
        self.running += [trial] if trial is not None else []
        return trial is not None

    def end(self, place: int, fault: str = "") -> None:
        if not self.running:
            return
        trial = self.running.pop(place % len(self.running))
        outcome = self.measure(trial)
        if fault:
            outcome = trial.ending("failed", {}, reason="no such device", fault=fault)
        self.lost.discard(outcome.artifact)
        try:
            self.state.record(trial, outcome)
        except CrashError:
            self.crash()

    def crash(self) -> None:
        self.left = None
        self.start()

    def lose(self, place: int) -> None:
        kept = [e for e in self.journal if isinstance(e, TrialFinished) and e.artifact]
        if kept:
            gone = kept[place % len(kept)]
            self.lost.add(gone.artifact)
            self.again[gone.key] += 1

    def finish(self) -> SweepState:
        """Go on undisturbed, once more from the journal, to the end."""
        self.crash()
        while not self.state.finished:
            while self.give():
                pass
            assert self.running or self.state.finished, "nothing runs, nothing is given out"
            self.end(0)
        return self.state

    def measure(self, trial: TrialSpec) -> TrialFinished:
        """Return what a trial comes to, which its request decides; few values, so many ties."""
        draw = random.Random(f"{self.salt} {trial.request.key()}")
        status = draw.choice(["finished"] * 5 + ["pruned", "failed"])
        if status == "failed":
            return trial.ending(status, {}, reason=f"loss of {trial.number} became nan")
        metrics = {"val_ece": draw.choice((0.01, 0.02)), "val_acc": draw.choice((0.9, 0.95, 0.955))}
        artifact = trial.request.key() if status == "finished" else ""
        return trial.ending(status, metrics, artifact=artifact)


def chosen(state: SweepState) -> dict[str, list[str | None]]:
    """Return the keys of what was chosen for every seed of each study."""
    return {
        name: [found and found.trial.key for _, found in sorted(study.seeds.items())]
        for name, study in state.studies.items()
    }


def naive(machine: Machine, state: SweepState) -> dict[str, str | None]:
    """Return the key of the least guarded error of each study, the earliest of equals."""
    best: dict[str, str | None] = {}
    floor = None
    for study in sorted(state.studies.values(), key=lambda study: study.plan.id != "d|ce"):
        ranked = []
        for number in range(study.plan.trials):
            if number not in study.trials:
                continue
            outcome = machine.measure(study.trials[number])
            if outcome.status == "finished":
                short = 0.0 if floor is None else max(0.0, floor - outcome.metrics["val_acc"])
                ranked.append((outcome.metrics["val_ece"] + short, number, outcome))
        first = min(ranked, default=None, key=lambda found: found[:2])
        best[study.plan.id] = first[2].key if first else None
        if study.plan.id == "d|ce" and first:
            floor = first[2].metrics["val_acc"] - TOLERANCE
    return best


STEPS = st.tuples(
    st.sampled_from(["give", "give", "give", "end", "end", "fault", "crash", "break", "lose"]),
    st.integers(0, 20),
)


@settings(max_examples=12, derandomize=True, database=None)
@given(salt=st.integers(0, 10**6), steps=st.lists(STEPS, min_size=25, max_size=50))
def test_whatever_happens_the_choice_is_that_of_the_undisturbed_sweep(
    prepared: dict[str, PreparedData], salt: int, steps: list[tuple[str, int]]
) -> None:
    machine = Machine(prepared, salt)
    for step, number in steps:
        if step == "give":
            machine.give()
        elif step == "end":
            machine.end(number)
        elif step == "fault":
            machine.end(number, fault="machine")
        elif step == "lose":
            machine.lose(number)
        elif step == "break":
            machine.left = number
        else:
            machine.crash()
    state, undisturbed = machine.finish(), Machine(prepared, salt)
    whole = undisturbed.finish()

    assert chosen(state) == chosen(whole)
    assert {name: keys[0] if keys else None for name, keys in chosen(state).items()} == naive(
        machine, state
    )
    told = Ledger(machine.journal)
    assert {name: study.chosen for name, study in told.studies.items()} == naive(machine, state)
    ends = [e for e in machine.journal if isinstance(e, TrialFinished) and not e.fault]
    for key, count in Counter(end.key for end in ends).items():
        assert count <= 1 + machine.again[key], "a finished trial ran again"
    # Nothing is left to do, and nothing is said twice.
    before = list(machine.journal)
    machine.lost.clear()
    machine.start()
    assert machine.state.take_over()
    assert machine.state.finished
    assert machine.journal == before
