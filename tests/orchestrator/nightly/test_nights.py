import io
import json
import os
import re
import shutil
import time
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest
from nights import write_night
from rich.console import Console

from orchestrator.cli import main
from orchestrator.nightly import Book, BusyError, CellKey, Nightly, run_night
from orchestrator.nightly.book import DELIVERED, FACTS
from orchestrator.nightly.measure import TOTAL
from orchestrator.storage.events import from_fields
from orchestrator.storage.journal import Journal
from orchestrator.storage.storage import Storage
from orchestrator.sweep.spec import SweepSpec
from trainables.common.errors import InputError, StorageError
from trainables.common.stages import EVERY_STAGE

Make = Callable[..., Nightly]
FIRST, SECOND = "2026-11-21", "2026-11-22"
ECE = CellKey("ce", "d", "ece")


def tracked(benchmark: Nightly, experiment: str) -> list[dict[str, Any]]:
    place = Path(benchmark.sweep.tracking_uri.removeprefix("folder:"), "experiments")
    return [json.loads(path.read_text()) for path in place.glob(f"{experiment}/runs/*.json")]


def nightlies(benchmark: Nightly) -> list[dict[str, str]]:
    """Return the tags of the runs that the tracker holds of a benchmark's nights."""
    runs = tracked(benchmark, f"{benchmark.name}-nights")
    assert all(run["status"] == "FINISHED" for run in runs)
    assert all(run["started"] < run["ended"] for run in runs)
    return [run["tags"] for run in runs]


def test_a_night_is_recorded_judged_tracked_and_summed_up(make_benchmark, told_sweep):
    benchmark = make_benchmark(sweep={"name": "once"})
    specs: list[SweepSpec] = []

    def another_night(spec: SweepSpec) -> None:
        specs.append(spec)
        with pytest.raises(BusyError):
            run_night(benchmark, SECOND)

    told_sweep.before_end = another_night
    outcome = run_night(benchmark, FIRST)
    assert (outcome.verdict.status, outcome.fresh, outcome.messages) == ("ok", True, ())
    # Data and the tracking server are those of all nights, all else is the night's own.
    assert (specs[0].name, specs[0].storage) == (f"once-{FIRST}", str(outcome.night.folder))
    assert specs[0].tracking_uri == benchmark.sweep.tracking_uri
    own, shared = Storage.of(specs[0]), Storage.of(benchmark.sweep)
    assert own.data.resolve() == shared.data.resolve()
    assert own.tracked_files.resolve() == shared.tracked_files.resolve()
    record = outcome.night.record
    assert set(record.environment) >= {"torch", "python", "hardware cpus", "code", "data digits"}
    for name in ("report.md", "report.html", "junit.xml"):
        assert (outcome.night.folder / name).read_text() == (benchmark.folder / name).read_text()
    (tags,) = nightlies(benchmark)
    assert tags["calsweep.night"] == FIRST
    assert tags["calsweep.night.status"] == "ok"
    assert {run["status"] for run in tracked(benchmark, "once-*")} == {"FINISHED"}


def test_a_night_that_broke_off_is_continued(make_benchmark, told_sweep, monkeypatch):
    benchmark = make_benchmark(sweep={"name": "broken"})
    told_sweep.break_off(benchmark, FIRST)
    night = Book(benchmark.folder).night(FIRST)
    assert night.unfinished
    started = night.facts["started"]
    kept = night.folder / "artifacts/train/d|/d|ce 0"
    lost = [night.folder / "artifacts" / stage / "aa/aa00" for stage in EVERY_STAGE]
    lost += [kept.with_name(part) for part in ("d|ce", "|ce 0", "d|ce 00", "d|ce 2")]
    for artifact in (kept, *lost):
        artifact.mkdir(parents=True)
    lost[0].with_suffix(".lock").touch()  # As a process leaves it.
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", Mock(side_effect=PermissionError))
        with pytest.raises(PermissionError):  # Else its cost would be missing.
            run_night(benchmark, FIRST)
    assert len(told_sweep.runs) == 1
    outcome = run_night(benchmark, FIRST)
    # What the journal knows the cost of stays; what was finished in the moment of the crash goes.
    assert kept.exists()
    assert not any(artifact.exists() for artifact in lost)
    assert outcome.night.record.started == started
    assert abs(started - time.time()) < 86400
    assert TOTAL not in outcome.night.record.cells  # Nobody knows how long it would have taken.
    assert outcome.verdict.status == "ok"
    assert len(nightlies(benchmark)) == 1


