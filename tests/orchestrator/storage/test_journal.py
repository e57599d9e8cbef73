import json
import os
import random
import re
import threading
import time
import zlib
from dataclasses import MISSING, fields

import psutil
import pytest

from orchestrator.storage.events import (
    SEAL,
    Epoch,
    Evaluated,
    StudyClosed,
    StudyOpened,
    SweepEnded,
    SweepStarted,
    TrialFinished,
    TrialScored,
    TrialStarted,
    from_fields,
    from_line,
    to_fields,
)
from orchestrator.storage.journal import Journal, iterate_events, read_events
from trainables.common.errors import InputError

END = {"event": "sweep_ended", "status": "finished"}
LINES = [
    (
        Epoch(key="k", step=3, metrics={"val_ece": 0.1}, time=7),
        b'{"event":"epoch","time":7,"key":"k","step":3,"metrics":{"val_ece":0.1},"crc":"4e45fe52"}\n',
    ),
    (
        StudyClosed(study="s", chosen=None, finished=0, failed=1, reason="\u00fc", time=1),
        '{"event":"study_closed","time":1,"study":"s","chosen":null,"finished":0,"failed":1,'
        '"reason":"\u00fc","crc":"cddf19e8"}\n'.encode(),
    ),
]


def epoch(step, **metrics):
    return {"event": "epoch", "key": "k", "step": step, "metrics": metrics or {"val_ece": 0.5}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "er" / "journal.jsonl"


def test_a_journal_returns_the_written_events_with_their_time(path):
    before = time.time_ns() // 1_000_000
    with Journal(path) as journal:
        journal.append(from_fields(epoch(1, val_ece=0.1, latest_loss=1e-300)))
        journal.append(SweepEnded(status="finished", time=7))
    events, offset = read_events(path)
    assert events[1].time == 7
    assert events == [from_fields(epoch(1, val_ece=0.1, latest_loss=1e-300)), from_fields(END)]
    assert offset == path.stat().st_size
    first = json.loads(path.read_text().splitlines()[0])
    assert isinstance(first["time"], int)
    assert before <= first["time"] <= time.time_ns() // 1_000_000
    plain = path.with_name("plain")
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode & ~0o022  # Others may read it.


# One of each kind, without what may be left out; those that a resumed sweep would say again first.
UNSYNCED = [
    TrialStarted(
        study="s", number=0, key="k", role="search", seed=0, stage="train", configuration={}
    ),
    Epoch(key="k", step=0, metrics={}),
    TrialScored(key="k", objective=0.1),
]
LASTING = [
    SweepStarted(sweep="n", sweep_id="1d", spec={}, provenance={}),
    StudyOpened(study="s", task="t", recipe="ce", trials=1, row=True),
    TrialFinished(key="k", status="failed", metrics={}),
    StudyClosed(study="s", chosen=None, finished=0, failed=1),
    Evaluated(key="k", study="s", seed=0, metrics={}),
    SweepEnded(status="finished"),
]


def test_only_durable_decisions_are_synced(path, monkeypatch):
    calls = []
    with Journal(path) as journal:
        monkeypatch.setattr(os, "fsync", calls.append)
        for event in UNSYNCED:
            journal.append(event)
        for event in LASTING:
            journal.append(event, durable=False)
        assert calls == []
        for count, event in enumerate(LASTING, 1):
            journal.append(event)
            assert len(calls) == count


@pytest.mark.parametrize(("event", "line"), LINES)
def test_a_line_is_written_and_read_as_by_every_version(path, event, line):
    with Journal(path) as journal:
        journal.append(event)
    assert path.read_bytes() == line
    assert from_line(line) == event


@pytest.mark.parametrize("event", [*UNSYNCED, *LASTING], ids=lambda event: event.event)
def test_older_and_newer_journals_are_read(event):
    """What is not needed may be absent, or null, and what is not known does not matter."""
    told = to_fields(event)
    defaults = {entry.name: None for entry in fields(event) if entry.default is not MISSING}
    defaults |= {
        entry.name: None for entry in fields(event) if entry.default_factory is not MISSING
    }
    needed = {name: value for name, value in told.items() if name not in defaults}
    for values in (needed, {**needed, **defaults}, {**told, "of a later version": 1}):
        assert from_fields(values) == event


def test_a_journal_omits_rarely_known_fields_that_are_empty():
    events = [
        TrialFinished(key="k", status="failed", metrics={}),
        TrialScored(key="k", objective=0.1),
        StudyClosed(study="s", chosen=None, finished=0, failed=1),
        Evaluated(key="k", study="s", seed=0, metrics={}),
    ]
    empty = {name for event in events for name, value in to_fields(event).items() if value is None}
    assert empty == {"seconds", "chosen"}
    assert not events[0].reused


@pytest.mark.parametrize("kinds", [None, [Epoch]])
def test_lines_of_unrequested_kinds_are_checked_too(kinds):
    unknown = b'{"event":"trial_paused","time":1'
    with pytest.raises(ValueError, match="not one whole event"):
        from_line(unknown + SEAL % zlib.crc32(unknown), kinds)
    with pytest.raises(ValueError, match="checksum"):
        from_line(b'{"time":1,"event":"sweep_ended","status":"finished"' + SEAL % 0, kinds)


def test_reading_goes_on_where_it_stopped(path):
    with Journal(path) as journal:
        journal.append(from_fields(epoch(0)))
        first, offset = read_events(path)
        assert read_events(path, offset) == ([], offset)
        journal.append(from_fields(epoch(1)), durable=False)
        second, _ = read_events(path, offset)
    assert [event.step for event in first + second] == [0, 1]


def test_a_limit_stops_at_the_end_of_a_line(path):
    with Journal(path) as journal:
        for step in range(10):
            journal.append(from_fields(epoch(step)))
    first = len(path.read_bytes().splitlines(keepends=True)[0])
    pieces, offset = [], 0
    while offset < path.stat().st_size:
        events, offset = read_events(path, offset, limit=2 * first + 1)
        pieces.append([event.step for event in events])
    assert pieces == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert [len(read_events(path, limit=first + i)[0]) for i in (-1, 0, 1)] == [1, 1, 2]
    assert len(read_events(path, limit=0)[0]) == 1


def test_epochs_are_left_out_unless_they_are_asked_for(path):
    with Journal(path) as journal:
        for event in (epoch(0), END, epoch(1)):
            journal.append(from_fields(event))
    for kinds, expected in (
        ({}, ["sweep_ended"]),
        ({"kinds": [Epoch]}, ["epoch", "epoch"]),
        ({"kinds": None}, ["epoch", "sweep_ended", "epoch"]),
    ):
        assert [event.event for event in iterate_events(path, **kinds)] == expected


def test_no_file_stays_open(path):
    before = psutil.Process().num_fds()
    with Journal(path) as journal:
        journal.append(from_fields(END))
    path.write_bytes(b"damaged\n")
    with pytest.raises(InputError):
        Journal(path)
    assert psutil.Process().num_fds() == before


@pytest.mark.parametrize("name", ["epoch", "trial_finished"])
def test_test_metrics_cannot_be_written_for_a_search_trial(path, name):
    event = {**epoch(0, val_ece=0.1, test_ece=0.1), "status": "finished", "event": name}
    with Journal(path) as journal, pytest.raises(ValueError, match=r"^event") as refusal:
        journal.append(from_fields(event))
    told = f"event {name!r} has test_ece: only 'evaluated' has test metrics"
    assert str(refusal.value) == told


def test_line_separators_inside_a_text_do_not_split_the_line(path):
    reason = "a\nb\rc\u2028d\x0be\x85f"
    with Journal(path) as journal:
        journal.append(TrialFinished(key="k", status="failed", metrics={}, reason=reason))
        journal.append(from_fields(END))
    events, _ = read_events(path)
    assert events[0].reason == reason
    assert len(events) == 2


@pytest.mark.parametrize("tail", [b'{"event": "epo', b'{"event": "epoch"}', b"\0\0\0"])
def test_a_torn_last_line_is_not_read_and_is_cut_off_on_opening(path, tail):
    with Journal(path) as journal:
        journal.append(from_fields(epoch(0)))
    whole = path.stat().st_size
    with open(path, "ab") as stream:
        stream.write(tail)
    events, offset = read_events(path)
    assert (len(events), offset) == (1, whole)
    with Journal(path) as journal:
        assert path.stat().st_size == whole
        journal.append(from_fields(END))
    assert [event.event for event in read_events(path)[0]] == ["epoch", "sweep_ended"]


def test_a_last_line_with_another_end_is_damaged_and_one_without_any_is_torn(path):
    with Journal(path) as journal:
        for step in range(2):
            journal.append(from_fields(epoch(step)))
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert [event.step for event in read_events(path)[0]] == [0]
    path.write_bytes(content[:-1] + b"x")
    for act in (Journal, read_events):
        with pytest.raises(InputError, match="line 2: damaged, it has a wrong line end; results"):
            act(path)


@pytest.mark.parametrize(("ends", "kept"), [(1, True), (2, False)])
def test_lost_writes_before_one_that_waits_for_the_disk_are_cut_off(path, ends, kept):
    with Journal(path) as journal:
        journal.append(from_fields(END))
        whole = path.stat().st_size
        for event in (epoch(1), epoch(2), *[END] * ends):
            journal.append(from_fields(event))
    content = bytearray(path.read_bytes())
    lost = content.index(b"\n", whole) - 20
    content[whole + 10 : lost] = bytes(lost - whole - 10)
    path.write_bytes(content)
    if kept:
        Journal(path).close()
        assert path.stat().st_size == whole
    else:
        with pytest.raises(InputError, match="line 2: damaged"):
            Journal(path)


@pytest.mark.parametrize(
    "line",
    [
        b"[1, 2]",
        b'{"event": "epoci", "key": "a"}',
        b'{"event": "epoch", "kex": "a"}',
        b"{\xff}",
        b"",
    ],
)
def test_a_damaged_line_elsewhere_names_file_and_line(path, line, monkeypatch):
    with Journal(path) as journal:
        for step in range(4):
            journal.append(from_fields(epoch(step)))
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = line + b"\n"
    path.write_bytes(b"".join(lines))
    message = re.escape(f"journal {path}, line 3: damaged")
    with pytest.raises(InputError, match=message):
        Journal(path)
    with pytest.raises(InputError, match=message):
        read_events(path, offset=len(lines[0]))
    assert path.read_bytes() == b"".join(lines)
    monkeypatch.chdir(path.parent)
    with pytest.raises(
        InputError, match=f"`calsweep run --resume {path.parent.name} --storage .*`$"
    ):
        read_events(path.name)


def everything(writer):
    """Write a journal with every event, and text that is not ASCII."""
    writer.start()
    study = writer.open("ce")
    chosen = writer.trial(study, 0, 0.25)
    writer.finish(writer.begin(study, 1), "failed", reason="größer als 1\n")
    writer.close(study, chosen, finished=1, failed=1)
    writer.evaluate(chosen, study, test_ece=0.125)
    writer.end()
    return writer.path


def changed(content, seed):
    """Yield copies in which one bit is flipped, or one byte is another one, all over the file."""
    noise = random.Random(seed)
    for place in range(0, len(content), 4):
        copy = bytearray(content)
        copy[place] ^= 1 << noise.randrange(8)
        yield bytes(copy)
        place = noise.randrange(len(content))
        copy = bytearray(content)
        copy[place] = (copy[place] + noise.randrange(1, 256)) % 256
        yield bytes(copy)


def test_no_damage_goes_unnoticed(writer):
    path = everything(writer)
    content, (events, _) = path.read_bytes(), read_events(path)
    starts = [0, len(content.splitlines(keepends=True)[0])]
    count = 0
    for copy in changed(content, 0):
        path.write_bytes(copy)
        for start in starts if copy[: starts[1]] == content[: starts[1]] else [0]:
            with pytest.raises(InputError, match=r"line \d+: damaged, it ") as refusal:
                read_events(path, start)
            assert "\n" not in str(refusal.value)
        with pytest.raises(InputError):
            Journal(path)
        assert path.read_bytes() == copy
        count += 1
    assert count > 500
    path.write_bytes(content)
    assert read_events(path)[0] == events


@pytest.mark.parametrize(
    "content",
    [
        b'{"event":"epoch","time":1,"key":"k","step":0,"metrics":' + 100_000 * b"[",
        b'{"event":"epoch","time":1,"key":"\xff","step":0,"metrics":{}',
        b'{"event":["epoch"],"time":1,"key":"k","step":0,"metrics":{}',
        b'{"event":"epoch","time":1,"key":"k","step":0',
    ],
)
def test_a_line_that_is_no_event_is_damage(path, content):
    path.parent.mkdir(parents=True)
    line = content + b',"crc":"%08x"}\n' % zlib.crc32(content)
    path.write_bytes(line)
    with pytest.raises(InputError) as refusal:
        read_events(path)
    assert str(refusal.value) == (
        f"journal {path}, line 1: damaged, not one whole event; results are stored, so cut the "
        "file before that line, or replace it with an intact copy, then run `calsweep run "
        f"--resume {path.parent.name} --storage {path.parents[2]}`"
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_journal_refuses_values_that_json_cannot_hold_and_writes_nothing(path, value):
    with Journal(path) as journal:
        with pytest.raises(ValueError, match="epoch"):
            journal.append(from_fields(epoch(0, val_ece=value)))
        journal.append(from_fields(END))
    assert len(read_events(path)[0]) == 1


NONE_OF = (
    "is not one of sweep_started, study_opened, trial_started, trial_placed, epoch, "
    "trial_finished, trial_scored, study_closed, evaluated, sweep_ended"
)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"event": "trial_startd"}, f"event='trial_startd' {NONE_OF}"),
        ({"event": ["epoch"]}, f"event=['epoch'] {NONE_OF}"),
        ({}, f"event=None {NONE_OF}"),
        ({"event": "epoch"}, "event 'epoch' lacks key, step, metrics"),
        ({"event": "epoch", "key": "k"}, "event 'epoch' lacks step, metrics"),
    ],
)
def test_an_unknown_or_incomplete_event_is_refused(path, event, message):
    with Journal(path) as journal, pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        journal.append(from_fields(event))


