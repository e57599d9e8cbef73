"""Whatever is written, delivered, cut off and lost in whatever order: runs are those of a fold."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.storage.journal import Journal, iterate_events
from orchestrator.storage.ledger import Ledger, Study, Trial
from orchestrator.tracking import UnreachableError, _shipper, open_tracker, sync
from orchestrator.tracking._tags import study_of, trial_of
from orchestrator.tracking.folder import FolderTracker
from orchestrator.tracking.tracker import Run, RunQuery

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
# What a run does not tell of a trial or study, or tells in words of its own.
UNTOLD_OF_TRIALS = {
    *("parameters", "open", "status", "fault", "reused", "seconds", "epoch_seconds", "metrics"),
    *("peak_memory", "last_step", "epochs", "curves", "accuracy_error", "run_id", "reason"),
}
UNTOLD_OF_STUDIES = {"block", "closed", "begun", "rule", "run_id", "status", "reason"}
STATUS_OF_STUDY = {
    "RUNNING": "running",
    "FINISHED": "finished",
    "FAILED": "failed",
    "KILLED": "failed",
}
STATUS_OF_TRIAL = {
    "RUNNING": (True, "running"),
    "FINISHED": (False, "finished"),
    "FAILED": (False, "failed"),
    "KILLED": (False, "pruned"),
}
ENDS = {"finished": "FINISHED", "failed": "FAILED", "pruned": "KILLED"}
PLACE = st.tuples(st.sampled_from(STUDIES), st.integers(0, 2))
KINDS = (
    *("begin", "begin", "begin", "epoch", "epoch", "epoch", "score", "score", "evaluate"),
    *("evaluate", "end", "end", "end", "close", "stop", "deliver", "forget"),
)
STEPS = st.tuples(st.sampled_from(KINDS), PLACE, st.integers(1, 4))
FAULTS = st.lists(st.sampled_from(["", "before", "after"]), min_size=6, max_size=20)

Record = dict[str, Any]


class Story:
    """Writes a journal, and folds it by itself: what each run must come to.

    Attributes:
        told: What the file of each run holds, by key: tags with their prefix, metrics as lists of
            (step, time, value) in the order of telling, ``study`` for the parent.
        stays: What the runs held when the journal was cut, which nothing takes back.
    """

    def __init__(self, writer: Any, picture: Path) -> None:
        self.writer, self.picture = writer, picture
        self.stays: dict[str, Record] = {}
        self.told: dict[str, Record] = {}
        self.epochs: dict[str, int] = {}
        self.ends: dict[str, str] = {}
        self.chosen: dict[str, str] = {}
        self.counts: dict[str, dict[str, int]] = {}
        self.pages: list[tuple[int, tuple[Any, ...]]] = []
        self.start("c0de")
        for number, name in enumerate(STUDIES):
            self.study(number, name)

    def start(self, code: str) -> None:
        """Begin a run of the sweep, each with code and libraries of its own."""
        self.code = code
        self.writer.write(
            "sweep_started",
            sweep=self.writer.sweep,
            sweep_id=self.writer.sweep_id,
            spec={"name": self.writer.sweep, "tags": {"team": "red"}},
            provenance={"git_commit": code, "versions": {"torch": f"2.{code}"}},
        )

    def study(self, number: int, name: str) -> None:
        upstream = None if name == "ce" else f"{TASK}|ce"
        study = self.writer.open(name, row=name == "ce", upstream=upstream, **FACTS)
        own = {key: value for key, value in FACTS.items() if isinstance(value, str)}
        own |= {"kind": "study", "key": study, "number": number, "trials": 2}
        own |= {"upstream": upstream or ""}
        own |= {"row": "true" if name == "ce" else "false", "origin": '{"seeds": [1, 2]}'}
        own |= {"rule.objective": "val_ece", "rule.accuracy_tolerance": "0.5"}
        self.create(study, study, f"{name} on {TASK}", {**own, "version.torch": f"2.{self.code}"})
        self.counts[study] = {"finished": 0, "failed": 0}
        self.tell_counts(study)

    def create(self, key: str, study: str, name: str, own: Record) -> None:
        own |= {"sweep": self.writer.sweep, "sweep_id": self.writer.sweep_id, "study": study}
        own |= {"task": TASK, "recipe": study.partition("|")[2], "fingerprint": "f1"}
        tags = {f"calsweep.{tag}": str(value) for tag, value in own.items()}
        self.told[key] = {
            "name": name,
            "study": None if key == study else study,
            "status": "RUNNING",
            "started": self.writer.now,
            "ended": None,
            "tags": tags | {"calsweep.git_commit": self.code, "team": "red"},
            "params": {},
            "metrics": {},
            "files": set(),
        }

    def tag(self, key: str, **tags: str) -> None:
        self.told[key]["tags"] |= {f"calsweep.{name}": value for name, value in tags.items()}

    def report(self, key: str, step: int, **figures: float) -> None:
        for name, value in figures.items():
            points = self.told[key]["metrics"].setdefault(name, [])
            points.append((step, self.writer.now, value))

    def note(self, key: str, step: int, **figures: float) -> None:
        """Report figures that are others than were told last."""
        known = {name: points[-1][2] for name, points in self.told[key]["metrics"].items()}
        news = {name: value for name, value in figures.items() if known.get(name) != value}
        self.report(key, step, **news)

    def tell_counts(self, study: str) -> None:
        tick = 1 + max((len(points) for points in self.told[study]["metrics"].values()), default=0)
        counts = {f"trials_{status}": count for status, count in self.counts[study].items()}
        known = {name: points[-1][2] for name, points in self.told[study]["metrics"].items()}
        if known != counts:
            self.report(study, tick, **counts)

    def settle(self, key: str, status: str) -> None:
        self.told[key] |= {"status": status, "ended": self.writer.now}

    def again(self, key: str) -> None:
        self.told[key]["status"] = "RUNNING"
        self.tag(key, reason="")

    def leave(self, status: str, time: int) -> None:
        for key, run in self.told.items():
            if run["status"] == "RUNNING":
                self.tag(key, reason=f"the sweep ended ({status}) before this did")
                run |= {"status": "KILLED", "ended": time}

    def tell(self, what: str, place: tuple[str, int], value: int) -> None:
        """Tell one thing, which may be of a trial that was never begun."""
        known = (self.told, self.epochs, self.ends, self.chosen, self.counts, self.code)
        self.pages.append((self.writer.path.stat().st_size, deepcopy(known)))
        study = f"{TASK}|{place[0]}"
        key = self.writer.key(study, place[1], "seed" if place[1] == 2 else "search")
        if what == "stop":
            self.writer.end("interrupted")
            self.leave("interrupted", self.writer.now)
            self.start(f"c0de{self.writer.now}")
            if value > 2:
                self.writer.open(place[0])
                self.again(study)
        elif what == "begin":
            self.begin(key, study, place[1])
        elif what == "close":
            self.close(key, study, value - 1)
        elif key in self.told:
            getattr(self, what)(key, study, value)

    def begin(self, key: str, study: str, number: int) -> None:
        more = {"role": "seed", "seed": 7} if number == 2 else {"role": "search", "seed": 0}
        self.writer.begin(study, number, **more)
        if key in self.told:
            self.again(key)
            return
        recipe = study.partition("|")[2]
        own = {"kind": "trial", "key": key, "number": number, "stage": "train", **more}
        own |= {"configuration": json.dumps({recipe: {"margin": number + 0.5}})}
        name = f"{recipe} ~7" if number == 2 else f"{recipe} #{number}"
        self.create(key, study, name, own)
        self.told[key]["params"] = {f"{recipe}.margin": f"{number}.5"}
        self.note(key, 0, trial_number=number)

    def epoch(self, key: str, study: str, count: int) -> None:
        first = self.epochs.get(key, 0)
        self.epochs[key] = first + count
        for step in range(first - min(first, count % 2), first + count):  # Some are told again.
            self.writer.epochs(key, 1, step)
            if step >= first:
                losses = {"val_ece": 0.5 / (step + 1), "train_loss": 1.0 / (step + 1)}
                self.report(key, step, **losses, val_acc=0.9)

    def score(self, key: str, study: str, value: int) -> None:
        self.writer.score(key, value % 2 / 10)  # Often the same once more.
        self.note(key, 0, objective=value % 2 / 10)

    def evaluate(self, key: str, study: str, value: int) -> None:
        computed = {"train": {"device": f"d{value}"}}
        more = {"default_predictions": f"q{value}", "seconds": value - 1} if value % 2 else {}
        files = {"one.png": str(self.picture)} if value > 2 else {}
        facts = {"predictions": f"p{value}", "computed": computed, **more}
        self.writer.evaluate(key, study, artifacts=files, facts=facts, test_ece=value / 10)
        cost = {"chain_seconds": value - 1} if value % 2 else {}
        self.note(key, self.step(key), test_ece=value / 10, **cost)
        default = {"default_predictions": f"q{value}"} if value % 2 else {}
        told = {"predictions": f"p{value}", "computed": json.dumps(computed)}
        self.tag(key, evaluated="true", **told, **default)
        self.told[key]["files"] |= set(files)

    def end(self, key: str, study: str, value: int) -> None:
        status = sorted(ENDS)[value % 3]
        tags = {"reason": "nan" if status == "failed" else "", "artifact": f"of {status}"}
        figure, seconds = len(status) / 10, float(status == "failed")
        reused = status == "pruned"
        facts = {"status": status, "metrics": {"val_ece": figure}, "reused": reused, **tags}
        self.writer.write("trial_finished", key=key, seconds=seconds, **facts)
        self.note(key, self.step(key), val_ece=figure, seconds=seconds)
        self.tag(key, reused="true" if reused else "false", **tags)
        self.settle(key, ENDS[status])
        if self.told[key]["tags"]["calsweep.role"] == "search":
            for told, change in ((self.ends.get(key), -1), (status, 1)):
                if told in self.counts[study]:
                    self.counts[study][told] += change
            self.tell_counts(study)
        self.ends[key] = status

    def close(self, key: str, study: str, finished: int) -> None:
        chosen = key if key in self.told else ""
        self.writer.close(study, chosen or None, finished=finished, failed=3 - finished)
        for other in {self.chosen.get(study, ""), chosen} - {""}:
            won = other == chosen
            self.tag(other, chosen="true" if won else "false", best_of=study if won else "")
        self.chosen[study] = chosen
        self.counts[study] = {"finished": finished, "failed": 3 - finished}
        self.tell_counts(study)
        self.tag(study, chosen=chosen, reason="")
        self.settle(study, "FINISHED" if chosen else "FAILED")

    def step(self, key: str) -> int:
        return max(self.epochs.get(key, 0) - 1, 0)

    def cut(self, pages: int, delivered: dict[str, Record]) -> None:
        """Cut the journal within a line, as people are told to where one is damaged."""
        size, known = (
            self.pages[-pages:][0] if self.pages else (self.writer.path.stat().st_size, None)
        )
        self.writer.journal.close()
        with open(self.writer.path, "r+b") as stream:
            stream.truncate(min(size + 9, self.writer.path.stat().st_size))
        self.writer.journal = Journal(self.writer.path)
        if known is not None:
            self.told, self.epochs, self.ends, self.chosen, self.counts, self.code = known
            del self.pages[-pages:]
        self.stays = delivered

    def runs(self) -> dict[str, Record]:
        """Return what the file of each run must hold."""
        found = deepcopy(self.stays)
        for key, run in deepcopy(self.told).items():
            for name, points in run["metrics"].items():
                run["metrics"][name] = set(points)
            before = found.get(key, run)
            metrics = {
                name: before["metrics"].get(name, set()) | run["metrics"].get(name, set())
                for name in {*before["metrics"], *run["metrics"]}
            }
            commit = {"calsweep.git_commit": before["tags"]["calsweep.git_commit"]}
            merged = {"tags": before["tags"] | run["tags"] | commit, "metrics": metrics}
            merged |= {"files": before["files"] | run["files"], "started": before["started"]}
            found[key] = {**run, **merged, "ended": run["ended"] or before["ended"]}
        return found


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
    return found


@settings(max_examples=15, derandomize=True, database=None)
@given(
    steps=st.lists(STEPS, min_size=30, max_size=60),
    faults=FAULTS,
    chunk=st.sampled_from([1, 1000, _shipper.CHUNK]),
    ending=st.sampled_from(["open", "abandoned", "ended"]),
    cut=st.sampled_from([0, 1, 3, 8]),
)
def test_runs_are_those_of_a_naive_fold(
    journal_writer: Any, steps: list[Any], faults: list[str], chunk: int, ending: str, cut: int
) -> None:
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
        picture = folder / "picture.png"
        picture.write_bytes(b"png")
        story = Story(journal_writer(folder / "sweep", "told"), picture)
        journal, uri = story.writer.path, f"folder:{folder}/tracked"
        tracker = open_tracker(uri, create=True)
        experiment, _ = tracker.open_experiment("told", folder)
        real = FolderTracker.create_run
        strangers: dict[str, Run] = {}

        def add_stranger(key: str = "", sweep_id: str = story.writer.sweep_id) -> None:
            key = key or f"stranger {len(strangers)}"
            tags = {"calsweep.key": key, "calsweep.sweep_id": sweep_id}
            run_id = real(tracker, experiment.id, "strange", tags, 1)  # type: ignore[arg-type]
            strangers[run_id] = tracker.run(run_id)

        # Of another sweep under the same name, with a key of ours: not ours to delete.
        add_stranger(f"{TASK}|ce", "0ther")
        # While answers get lost, a copy of the sweep delivers runs of its own.
        lossy = failing(real, [*faults, "after", "before"], meanwhile=add_stranger)
        patch.setattr(FolderTracker, "create_run", lossy)
        for name in ("log", "set_status", "upload"):
            patch.setattr(FolderTracker, name, failing(getattr(FolderTracker, name), faults))

        def deliver(interrupted: bool = False) -> None:
            shipment = sync(journal, uri, interrupted=interrupted)
            assert shipment.refused == []

        for number, (what, where, value) in enumerate(steps):
            if cut and number == len(steps) * 2 // 3:
                deliver()
                story.cut(cut, kept(folder, story.writer.sweep_id))
            if what == "deliver":
                deliver()
            elif what == "forget":
                journal.with_name("shipped.json").unlink(missing_ok=True)
            else:
                story.tell(what, where, value)
        if ending == "ended":
            story.writer.end()
            story.leave("finished", story.writer.now)
        deliver(interrupted=ending != "open")
        if ending == "abandoned":
            story.leave("interrupted", 2 * 10**12)

        check_same(kept(folder, story.writer.sweep_id), story.runs())
        assert {run_id: tracker.run(run_id) for run_id in strangers} == strangers
        check_facts(tracker.runs(RunQuery([experiment.id], {"team": "red"})), story)
        # Nothing is there twice where nothing is remembered.
        journal.with_name("shipped.json").unlink()
        patch.setattr(_shipper, "CHUNK", 10**6)
        deliver(interrupted=ending != "open")
        check_same(kept(folder, story.writer.sweep_id), story.runs())


def check_same(found: dict[str, Record], expected: dict[str, Record]) -> None:
    assert found.keys() == expected.keys()
    for key, run in found.items():
        # Of an end and what came after it in one piece, the end is not delivered.
        for name in run.keys() - {"ended" if run["status"] == "RUNNING" else ""}:
            pair = run[name], expected[key][name]
            told, known = (without_choice(name, each) if "|" in key else each for each in pair)
            if name == "tags":  # The plain ones say again what ours say.
                told, known = (
                    {tag: text for tag, text in each.items() if "." in tag or tag == "team"}
                    for each in (told, known)
                )
            assert told == known, (key, name)


def without_choice(name: str, told: Any) -> Any:
    """Return what a study's run holds but for what follows from its trials."""
    if name not in ("tags", "params", "metrics"):
        return told
    summary = ("calsweep.configuration", "chosen_objective", "test_")
    return {} if name == "params" else {k: v for k, v in told.items() if not k.startswith(summary)}