def test_an_earlier_night_that_broke_off_is_finished_before_tonights(make_benchmark, told_sweep):
    benchmark = make_benchmark(sweep={"name": "earlier"})
    told_sweep.break_off(benchmark, FIRST)

    def second_broken_off(spec: SweepSpec) -> None:
        assert not spec.name.endswith(SECOND), "the second breaks off"

    told_sweep.before_end = second_broken_off
    (benchmark.folder / "owner").write_text("process 7 on a-machine")
    said = io.StringIO()
    with pytest.raises(AssertionError, match="the second breaks off"):
        run_night(benchmark, SECOND, console=Console(file=said, width=200))
    assert said.getvalue().splitlines() == [
        "took over the lock of process 7 on a-machine, which ended without releasing it",
        f"night {FIRST} was interrupted and is finished first",
    ]
    # People wait for the first one's verdict, whatever becomes of the second.
    assert Book(benchmark.folder).night(FIRST).delivered
    told_sweep.before_end = lambda spec: None
    outcome = run_night(benchmark, SECOND)
    assert told_sweep.runs[1:] == [f"earlier-{name}" for name in (FIRST, SECOND, SECOND)]
    assert outcome.night.name == SECOND
    assert [record.night for record, _ in Book(benchmark.folder).judged()] == [FIRST, SECOND]
    assert len(nightlies(benchmark)) == 2


def test_a_report_that_an_earlier_night_could_not_send_fails_once(make_benchmark, told_sweep):
    report = {"mail": ["no-such-program"], "when": "always"}
    benchmark = make_benchmark(sweep={"name": "mute"}, report=report)
    told_sweep.break_off(benchmark, FIRST)
    (message,) = run_night(benchmark, SECOND).messages
    assert message.startswith("mail command 'no-such-program' failed")


def test_half_a_night_of_other_code_is_given_up(make_benchmark, told_sweep, monkeypatch):
    benchmark = make_benchmark(sweep={"name": "other"})
    told_sweep.break_off(benchmark, FIRST)
    trial = {"study": "d|ce", "number": 2, "key": "open", "seed": 2, "stage": "train"}
    with Journal(benchmark.sweep_folder(FIRST).journal) as journal:
        started = {"event": "trial_started", "role": "seed", "configuration": {}, **trial}
        journal.append(from_fields(started))
    with monkeypatch.context() as patch:
        patch.setattr("orchestrator.storage.provenance.git_commit", lambda: "c0ffee")
        outcome = run_night(benchmark, SECOND)
    assert told_sweep.runs[1:] == [f"other-{SECOND}"]
    assert any(f"night {FIRST} is abandoned" in message for message in outcome.messages)
    nights = Book(benchmark.folder).nights()
    assert [night.unfinished for night in nights] == [False, False]
    assert not (nights[0].folder / "sweeps").exists()
    assert {run["status"] for run in tracked(benchmark, "other-*")} == {"FINISHED", "KILLED"}
    run_night(benchmark, SECOND)
    assert told_sweep.runs[2:] == []
    again = run_night(benchmark, FIRST).night  # Who asks for it gets it, from its beginning on.
    assert told_sweep.runs[2:] == [f"other-{FIRST}"]
    assert "given_up" not in again.facts
    assert TOTAL in again.record.cells