def test_threads_may_share_a_journal(path, monkeypatch):
    real = os.write  # A disk takes a line in pieces, between which another thread may come.
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:8]))
    with Journal(path) as journal:

        def write(first):
            for step in range(first, first + 50):
                journal.append(from_fields(epoch(step)), durable=False)

        threads = [threading.Thread(target=write, args=(50 * i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(event.step for event in read_events(path)[0]) == list(range(200))


def full_after(room):
    """Return what writes so many bytes and then finds no space."""
    real, left = os.write, [room]

    def write(handle, data):
        count = real(handle, bytes(data)[: left[0]])
        left[0] -= count
        return count or no_space()

    return write


def no_space(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(("call", "instead"), [("write", full_after(10)), ("fsync", no_space)])
def test_a_full_disk_names_the_file_and_leaves_whole_lines_only(path, monkeypatch, call, instead):
    for step in range(2):
        with Journal(path) as journal:
            journal.append(from_fields(epoch(step)))
    with Journal(path) as journal:
        monkeypatch.setattr(os, call, instead)
        with pytest.raises(InputError, match=re.escape(f"{path} cannot be written: No space")):
            journal.append(from_fields(END))
        monkeypatch.undo()
        assert [event.step for event in read_events(path)[0]] == [0, 1]
        journal.append(from_fields(epoch(2)))
        journal.append(from_fields(epoch(3)))
        monkeypatch.setattr(os, call, instead)
        with pytest.raises(InputError):
            journal.append(from_fields(END))
        monkeypatch.undo()
    assert [event.step for event in read_events(path)[0]] == [0, 1, 2, 3]


def test_a_closed_or_impossible_journal_is_a_clear_error(path, tmp_path):
    journal = Journal(path)
    journal.close()
    journal.close()
    (tmp_path / "file").write_text("")
    within, none = tmp_path / "file" / "journal.jsonl", tmp_path / "none.jsonl"
    said = {
        f"journal {path} cannot be written: Bad file descriptor": lambda: journal.append(
            from_fields(END)
        ),
        f"journal {within} cannot be written: File exists": lambda: Journal(within),
        f"journal {none} cannot be read: No such file or directory": lambda: read_events(none),
    }
    for text, action in said.items():
        with pytest.raises(InputError) as refusal:
            action()
        assert str(refusal.value) == text
