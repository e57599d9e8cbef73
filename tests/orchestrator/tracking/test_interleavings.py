import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.storage.events import SweepEnded, TrialFinished, TrialStarted
from orchestrator.storage.journal import Journal, iterate_events
from orchestrator.storage.ledger import Ledger, Study, Trial
from orchestrator.tracking import _shipper, open_tracker, sync
from orchestrator.tracking._tags import study_of, trial_of
from orchestrator.tracking.folder import FolderTracker
from orchestrator.tracking.tracker import Run, RunQuery, UnreachableError

STUDIES = ("ce", "ls")
TASK = "digits/convnet/digits"
FACTS = {
    "dataset": "digits",
    "model": "net",
    "protocol": "short",
    "setting": "5e77",
    "rule": {"objective": "val_ece", "accuracy_tolerance": 0.5},
    "origin": {"seeds": [1, 2]},
}
CURVES = ("val_acc", "train_loss")
KILLED = "the sweep ended ("
# What a run does not tell of a trial or study, or tells in words of its own.
UNTOLD_OF_TRIALS = {
    *("parameters", "status", "fault", "reused", "seconds", "epoch_seconds", "metrics"),
    *("peak_memory", "last_step", "epochs", "curves", "accuracy_error", "run_id", "reason"),
}
UNTOLD_OF_STUDIES = {"block", "closed", "begun", "rule", "run_id"}
PLACE = st.tuples(st.sampled_from(STUDIES), st.integers(0, 2))
KINDS = (
    *("begin", "begin", "begin", "epoch", "epoch", "epoch", "score", "score", "evaluate"),
    *("evaluate", "end", "end", "end", "close", "close", "stop", "deliver", "forget"),
)
STEPS = st.tuples(st.sampled_from(KINDS), PLACE, st.integers(1, 4))
FAULTS = st.lists(st.sampled_from(["", "before", "after"]), min_size=6, max_size=20)

Record = dict[str, Any]


class Story:
    """Writes a journal."""

    def __init__(self, writer: Any, picture: Path) -> None:
        self.writer, self.picture = writer, picture
        self.pages: list[int] = []
        self.epochs = Counter[str]()
        self.start("c0de")
        for name in STUDIES:
            upstream = None if name == "ce" else f"{TASK}|ce"
            self.writer.open(name, row=name == "ce", upstream=upstream, **FACTS)

    def start(self, code: str) -> None:
        self.writer.start(code, {"tags": {"team": "red"}}, versions={"torch": f"2.{code}"})

    def tell(self, what: str, place: tuple[str, int], value: int) -> None:
        """Tell one thing, which may be of a trial that was never begun."""
        self.pages.append(self.writer.path.stat().st_size)
        study, number = f"{TASK}|{place[0]}", place[1]
        again = {"role": "seed", "seed": 7} if number == 2 else {}
        key = self.writer.key(study, number, again.get("role", "search"))
        match what:
            case "begin":
                self.writer.begin(study, number, **again)
            case "epoch":  # Some are told again.
                first, self.epochs[key] = self.epochs[key], self.epochs[key] + value
                start = max(0, first - value % 2)
                self.writer.epochs(key, self.epochs[key] - start, start)
            case "score":  # Often the same once more.
                self.writer.score(key, value % 2 / 10)
            case "evaluate":
                facts = {"predictions": f"p{value}", "computed": {"train": {"device": f"d{value}"}}}
                if value % 2:
                    facts |= {"default_predictions": f"q{value}", "seconds": value - 1}
                files = {"one.png": str(self.picture)} if value > 2 else {}
                self.writer.evaluate(key, study, artifacts=files, facts=facts, test_ece=value / 10)
            case "end":
                status = ("failed", "finished", "pruned")[value % 3]
                facts = {"artifact": f"of {status}", "reason": "nan" if status == "failed" else ""}
                facts |= {"reused": status == "pruned", "seconds": float(status == "failed")}
                metrics = {"val_ece": len(status) / 10}
                self.writer.write(
                    "trial_finished", key=key, status=status, metrics=metrics, **facts
                )
            case "close":
                chosen = key if key in Ledger(iterate_events(self.writer.path)).trials else None
                self.writer.close(study, chosen, finished=value - 1, failed=4 - value)
            case "stop":
                self.writer.end("interrupted")
                self.start(f"c0de{self.writer.now}")
                if value > 2:
                    self.writer.open(place[0])

    def cut(self, pages: int) -> None:
        """Cut the journal within a line, as people are told to where one is damaged."""
        self.writer.journal.close()
        with open(self.writer.path, "r+b") as stream:
            whole = stream.seek(0, 2)
            stream.truncate(min([whole, *(size + 9 for size in self.pages[-pages:])]))
        self.writer.journal = Journal(self.writer.path)
        del self.pages[-pages:]


