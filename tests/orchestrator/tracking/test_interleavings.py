"""Whatever is written, delivered and lost in whatever order: the runs are those of a naive fold."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.tracking import UnreachableError, _shipper, open_tracker, sync
from orchestrator.tracking.folder import FolderTracker
from orchestrator.tracking.tracker import RunQuery

STUDIES = ("ce", "ls")
METRICS = (
    "train_loss",
    "objective",
    "seconds",
    "test_ece",
    "trials_finished",
    "trials_failed",
)
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
        self.studies = {name: writer.open(name) for name in STUDIES}
        fresh = {"status": "RUNNING", "trials_finished": 0, "trials_failed": 0}
        self.expected = {study: dict(fresh) for study in self.studies.values()}
        self.last: dict[str, int] = {}
        self.ended: dict[str, str] = {}

    def tell(self, what: str, place: tuple[str, int], value) -> None:
        study = self.studies[place[0]]
        key = self.writer.key(study, place[1])
        if what == "close":
            for run in self.expected.values():
                if run.get("study") == study:
                    run["chosen"] = "false"
            known = key in self.expected
            self.writer.close(study, key if known else None, finished=value, failed=3 - value)
            status = "FINISHED" if known else "FAILED"
            counts = {"trials_finished": value, "trials_failed": 3 - value}
            self.expected[study] |= {"status": status, "reason": "", **counts}
            if known:
                self.expected[key]["chosen"] = "true"
        elif what == "stop":
            self.writer.end("interrupted")
            self.leave()
            self.writer.start()
            if value:
                self.writer.open(place[0])
                self.expected[study] |= {"status": "RUNNING", "reason": ""}
        elif what == "begin":
            self.writer.begin(study, place[1])
            fresh = {"study": study, "chosen": "false"}
            again = {"status": "RUNNING", "reason": ""}
            self.expected[key] = {**self.expected.get(key, fresh), **again}
        elif key not in self.expected:
            return
        elif what == "epoch":
            first = self.last.get(key, 0)
            self.writer.epochs(key, value, first)
            self.last[key] = first + value
            self.expected[key]["train_loss"] = 1.0 / (first + value)
        elif what == "score":
            self.writer.score(key, value / 10)
            self.expected[key]["objective"] = value / 10
        elif what == "evaluate":
            self.writer.evaluate(
                key, study, facts={"predictions": f"p{value}"}, test_ece=value / 10
            )
            self.expected[key] |= {"test_ece": value / 10, "predictions": f"p{value}"}
        else:
            told = {"reason": "nan" if value == "failed" else "", "artifact": f"of {value}"}
            seconds = 1.0 + len(self.ended)
            self.writer.write(
                "trial_finished", key=key, status=value, metrics={}, seconds=seconds, **told
            )
            self.expected[key] |= {"seconds": seconds, **told}
            self.count(study, self.ended.get(key), -1)
            self.count(study, value, 1)
            self.ended[key] = value
            self.expected[key]["status"] = ENDS[value]

    def leave(self) -> None:
        for run in self.expected.values():
            if run["status"] == "RUNNING":
                reason = "the sweep ended (interrupted) before this did"
                run |= {"status": "KILLED", "reason": reason}

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
        sync(journal, uri)
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
            story.leave()

        runs = runs_of(uri, "told")
        assert foreign in {run.id for run in runs}
        ours = [run for run in runs if run.id != foreign]
        ids = {run.tags["calsweep.key"]: run.id for run in ours}
        assert sorted(run.tags["calsweep.key"] for run in ours) == sorted(story.expected)
        for run in ours:
            expected = story.expected[run.tags["calsweep.key"]]
            assert run.status == expected["status"]
            for name in ("reason", "artifact", "predictions"):
                assert run.tags.get(f"calsweep.{name}", "") == expected.get(name, "")
            assert run.parent == ids.get(expected.get("study"))
            for name in METRICS:
                assert run.metrics.get(name) == expected.get(name)
            if "chosen" in expected:
                assert run.tags.get("calsweep.chosen", "false") == expected["chosen"]
