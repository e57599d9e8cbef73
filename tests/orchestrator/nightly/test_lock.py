"""One run at a time, whatever became of the last owner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
from filelock import FileLock, Timeout

from orchestrator.nightly import lock
from orchestrator.nightly.lock import BEAT_SECONDS, BusyError, held_lock
from trainables.common.errors import InputError

HOLD = """
import sys
from pathlib import Path
from orchestrator.nightly.lock import held_lock
with held_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def owner(path: Path, **changes: object) -> None:
    """Write a lock file as another owner would have left it."""
    with held_lock(path):
        mine = json.loads(path.read_text())
    path.write_text(json.dumps({**mine, **changes}))


def test_the_lock_is_gone_after_the_block(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    for _ in range(2):
        with held_lock(path) as gone:
            assert path.exists()
            assert gone == ""
    assert not path.exists()


def test_a_second_run_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with held_lock(path), pytest.raises(BusyError) as refused, held_lock(path):
        pass
    owner = f"process {os.getpid()} on {os.uname().nodename}"
    assert str(refused.value) == f"another run is going on: {owner} holds {path}"


def test_a_machine_that_does_not_tell_its_boots_has_locks_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "BOOT_ID", tmp_path / "boot_id")
    with held_lock(path := tmp_path / "lock"), pytest.raises(BusyError), held_lock(path):
        pass
    assert not path.exists()


def test_what_a_killed_process_left_is_taken_over_at_once(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(BusyError, match=f"process {process.pid} "), held_lock(path):
        pass
    process.send_signal(signal.SIGKILL)
    # It stays a zombie, which holds nothing.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with held_lock(path) as gone:
        assert gone.startswith(f"process {process.pid} on ")
    process.communicate()


def test_a_later_process_of_the_same_number_is_not_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    owner(path, pid=os.getpid(), began=1.0)
    with held_lock(path) as gone:
        assert gone


def test_a_process_that_is_no_more_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    ended = subprocess.Popen(["true"])
    ended.wait()
    for began in (time.time(), None):
        owner(path, pid=ended.pid, began=began)
        with held_lock(path) as gone:
            assert gone == f"process {ended.pid} on {os.uname().nodename}"


def test_an_owner_before_the_machine_was_started_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    owner(path, boot="another")
    with held_lock(path) as gone:
        assert gone


def test_an_owner_elsewhere_counts_as_alive_while_it_touches_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The clock of the file system counts, not that of this machine.
    clock = SimpleNamespace(time=lambda: 0.0, time_ns=lambda: 0, monotonic=time.monotonic)
    monkeypatch.setattr(lock, "time", clock)
    path = tmp_path / "lock"
    owner(path, host="another-machine")
    with pytest.raises(BusyError, match="on another-machine"), held_lock(path):
        pass
    assert 0 < BEAT_SECONDS <= 60
    for silent, refused in ((540, True), (601, False)):
        before = time.time() - silent
        os.utime(path, (before, before))
        with pytest.raises(BusyError) if refused else nullcontext(), held_lock(path) as gone:
            assert "another-machine" in gone
    assert {found.name for found in tmp_path.iterdir()} <= {"lock.moment"}


def test_only_one_at_a_time_looks_at_the_owner_and_becomes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    owner(path, boot="another")
    alone = []

    def watched(act: Callable[..., Any]) -> Callable[..., Any]:
        def acted(*arguments: Any) -> Any:
            try:
                FileLock(tmp_path / "lock.moment", timeout=0).acquire()
            except Timeout:
                alone.append(act.__name__)
            return act(*arguments)

        return acted

    both = {name: watched(getattr(json, name)) for name in ("loads", "dumps")}
    monkeypatch.setattr(lock, "json", SimpleNamespace(**both))
    with held_lock(path) as gone:
        assert gone
        # As long as it is held others may ask who holds it.
        assert alone == ["loads", "dumps"]
        FileLock(tmp_path / "lock.moment", timeout=0).acquire()


def test_what_another_one_has_taken_over_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with held_lock(path):
        taken = json.dumps({**json.loads(path.read_text()), "pid": 1})
        path.write_text(taken)
    assert path.read_text() == taken


@pytest.mark.parametrize("seconds", [30.0, 0.5])
def test_the_owner_touches_the_file_as_often_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    now, touched = 0.0, []

    class Over:
        def wait(self, pause: float) -> bool:
            nonlocal now
            now += pause
            return now > 100

    monkeypatch.setattr(lock, "time", SimpleNamespace(monotonic=lambda: now))
    utime = SimpleNamespace(utime=lambda path: touched.append((path, now)))
    monkeypatch.setattr(lock, "os", utime)
    lock._beat(tmp_path, cast(Event, Over()), seconds)
    assert touched == [(tmp_path, n * seconds) for n in range(1, int(100 / seconds) + 1)]


def test_a_file_system_that_is_away_for_a_while_ends_no_touching(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched = []

    def touch(path: Path) -> None:
        touched.append(path)
        if len(touched) == 1:
            raise OSError(116, "Stale file handle")

    class Over:
        def wait(self, pause: float) -> bool:
            return len(touched) == 3

    monkeypatch.setattr(lock, "os", SimpleNamespace(utime=touch))
    lock._beat(tmp_path, cast(Event, Over()), 0.0)
    assert len(touched) == 3


def test_the_owner_touches_the_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with held_lock(path, beat_seconds=0.05):
        os.utime(path, (1.0, 1.0))
        deadline = time.monotonic() + 300
        while path.stat().st_mtime == 1.0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert path.stat().st_mtime > 1.0


@pytest.mark.parametrize("text", [b'{"host": "so', b"[1]", b"", b'{"host": "\xc3'])
def test_half_a_file_is_nobodys(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "lock"
    path.write_bytes(text)
    with held_lock(path) as gone:
        assert gone == ""


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file/lock"
    with pytest.raises(InputError) as refused, held_lock(path):
        pass
    assert str(refused.value) == f"lock {path} cannot be written: File exists"