def failing(
    real: Callable[..., Any], faults: list[str], meanwhile: Callable[[], None] = lambda: None
) -> Callable[..., Any]:
    """Return a request that may fail, before or after it has taken effect and others theirs."""

    def request(*arguments: Any) -> Any:
        fault = faults.pop() if faults else ""
        if fault:
            meanwhile()
        if fault == "before":
            raise UnreachableError("connection refused")
        answer = real(*arguments)
        if fault == "after":
            raise UnreachableError("connection reset")
        return answer

    return request


def kept(folder: Path, sweep_id: str) -> dict[str, Record]:
    """Return what the files of a sweep's runs hold, by key, of which there is one each."""
    found: dict[str, Record] = {}
    files = {path.stem: path for path in folder.glob("tracked/experiments/*/runs/*.json")}
    records = {run_id: json.loads(file.read_text()) for run_id, file in files.items()}
    for run_id, record in records.items():
        tags = record["tags"]
        key = tags["calsweep.key"]
        if tags["calsweep.sweep_id"] != sweep_id or key.startswith("stranger"):
            continue
        assert key not in found, f"{key} is there twice"
        parent = record.pop("parent")
        record["study"] = parent and records[parent]["tags"]["calsweep.key"]
        for name, points in record["metrics"].items():
            assert len(points) == len({tuple(point) for point in points})
            record["metrics"][name] = {tuple(point) for point in points}
        uploaded = (files[run_id].parents[1] / "files" / run_id).glob("*")
        found[key] = {**record, "files": {path.name for path in uploaded}}
        if record["status"] == "RUNNING":
            del found[key]["ended"]  # Of an end and what follows in one piece, only that is sent.
    return found


def after_a_cut(before: Record, run: Record) -> Record:
    """Return what a run comes to that was there when its journal was cut: nothing takes it back."""
    commit = {"calsweep.git_commit": before["tags"]["calsweep.git_commit"]}
    names = {*before["metrics"], *run["metrics"]}
    points = {n: before["metrics"].get(n, set()) | run["metrics"].get(n, set()) for n in names}
    merged = {"tags": before["tags"] | run["tags"] | commit, "metrics": points}
    merged |= {"params": run["params"] | before["params"], "files": run["files"] | before["files"]}
    return {**run, **merged, "started": before["started"]}


