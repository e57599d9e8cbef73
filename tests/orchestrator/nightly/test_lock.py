"""One run at a time, whatever became of the last owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from orchestrator.nightly.lock import BusyError, held_lock
from trainables.common.errors import InputError

HOLD = """
import sys
from pathlib import Path
from orchestrator.nightly.lock import held_lock
with held_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_nobody_owns_a_folder_after_the_block(tmp_path):
    folder = tmp_path / "deep"
    with held_lock(folder) as gone:
        assert (gone, (folder / "owner").exists()) == ("", True)
    for error in (KeyboardInterrupt, OSError):
        with pytest.raises(error), held_lock(folder):
            raise error
    assert [path.name for path in folder.iterdir()] == ["run.lock"]


def test_a_second_run_is_refused_and_told_who_holds_it(tmp_path):
    holder = f"process {os.getpid()} on {os.uname().nodename}"
    with held_lock(tmp_path):
        for named in (holder, "another process"):  # Which has not said yet who it is.
            with pytest.raises(BusyError) as refused, held_lock(tmp_path):
                pass
            expected = f"another run is going on: {named} holds {tmp_path / 'run.lock'}"
            assert str(refused.value) == expected
            (tmp_path / "owner").unlink(missing_ok=True)


def test_a_run_goes_on_alone_though_the_clock_is_set(tmp_path, monkeypatch):
    with held_lock(tmp_path):
        # What the system tells of a process's beginning moves with its clock.
        before = psutil.boot_time()
        monkeypatch.setattr("psutil._pslinux.boot_time", lambda: before + 60)
        with pytest.raises(BusyError), held_lock(tmp_path):
            pass


def test_what_a_killed_process_left_is_taken_over_at_once(tmp_path):
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        process.stdout.readline()
        with pytest.raises(BusyError, match=f"process {process.pid} "), held_lock(tmp_path):
            pass
        process.send_signal(signal.SIGKILL)
        # It stays a zombie, which holds nothing.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with held_lock(tmp_path) as gone:
            assert gone == f"process {process.pid} on {os.uname().nodename}"


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file"
    with pytest.raises(InputError) as refused, held_lock(folder):
        pass
    assert str(refused.value) == f"lock {folder / 'run.lock'} cannot be written: File exists"