@pytest.mark.parametrize(
    ("name", "other"), [(FIRST, "torch"), (FIRST, "a library of then"), (SECOND, "data digits")]
)
def test_half_a_night_in_other_surroundings_is_not_gone_on_with(
    make_benchmark, told_sweep, name, other
):
    benchmark = make_benchmark(sweep={"name": f"{other.split()[-1]}-{name}"})
    told_sweep.break_off(benchmark, FIRST)
    night = Book(benchmark.folder).night(FIRST)
    environment = night.facts["environment"]
    night.write(FACTS, {**night.facts, "environment": {**environment, other: "another"}})
    why = "it was interrupted, and code, libraries, hardware or data have changed since"
    given_up = (f"night {FIRST} is abandoned: {why}",)
    outcome = run_night(benchmark, name)
    assert outcome.messages == (() if name == FIRST else given_up)
    assert outcome.night.record.environment == environment
    assert TOTAL in outcome.night.record.cells
    assert night.facts.get("given_up") == (None if name == FIRST else why)


def test_a_half_night_of_other_code_starts_over(make_benchmark, told_sweep, monkeypatch):
    benchmark = make_benchmark(sweep={"name": "anew"})
    told_sweep.break_off(benchmark, FIRST)
    folder = benchmark.sweep_folder(FIRST).path
    half = folder / "half"
    half.touch()
    away = Mock(side_effect=InputError("tracking http://127.0.0.1:9 gives no answer"))
    monkeypatch.setattr("orchestrator.storage.provenance.git_commit", lambda: "c0ffee")
    # Nobody asks any more for the runs that the server misses.
    monkeypatch.setattr("orchestrator.nightly.run.sync", away)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", Mock(side_effect=PermissionError))
        why = "(code, libraries, hardware or data have changed)"
        left = f"{folder.parent} cannot be removed; delete it, so that the night can restart {why}"
        with pytest.raises(StorageError, match=f"^{re.escape(left)}$"):
            run_night(benchmark, FIRST)
    assert len(told_sweep.runs) == 1
    said = io.StringIO()
    record = run_night(benchmark, FIRST, console=Console(file=said, width=200)).night.record
    assert record.environment["code"] == "c0ffee"
    assert TOTAL in record.cells
    assert (folder.exists(), half.exists()) == (True, False)
    journal, files = benchmark.sweep_folder(FIRST).journal, folder.parents[1] / "mlflow-artifacts"
    assert away.mock_calls == [call(journal, benchmark.sweep.tracking_uri, files, True)]
    expected = f"night {FIRST} restarts: code, libraries, hardware or data have changed\n"
    assert said.getvalue() == expected


@pytest.mark.parametrize("lost", ["verdict.json", "delivered.json", "told.json", "junit.xml"])
def test_a_crash_after_the_sweep_leaves_one_verdict(make_benchmark, told_sweep, lost):
    benchmark = make_benchmark(sweep={"name": f"after-{lost}"})
    outcome = run_night(benchmark, FIRST)
    (outcome.night.folder / lost).unlink()
    again = run_night(benchmark, SECOND if lost == "delivered.json" else FIRST)
    assert again.verdict.status == "ok"
    assert Book(benchmark.folder).night(FIRST).delivered
    names = [tags["calsweep.night"] for tags in nightlies(benchmark)]
    assert sorted(names) == sorted(dict.fromkeys([FIRST, again.night.name]))


def test_a_night_is_judged_by_the_last_nights_that_the_file_asks_for(make_benchmark, told_sweep):
    limits = {"hard": {"ece": {"max": 0.06}}}
    benchmark = make_benchmark(sweep={"name": "window"}, history=5, limits=limits)
    first = run_night(benchmark, "2026-11-01").night.record
    book = Book(benchmark.folder)
    for day in range(2, 11):
        name = f"2026-11-{day:02}"
        figures = {ECE: {0: 0.06, 1: 0.061}} if day > 5 else {}
        record = replace(first, night=name, cells={**first.cells, **figures})
        write_night(book, record).write(DELIVERED, {})
    told_sweep.changes["ce", "ece"] = 3.0
    verdict = run_night(benchmark, "2026-11-11").verdict
    assert [(found.cell, found.reason) for found in verdict.alarms] == [(ECE, "limit")]