@settings(max_examples=10, derandomize=True, database=None)
@given(
    steps=st.lists(STEPS, min_size=30, max_size=60),
    faults=FAULTS,
    chunk=st.sampled_from([1, 1000, _shipper.CHUNK]),
    ending=st.sampled_from(["open", "abandoned", "ended"]),
    cut=st.sampled_from([0, 1, 3, 8]),
)
def test_runs_are_those_of_a_quiet_delivery(journal_writer, steps, faults, chunk, ending, cut):
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
        writer = journal_writer(folder / "a" / "sweep", "told")
        picture = writer.picture("picture.png")
        story = Story(writer, picture)
        journal, uri, sweep_id = story.writer.path, f"folder:{folder}/tracked", "5eed"
        tracker = open_tracker(uri, create=True)
        experiment, _ = tracker.open_experiment("told", folder)
        real = FolderTracker.create_run
        strangers: dict[str, Run] = {}

        def add_stranger(key: str = "", sweep_id: str = sweep_id) -> None:
            key = key or f"stranger {len(strangers)}"
            tags = {"calsweep.key": key, "calsweep.sweep_id": sweep_id}
            run_id = real(tracker, experiment.id, "strange", tags, 1)
            strangers[run_id] = tracker.run(run_id)

        # Of another sweep under the same name, with a key of ours: not ours to delete.
        add_stranger(f"{TASK}|ce", "0ther")
        # While answers get lost, a copy of the sweep delivers runs of its own.
        lost = [*faults, "after", "before"]
        patch.setattr(FolderTracker, "create_run", failing(real, lost, meanwhile=add_stranger))
        for name in ("log", "set_status", "upload"):
            patch.setattr(FolderTracker, name, failing(getattr(FolderTracker, name), faults))

        def deliver(journal: Path = journal, uri: str = uri, interrupted: bool = False) -> None:
            refused = sync(journal, uri, interrupted=interrupted).refused
            # After a cut another trial may be chosen, of which a run takes no parameters.
            assert [line for line in refused if not cut or "another value" not in line] == []

        before: dict[str, Record] = {}
        for number, (what, where, value) in enumerate(steps):
            if cut and number == len(steps) * 2 // 3:
                deliver()
                before = kept(folder, sweep_id)
                story.cut(cut)
            if what == "deliver":
                deliver()
                if not before:
                    check_facts(folder, journal)
            elif what == "forget":
                journal.with_name("shipped.json").unlink(missing_ok=True)
            else:
                story.tell(what, where, value)
        if ending == "ended":
            story.writer.end()
        deliver(interrupted=ending != "open")
        found = kept(folder, sweep_id)
        assert {run_id: tracker.run(run_id) for run_id in strangers} == strangers
        # Nothing is there twice where nothing is remembered.
        journal.with_name("shipped.json").unlink()
        patch.setattr(_shipper, "CHUNK", 10**6)
        deliver(interrupted=ending != "open")
        assert kept(folder, sweep_id) == found

        faults.clear()
        lost.clear()
        quiet = folder / "quiet" / "a" / "sweep"
        shutil.copytree(picture.parent, quiet / picture.parent.name)
        shutil.copy(journal, quiet)
        uri = f"folder:{quiet.parent}/tracked"
        deliver(quiet / journal.name, uri, ending != "open")
        runs = kept(quiet.parent, sweep_id)
        told = {key: after_a_cut(before.get(key, run), run) for key, run in runs.items()}
        assert found == before | told
        check_facts(quiet.parent, journal, over=ending == "abandoned")


def check_facts(folder: Path, journal: Path, over: bool = False) -> None:
    """Compare what is read back of runs with what the journal tells; it may be ``over``."""
    events = [*iterate_events(journal, kinds=None), *([SweepEnded(status="interrupted")] * over)]
    ends = {each.key: each for each in events if isinstance(each, TrialStarted | TrialFinished)}
    ledger = Ledger(events, CURVES)
    tracker, runs = open_tracker(f"folder:{folder}/tracked"), kept(folder, ledger.sweep_id)
    for run in tracker.runs(RunQuery(list(tracker.sweeps().values()), {"team": "red"})):
        key = run.tags["calsweep.key"]
        if runs[key]["study"] is None:
            stored, study = study_of(run), ledger.studies[key]
            assert facts_of(stored, UNTOLD_OF_STUDIES) == facts_of(study, UNTOLD_OF_STUDIES)
            rule = {"objective": "val_ece", "accuracy_tolerance": "0.5"}
            assert (stored.rule, stored.run_id) == (rule, run.id)
            continue
        trial, begun, end = trial_of(run), ledger.trials[key], ends[key]
        assert facts_of(trial, UNTOLD_OF_TRIALS) == facts_of(begun, UNTOLD_OF_TRIALS)
        cost = {} if begun.seconds is None else {"seconds": begun.seconds}
        assert (trial.metrics, trial.run_id) == ({**begun.metrics, **cost}, run.id)
        if isinstance(end, TrialFinished):
            assert (trial.status, trial.reason) == (end.status, end.reason)
        else:
            told = ("running", "") if begun.open else ("pruned", KILLED)
            assert (trial.status, trial.reason[: len(KILLED)]) == told
        choice = trial.study if ledger.studies[trial.study].chosen == key else ""
        assert run.tags.get("calsweep.best_of", "") == choice
        assert (run.tags.get("calsweep.chosen") == "true") == bool(choice)
        for name, points in runs[key]["metrics"].items():
            if name in CURVES:
                told = sorted((step, value) for step, _, value in points)
                assert told == [*zip(*begun.curve(name), strict=True)]
            elif name != "val_ece":  # Told of epochs and of ends.
                values = [value for _, value in sorted((time, value) for _, time, value in points)]
                assert all(before != after for before, after in pairwise(values))


def facts_of(told: Trial | Study, untold: set[str]) -> Record:
    return {entry.name: getattr(told, entry.name) for entry in fields(told)} | dict.fromkeys(untold)
