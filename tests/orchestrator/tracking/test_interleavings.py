"""Whatever is written, delivered and lost in whatever order: the runs are those of a naive fold."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.storage.journal import iterate_events
from orchestrator.storage.ledger import Ledger
from orchestrator.tracking import UnreachableError, _shipper, open_tracker, sync
from orchestrator.tracking._tags import study_of, trial_of
from orchestrator.tracking.folder import FolderTracker
from orchestrator.tracking.tracker import Run, RunQuery

STUDIES = ("ce", "ls")
METRICS = (
    "train_loss",
    "objective",
    "seconds",
    "test_ece",
    "trials_finished",
    "trials_failed",
)
TRIAL_FACTS = (
    *("study", "number", "key", "role", "seed", "stage", "configuration", "time", "code"),
    *("objective", "artifact", "test", "predictions", "default_predictions", "chain_seconds"),
    "computed",
)
STUDY_FACTS = (
    *("study", "task", "recipe", "index", "trials", "row", "time", "upstream", "fingerprint"),
    *("dataset", "model", "protocol", "setting", "origin", "code", "sweep_id", "chosen"),
    *("finished", "failed"),
)
FACTS = {
    "dataset": "digits",
    "model": "net",
    "protocol": "short",
    "setting": "5e77",
    "rule": {"objective": "val_ece", "accuracy_tolerance": 0.5},
    "origin": {"seeds": [1, 2]},
}
ENDS = {"finished": "FINISHED", "failed": "FAILED", "pruned": "KILLED"}
PLACE = st.tuples(st.sampled_from(STUDIES), st.integers(0, 2))
STEPS = st.one_of(
    st.tuples(st.sampled_from(["begin", "epoch", "score", "evaluate"]), PLACE, st.integers(1, 4)),
    st.tuples(st.just("end"), PLACE, st.sampled_from(sorted(ENDS))),
    st.tuples(st.just("close"), PLACE, st.integers(0, 3)),
    st.tuples(st.just("stop"), PLACE, st.booleans()),
    st.tuples(st.sampled_from(["deliver", "forget"]), st.none(), st.none()),
)
FAULTS = st.lists(st.sampled_from(["", "before", "after"]), min_size=6, max_size=20)


class Story:
    """Writes a journal, and folds it by itself: what each run must come to."""

    def __init__(self, writer) -> None:
        self.writer = writer
        writer.start()
        self.studies = {name: writer.open(name, row=name == "ce", **FACTS) for name in STUDIES}
        fresh = {"status": "RUNNING", "trials_finished": 0, "trials_failed": 0}
        self.expected = {study: dict(fresh) for study in self.studies.values()}
        for name, study in self.studies.items():
            self.expected[study]["name"] = f"{name} on digits/convnet/digits"
        self.last: dict[str, int] = {}
        self.ended: dict[str, str] = {}

    def tell(self, what: str, place: tuple[str, int], value) -> None:
        study = self.studies[place[0]]
        seed = place[1] == 2
        key = self.writer.key(study, place[1], "seed" if seed else "search")
        if what == "close":
            for run in self.expected.values():
                if run.get("study") == study:
                    run["chosen"] = "false"
            known = key in self.expected
            self.writer.close(study, key if known else None, finished=value, failed=3 - value)
            status = "FINISHED" if known else "FAILED"
            counts = {"trials_finished": value, "trials_failed": 3 - value}
            ended = {"status": status, "reason": "", "ended": self.writer.now}
            self.expected[study] |= {**ended, **counts}
            if known:
                self.expected[key]["chosen"] = "true"
        elif what == "stop":
            self.writer.end("interrupted")
            self.leave(self.writer.now)
            self.writer.start(f"c0de{self.writer.now}")
            if value:
                self.writer.open(place[0])
                self.expected[study] |= {"status": "RUNNING", "reason": ""}
        elif what == "begin":
            self.writer.begin(study, place[1], **({"role": "seed", "seed": 7} if seed else {}))
            fresh = {"study": study, "chosen": "false"}
            fresh["name"] = f"{place[0]} ~7" if seed else f"{place[0]} #{place[1]}"
            fresh["params"] = {f"{place[0]}.margin": f"{place[1]}.5"}
            again = {"status": "RUNNING", "reason": ""}
            self.expected[key] = {**self.expected.get(key, fresh), **again}
        elif key not in self.expected:
            return
        elif what == "epoch":
            first = self.last.get(key, 0)
            again = min(first, value % 2)  # As a resumed trial says what it has said before.
            self.writer.epochs(key, value + again, first - again)
            self.last[key] = first + value
            self.expected[key]["train_loss"] = 1.0 / (first + value)
        elif what == "score":
            self.writer.score(key, value / 10)
            self.expected[key]["objective"] = value / 10
        elif what == "evaluate":
            facts = {"predictions": f"p{value}", "computed": {"train": {"device": f"d{value}"}}}
            facts |= {"default_predictions": f"q{value}", "seconds": value} if value % 2 else {}
            self.writer.evaluate(key, study, facts=facts, test_ece=value / 10)
            self.expected[key] |= {"test_ece": value / 10, "evaluated": "true"}
        else:
            told = {"reason": "nan" if value == "failed" else "", "artifact": f"of {value}"}
            seconds = 1.0 + len(self.ended)
            self.writer.write(
                "trial_finished", key=key, status=value, metrics={}, seconds=seconds, **told
            )
            self.expected[key] |= {"seconds": seconds, **told}
            if not seed:
                self.count(study, self.ended.get(key), -1)
                self.count(study, value, 1)
            self.ended[key] = value
            self.expected[key] |= {"status": ENDS[value], "ended": self.writer.now}

    def leave(self, time: int) -> None:
        for run in self.expected.values():
            if run["status"] == "RUNNING":
                reason = "the sweep ended (interrupted) before this did"
                run |= {"status": "KILLED", "reason": reason, "ended": time}

    def count(self, study: str, status: str | None, change: int) -> None:
        if f"trials_{status}" in self.expected[study]:
            self.expected[study][f"trials_{status}"] += change


def failing(real, faults: list[str]):
    """Return a request that may fail, before or after it has taken effect."""

    def request(*arguments):
        fault = faults.pop() if faults else ""
        if fault == "before":
            raise UnreachableError("connection refused")
        answer = real(*arguments)
        if fault == "after":
            raise UnreachableError("connection reset")
        return answer

    return request


def runs_of(uri: str, sweep: str) -> list:
    tracker = open_tracker(uri)
    return list(tracker.runs(RunQuery([tracker.sweeps()[sweep]], {})))


@settings(max_examples=15, derandomize=True, database=None)
@given(
    steps=st.lists(STEPS, min_size=20, max_size=40),
    faults=FAULTS,
    chunk=st.sampled_from([1, 1000, _shipper.CHUNK]),
    abandoned=st.booleans(),
)
def test_runs_are_those_of_a_naive_fold(journal_writer, steps, faults, chunk, abandoned) -> None:
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        folder = Path(place)
        clock = iter(range(10**6))
        quick = SimpleNamespace(
            sleep=lambda _: None, monotonic=lambda: next(clock) / 1000, time_ns=lambda: 2 * 10**18
        )
        patch.setattr("orchestrator.tracking._shipper.time", quick)
        patch.setattr(_shipper, "CHUNK", chunk)
        for patience in ("PATIENCE_ONCE", "PATIENCE_ORPHANED"):
            patch.setattr(f"orchestrator.tracking._shipper.{patience}", 1e9)
        story, uri = Story(journal_writer(folder / "sweep", "told")), f"folder:{folder}/tracked"
        journal = story.writer.path
        open_tracker(uri, create=True).open_experiment("told", folder)
        # Of another sweep under the same name, with a key of ours: not ours to delete.
        stranger = {"calsweep.key": story.studies["ce"], "calsweep.sweep_id": "0ther"}
        experiment = open_tracker(uri).sweeps()["told"]
        foreign = open_tracker(uri).create_run(experiment, "foreign", stranger, 1)
        real = FolderTracker.create_run
        patch.setattr(FolderTracker, "create_run", failing(real, [*faults, "after"]))
        for name in ("log", "set_status"):
            patch.setattr(FolderTracker, name, failing(getattr(FolderTracker, name), faults))
        for what, where, value in steps:
            if what == "deliver":
                sync(journal, uri)
            elif what == "forget":
                journal.with_name("shipped.json").unlink(missing_ok=True)
            else:
                story.tell(what, where, value)
        sync(journal, uri, interrupted=abandoned)
        if abandoned:
            story.leave(2 * 10**12)

        runs = runs_of(uri, "told")
        assert foreign in {run.id for run in runs}
        ours = [run for run in runs if run.id != foreign]
        ids = {run.tags["calsweep.key"]: run.id for run in ours}
        assert sorted(run.tags["calsweep.key"] for run in ours) == sorted(story.expected)
        ledger = Ledger(iterate_events(journal))
        for run in ours:
            expected = story.expected[run.tags["calsweep.key"]]
            assert run.status == expected["status"]
            for name in ("reason", "artifact", "evaluated"):
                assert run.tags.get(f"calsweep.{name}", "") == expected.get(name, "")
            assert run.parent == ids.get(expected.get("study"))
            for name in METRICS:
                assert run.metrics.get(name) == expected.get(name)
            if "chosen" in expected:
                assert run.tags.get("calsweep.chosen", "false") == expected["chosen"]
                best_of = expected["study"] if expected["chosen"] == "true" else ""
                assert run.tags.get("calsweep.best_of", "") == best_of
            check_record(folder, run.id, expected, story.last.get(run.tags["calsweep.key"], 0))
            check_facts(run, ledger)


def check_record(folder: Path, run_id: str, expected: dict, epochs: int) -> None:
    """Compare what a run's file holds besides with what was told of it."""
    (file,) = folder.glob(f"tracked/experiments/*/runs/{run_id}.json")
    record = json.loads(file.read_text())
    assert record["name"] == expected["name"]
    assert record["params"] == expected.get("params", {})
    if expected["status"] != "RUNNING":
        assert record["ended"] == expected["ended"]
    ticks = [step for step, *_ in record["metrics"].get("trials_finished", [])]
    assert ticks == list(range(1, len(ticks) + 1))
    losses = [(step, value) for step, _, value in record["metrics"].get("train_loss", [])]
    assert losses == [(step, 1.0 / (step + 1)) for step in range(epochs)]


def check_facts(run: Run, ledger: Ledger) -> None:
    """Compare what is read back of a run with what the journal tells."""
    trial = ledger.trials.get(run.tags["calsweep.key"])
    told = ledger.studies[run.tags["calsweep.key"]] if trial is None else trial
    found = study_of(run) if trial is None else trial_of(run)
    for name in STUDY_FACTS if trial is None else TRIAL_FACTS:
        assert getattr(found, name) == getattr(told, name), name
    if trial is None:
        rule = {"objective": "val_ece", "accuracy_tolerance": "0.5"}
        assert (found.rule, found.run_id) == (rule, run.id)
