import json
import math
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from filelock import FileLock, Timeout
from nights import ECE, record

from orchestrator.nightly import Acceptance, Book, BusyError, CellKey, Night, Verdict
from orchestrator.nightly.book import ACCEPTED, DELIVERED, FACTS, RECORD, VERDICT
from trainables.common.errors import InputError, StorageError


def measured(night: Night) -> None:
    night.write(RECORD, replace(record(0), night=night.name).to_json())


def judged(night: Night) -> None:
    night.write(VERDICT, Verdict(night.name, "ok").to_json())


def test_nights_are_numbered_and_ordered_by_their_beginning(tmp_path):
    book = Book(tmp_path)
    names = ["2031-01-01", *(f"2026-12-{day}" for day in range(30, 10, -2))]
    for name in names:
        book.begin(name, 0.0, {})
    book.night("2026-12-31").folder.mkdir()
    assert [night.name for night in book.nights()] == names
    assert [night.facts["number"] for night in book.nights()] == list(range(1, 12))
    shutil.rmtree(book.night(names[0]).folder)
    assert book.begin("2026-12-09", 0.0, {}).facts["number"] == 12


def test_a_night_that_starts_over_keeps_only_its_number(tmp_path):
    book = Book(tmp_path)
    night = book.begin("2026-11-21", 1.0, {"torch": "1"})
    book.begin("2026-11-22", 2.0, {})
    begun = {"number": 1, "started": 1.0, "environment": {"torch": "1"}}
    assert night.facts == begun
    book.give_up(night, "the code has changed")
    assert night.facts == {**begun, "given_up": "the code has changed"}
    book.begin("2026-11-21", 3.0, {"torch": "2"})
    assert night.facts == {"number": 1, "started": 3.0, "environment": {"torch": "2"}}


def test_a_night_is_unfinished_from_its_beginning_to_its_verdict(tmp_path):
    book = Book(tmp_path)
    night, other = book.night("2026-11-21"), book.night("2026-11-22")
    states = [night.unfinished]
    for happens in (lambda: book.begin(night.name, 0.0, {}), lambda: measured(night)):
        happens()
        states.append(night.unfinished)
        assert book.judged() == []
    judged(night)
    book.begin(other.name, 0.0, {})
    judged(other)
    assert [*states, night.unfinished] == [False, True, True, False]
    assert [pair[0].night for pair in book.judged()] == [night.name]
    measured(other)
    assert book.judged() == [(n.record, n.verdict) for n in (night, other)]
    third = book.begin("2026-11-23", 0.0, {})
    book.give_up(third, "the code has changed")
    assert not third.unfinished


@pytest.mark.parametrize(("keep", "shrunk"), [(2, [0, 1]), (1, [0, 1, 3]), (5, [])])
def test_older_nights_lose_their_artifacts_once_they_are_delivered(tmp_path, keep, shrunk):
    book = Book(tmp_path)
    nights = [book.begin(f"2026-11-{day}", 0.0, {}) for day in range(21, 26)]
    for number, night in enumerate(nights):
        for part in ("artifacts", "sweeps", "kept"):
            (night.folder / part / "deep").mkdir(parents=True)
        if number not in (1, 2):
            night.write(DELIVERED, {})
    book.give_up(nights[1], "the code has changed")
    measured(nights[2])
    judged(nights[2])
    book.prune(keep)
    for part in ("artifacts", "sweeps"):
        gone = [n for n, night in enumerate(nights) if not (night.folder / part).exists()]
        assert gone == shrunk
    assert all((night.folder / "kept/deep").exists() and night.facts for night in nights)


def test_accepted_changes_are_stored_and_the_latest_one_counts(tmp_path):
    book, pair, why = Book(tmp_path / "new"), CellKey(*ECE.pair), "a\u2028b\x85c \u00e9"
    assert book.restarts() == {}
    for cell, night in ((ECE, "2026-11-23"), (pair, "2026-11-24"), (ECE, "2026-11-21")):
        book.accept(Acceptance(cell, night, why, "2026-11-25T08:00:00+00:00"))
    assert book.restarts() == {ECE: "2026-11-21", pair: "2026-11-24"}
    rows = [json.loads(line) for line in (book.folder / ACCEPTED).read_text().splitlines()]
    said = {"why": why, "time": "2026-11-25T08:00:00+00:00"}
    assert rows[0] == {"cell": str(ECE), "night": "2026-11-23", **said}
    assert len(rows) == 3


