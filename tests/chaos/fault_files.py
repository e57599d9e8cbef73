"""A disk that is full, files that are damaged, a storage that is moved."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from lab import WRONG_INPUT, Lab, Row, brief, fault, killed, one_line, prefix
from sweeps import Sweep, statuses, tracked

LONGER = {"epochs": 150}
"""Trainings that are long enough to leave checkpoints."""


@fault
def full_disk(lab: Lab) -> Iterator[Row]:
    """Run on a file system that is too small by a random part."""
    for _ in range(3):
        yield full(lab, lab.calm(), lab.random.uniform(0.25, 0.9))


def full(lab: Lab, calm: Sweep, part: float) -> Row:
    """Give a sweep a part of the room that it needs, then more."""
    used = sum(path.stat().st_size for path in calm.storage.rglob("*") if path.is_file())
    size, disk = int(part * used), lab.place()
    row = Row("disk full", f"storage on a file system of {size / 2**20:.2f} MiB")
    with mounted(disk, size):
        sweep = lab.sweep(disk / "storage")
        done = sweep.start().wait()
        named = str(disk) in done.errors and "No space left" in done.errors
        row.happened.append(brief(done))
        row.expect(exit_code_2=done.code == WRONG_INPUT, one_line=one_line(done), file_named=named)
        subprocess.run(["mount", "-o", f"remount,size={4 * used}", str(disk)], check=True)
        finished = sweep.finished()
        again = sweep.resume().wait() if sweep.directory.exists() else sweep.start().wait()
        row.happened.append(
            f"with more room: exit code {again.code} after {again.seconds:.0f} s, "
            f"{len(finished)} trials taken over"
        )
        row.expect(resumed=again.code == 0, none_computed_twice=prefix(finished, sweep.finished()))
        if again.code == 0:
            row.wrong += sweep.faults(calm)
            row.expect(all_runs_finished=set(statuses(sweep.database)) == {"FINISHED"})
    return row


@contextlib.contextmanager
def mounted(place: Path, size: int) -> Iterator[None]:
    """Mount a small file system; needs to be root."""
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)],
        check=True,
        capture_output=True,
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@fault
def damage(lab: Lab) -> Iterator[Row]:
    """Kill a driver, damage what it left, and resume."""
    for what, how in (
        ("weights", flip),
        ("manifest.json", flip),
        ("checkpoint", flip),
        ("checkpoint", cut),
    ):
        yield _damaged(lab, what, how)
    yield _torn_journal(lab)
    yield _bad_line(lab)


def flip(content: bytearray, chance: random.Random) -> bytearray:
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return content


def cut(content: bytearray, chance: random.Random) -> bytearray:
    return content[: chance.randrange(len(content))]


def _damaged(lab: Lab, what: str, how: Callable[[bytearray, random.Random], bytearray]) -> Row:
    pattern = {"checkpoint": "checkpoints/**/*.pt", "weights": "train/**/weights.safetensors"}
    # Trainings come first, and only they leave checkpoints.
    files = pattern.get(what, f"**/{what}")
    sweep = killed(lab, lambda it: _files(it, files), most=0.2, **LONGER)
    victim = lab.random.choice(_files(sweep, files))
    done = "a bit flipped" if how is flip else "cut off at a random place"
    row = Row("damage", f"driver killed, {what} of `{victim.parent.parent.parent.name}` {done}")
    victim.write_bytes(how(bytearray(victim.read_bytes()), lab.random))
    again = sweep.resume().wait()
    notices = [line for line in again.errors.splitlines() if "damaged" in line]
    row.happened.append(f"resumed: exit code {again.code}, {len(notices)} notice(s) of it")
    row.expect(resumed=again.code == 0)
    if again.code == 0:
        wrong = sweep.faults(lab.calm(**LONGER))
        row.wrong += [text for text in wrong if "ended twice" not in text]
    return row


def _files(sweep: Sweep, pattern: str) -> list[Path]:
    return sorted((sweep.storage / "artifacts").glob(pattern))


def _torn_journal(lab: Lab) -> Row:
    sweep = killed(lab, lambda it: len(it.finished()) > 1)
    lines = sweep.journal.read_bytes().splitlines(keepends=True)
    lines[-1] = lines[-1][: lab.random.randrange(1, len(lines[-1]))]
    sweep.journal.write_bytes(b"".join(lines))
    again = sweep.resume().wait()
    row = Row("damage", "driver killed, the journal's last line torn")
    row.happened.append(f"resumed: exit code {again.code}")
    row.expect(resumed=again.code == 0)
    row.wrong += sweep.faults(lab.calm()) if again.code == 0 else []
    return row


def _bad_line(lab: Lab) -> Row:
    sweep = killed(lab, lambda it: len(it.finished()) > 1)
    whole = sweep.journal.read_bytes()
    lines = whole.splitlines(keepends=True)
    number = lab.random.randrange(1, len(lines) - 1)
    lines[number] = bytes(cut(bytearray(lines[number][:-1]), lab.random)) + b"\n"
    sweep.journal.write_bytes(b"".join(lines))
    refused = sweep.resume().wait()
    row = Row("damage", f"driver killed, line {number + 1} of the journal cut")
    row.happened.append(brief(refused))
    row.expect(
        exit_code_2=refused.code == WRONG_INPUT,
        one_line=one_line(refused),
        line_named=f"line {number + 1}" in refused.errors,
        left_as_it_was=sweep.journal.read_bytes() == b"".join(lines),
    )
    sweep.journal.write_bytes(whole)
    again = sweep.resume().wait()
    row.happened.append(f"with the line as it was: exit code {again.code}")
    row.expect(resumed=again.code == 0)
    row.wrong += sweep.faults(lab.calm()) if again.code == 0 else []
    return row


@fault
def moved(lab: Lab) -> Iterator[Row]:
    """Move the storage of an interrupted sweep, and of a finished one, to another place."""
    row = Row("storage moved", "driver killed, the folder moved elsewhere")
    sweep = killed(lab, lambda it: len(it.finished()) > 1)
    finished = sweep.finished()
    old, sweep.storage = sweep.storage, lab.place() / "elsewhere"
    shutil.move(old, sweep.storage)
    again = sweep.resume().wait()
    row.happened.append(f"resumed there: exit code {again.code}, {len(finished)} trials taken over")
    row.expect(
        resumed=again.code == 0,
        none_computed_twice=prefix(finished, sweep.finished()),
        nothing_written_to_the_old_place=not old.exists(),
        all_runs_finished=set(statuses(sweep.database)) == {"FINISHED"},
        each_run_once=max(Counter(map(str, tracked(sweep.database))).values()) == 1,
    )
    row.wrong += sweep.faults(lab.calm())
    yield row