def check_facts(runs: Iterable[Run], story: Story) -> None:
    """Compare what is read back of runs with what the journal tells, where it was never cut."""
    ledger = Ledger(iterate_events(story.writer.path, kinds=None))
    for run in runs:
        expected = story.runs()[run.tags["calsweep.key"]]
        metrics = expected["metrics"]
        if "|" in run.tags["calsweep.key"]:
            metrics = without_choice("metrics", metrics)
        now = {name: max(points)[-1] for name, points in metrics.items()}
        study = "|" in run.tags["calsweep.key"]
        known = without_choice("metrics", run.metrics) if study else run.metrics
        assert (known, run.status) == (now, expected["status"])
        if story.stays:
            continue
        if expected["study"] is None:
            stored, told = study_of(run), ledger.studies[run.tags["calsweep.key"]]
            assert facts_of(stored, UNTOLD_OF_STUDIES) == facts_of(told, UNTOLD_OF_STUDIES)
            rule = {"objective": "val_ece", "accuracy_tolerance": "0.5"}
            assert (stored.rule, stored.run_id) == (rule, run.id)
            assert stored.status == STATUS_OF_STUDY[run.status]
        else:
            trial, begun = trial_of(run), ledger.trials[run.tags["calsweep.key"]]
            assert facts_of(trial, UNTOLD_OF_TRIALS) == facts_of(begun, UNTOLD_OF_TRIALS)
            cost = {} if begun.seconds is None else {"seconds": begun.seconds}
            assert (trial.metrics, trial.run_id) == ({**begun.metrics, **cost}, run.id)
            assert (trial.open, trial.status) == STATUS_OF_TRIAL[run.status]


def facts_of(told: Trial | Study, untold: set[str]) -> Record:
    """Return what a trial or study holds, but for some of it."""
    return {entry.name: getattr(told, entry.name) for entry in fields(told)} | dict.fromkeys(untold)