@pytest.mark.parametrize(
    "line",
    ['{"cell"', "3", '{"cell": "ls on d"}', '{"cell": "ls"}', '{"cell": 3, "night": "2026-11-21"}'],
)
def test_damaged_files_are_named(tmp_path, line):
    book = Book(tmp_path)
    (tmp_path / ACCEPTED).write_text(f"{line}\n")
    with pytest.raises(InputError, match=r"accepted\.jsonl is damaged"):
        book.restarts()
    night = book.begin("2026-11-21", 0.0, {})
    for text, said in (
        ('{"number', "cannot be read: "),
        ("{}", r"is damaged: KeyError\('number'\)$"),
        ("[1]", "is damaged: TypeError"),
    ):
        (night.folder / FACTS).write_text(text)
        with pytest.raises(InputError, match=rf"night\.json {said}"):
            book.nights()


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    book = Book(tmp_path)
    (tmp_path / ACCEPTED).mkdir()
    with pytest.raises(InputError, match=r"accepted\.jsonl is damaged: .*Is a directory"):
        book.restarts()
    night = book.night("2026-11-21")
    (night.folder / RECORD).mkdir(parents=True)
    with pytest.raises(InputError, match=r"record\.json cannot be read: .*Is a directory"):
        _ = night.record
    (night.folder / VERDICT).write_bytes(b'{"night": "\xff"}')
    with pytest.raises(InputError, match=r"verdict\.json cannot be read: 'utf-8' codec"):
        _ = night.verdict


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (RECORD, {}, "KeyError('cells')"),
        (RECORD, [], "TypeError('list indices must be integers or slices, not str')"),
        (
            RECORD,
            {"cells": [{"recipe": "ls", "task": "d", "metric": "ece", "values": 3}]},
            "'items'",
        ),
        (VERDICT, {}, "ValueError('night: Field required')"),
        (VERDICT, {"night": "n", "status": "ok", "alarms": [{}]}, "ValueError('alarms.0.cell: "),
    ],
)
def test_a_record_or_verdict_of_another_form_is_named_in_one_line(tmp_path, file, content, said):
    night = Book(tmp_path).begin("2026-11-21", 0.0, {})
    (night.folder / file).write_text(json.dumps(content))
    with pytest.raises(InputError) as raised:
        _ = night.record, night.verdict
    assert str(raised.value).startswith(f"{night.folder / file} is damaged: ")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_number_that_json_does_not_know_is_not_written(tmp_path):
    night = Book(tmp_path).begin("2026-11-21", 1.0, {})
    with pytest.raises(ValueError, match="not JSON compliant"):
        night.write(FACTS, {"started": math.nan})
    assert night.facts["started"] == 1.0


def test_records_and_acceptances_are_synced_to_the_disk(tmp_path, monkeypatch):
    synced: dict[int, int] = {}

    def fsync(file: int) -> None:
        found = os.fstat(file)
        synced[found.st_ino] = found.st_size

    monkeypatch.setattr(os, "fsync", fsync)
    book = Book(tmp_path)
    night = book.begin("2026-11-21", 0.0, {})
    book.accept(Acceptance(ECE, night.name, "meant", ""))
    for path in (night.folder / FACTS, tmp_path / ACCEPTED):
        assert synced[path.stat().st_ino] == path.stat().st_size > 0


def test_changes_are_accepted_one_at_a_time(tmp_path, monkeypatch):
    refused = []

    def another_process(_: int) -> None:
        with pytest.raises(Timeout):
            FileLock(tmp_path / "accepted.moment", timeout=0).acquire()
        refused.append(len((tmp_path / ACCEPTED).read_text().splitlines()))

    monkeypatch.setattr(os, "fsync", another_process)
    (tmp_path / ACCEPTED).write_text("")
    for _ in range(2):
        Book(tmp_path).accept(Acceptance(ECE, "2026-11-21", "meant", ""))
    assert refused == [0, 1, 1, 2]  # Before and after each takes its place.


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    book = Book(tmp_path / "file")
    with pytest.raises(StorageError, match=r"night\.json cannot be written: Not a directory"):
        book.night("2026-11-21").write(FACTS, {})
    with pytest.raises(StorageError, match=r"accepted\.jsonl cannot be written: File exists"):
        book.accept(Acceptance(ECE, "2026-11-21", "meant", ""))
    with pytest.raises(InputError) as refused, book.held():
        pass
    place = book.folder / "run.lock"
    assert str(refused.value) == f"lock {place} cannot be written: File exists"


HOLD = """
import sys
from pathlib import Path
from orchestrator.nightly import Book
with Book(Path(sys.argv[1])).held():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_owner_file_is_removed_after_the_block(tmp_path):
    folder = tmp_path / "deep"
    with Book(folder).held() as gone:
        assert (gone, (folder / "owner").exists()) == ("", True)
    for error in (KeyboardInterrupt, OSError):
        with pytest.raises(error), Book(folder).held():
            raise error
    assert [path.name for path in folder.iterdir()] == ["run.lock"]


def test_a_second_run_is_refused_with_the_holder_of_the_lock(tmp_path):
    holder = f"process {os.getpid()} on {os.uname().nodename}"
    with Book(tmp_path).held():
        for named in (holder, "another process"):  # Which has not said yet who it is.
            with pytest.raises(BusyError) as refused, Book(tmp_path).held():
                pass
            expected = f"another run is in progress: {named} holds the lock {tmp_path / 'run.lock'}"
            assert str(refused.value) == expected
            (tmp_path / "owner").unlink(missing_ok=True)


@pytest.mark.full
def test_the_lock_of_a_killed_process_is_taken_over_at_once(tmp_path):
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        process.stdout.readline()
        with pytest.raises(BusyError, match=f"process {process.pid} "), Book(tmp_path).held():
            pass
        process.send_signal(signal.SIGKILL)
        # It stays a zombie, which holds nothing.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with Book(tmp_path).held() as gone:
            assert gone == f"process {process.pid} on {os.uname().nodename}"