def test_a_night_is_tracked_where_all_nights_are_though_the_file_names_no_server(
    make_benchmark, told_sweep
):
    benchmark = make_benchmark(sweep={"name": "unnamed", "tracking": {"uri": None}})
    places: list[str] = []
    told_sweep.before_end = lambda spec: places.append(spec.tracking_uri)
    told_sweep.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        run_night(benchmark, FIRST)
    assert places == [benchmark.sweep.tracking_uri]


@pytest.mark.parametrize(
    ("sizes", "own", "needed"),
    [([], 0, 100), ([50], 0, 100), ([900, 300, 200, 100], 0, 360), ([200, 300], 50, 310)],
)
def test_a_night_needs_a_fifth_more_room_than_the_largest_of_the_last_three(
    make_benchmark, told_sweep, monkeypatch, sizes, own, needed
):
    benchmark = make_benchmark(sweep={"name": "full"})
    book = Book(benchmark.folder)
    for day, size in enumerate(sizes, 1):
        night = book.begin(f"2026-10-{day:02}", 0.0, {})
        book.give_up(night, "the code has changed")
        sized(night.folder / "deep/file", size)
    own_file = book.night(FIRST).folder / "deep/file"
    sized(own_file, own)
    own_file.with_name("link").symlink_to(own_file)  # Takes no room itself.
    own_file.with_name("draft").touch()
    lstat = Path.lstat

    def gone(path: Path) -> os.stat_result:
        if path.name == "draft":
            raise FileNotFoundError(2, "No such file or directory")
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", gone)
    usage = namedtuple("usage", "total used free")
    free = needed - 1
    disks: list[Path] = []

    def disk_usage(path: Path) -> usage:
        disks.append(path)
        return usage(10**9, 10**9, free * 2**20)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    expected = f"{free} MB are free, but a night needs about {needed + own} MB; free disk space"
    with pytest.raises(StorageError) as refused:
        run_night(benchmark, FIRST)
    assert str(refused.value) == f"{book.night(FIRST).folder}: {expected}"
    assert (told_sweep.runs, book.night(FIRST).facts) == ([], {})
    assert disks == [book.night(FIRST).folder]
    free = needed + 1
    told_sweep.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        run_night(benchmark, FIRST)


def sized(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True)
    path.touch()
    os.truncate(path, size * 2**20)


def test_an_interrupted_night_is_continued(make_benchmark, told_sweep, capsys):
    benchmark = make_benchmark(sweep={"name": "stopped"})
    run = ["nightly", "run", str(benchmark.path), "--night", FIRST]
    told_sweep.interrupted = True
    assert main([*run, "--address", "auto", "--quiet"]) == 130
    night = Book(benchmark.folder).night(FIRST)
    assert (night.unfinished, night.record) == (True, None)
    told_sweep.interrupted = False
    assert main(run) == 0
    assert TOTAL not in night.record.cells
    assert told_sweep.options[0] == {"address": "auto", "console": None}
    assert told_sweep.options[1]["address"] is None
    assert told_sweep.options[1]["console"].stderr


def test_a_tracking_server_that_is_away_gets_the_verdict_from_the_next_start(
    make_benchmark, told_sweep, monkeypatch
):
    benchmark = make_benchmark(sweep={"name": "away"})
    away = InputError("tracking http://127.0.0.1:9 gives no answer")
    with monkeypatch.context() as patch:
        patch.setattr("orchestrator.nightly.publish.sync", Mock(side_effect=away))
        outcome = run_night(benchmark, FIRST)
    assert outcome.verdict.status == "ok"
    assert any("the next start tries again" in message for message in outcome.messages)
    early = []
    told_sweep.before_end = lambda spec: early.append(nightlies(benchmark))
    assert run_night(benchmark, SECOND).messages == ()
    assert early == [[]], "it was delivered before the night computed"
    assert sorted(tags["calsweep.night"] for tags in nightlies(benchmark)) == [FIRST, SECOND]
