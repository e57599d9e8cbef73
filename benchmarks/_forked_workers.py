"""Ray's workers as forks of one process that has imported what they need.

Two hundred workers that each import Ray Tune take more memory than small machines have, and
minutes of CPU time. Forks share all earlier imports. To Ray they are workers like any other:
each is a process with its own connection, heap and interpreter. ``forked_workers`` has Ray call
this file where it would call Python: workers come to the one process that forks them, all else goes
to Python itself.
"""

from __future__ import annotations

import array
import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

WORKER, SET_UP = "default_worker.py", "setup_worker.py"
WAIT = 60.0
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


@contextmanager
def forked_workers(folder: Path) -> Iterator[None]:
    """Have a Ray that is started within the context fork its workers.

    Args:
        folder: Holds the socket and the program that Ray calls; its path must be short.
    """
    from unittest import mock

    program = folder / "python"
    program.write_text(
        f'#!/bin/sh\nexec {sys.executable} -S -E {__file__} "{sys.executable}" "{folder}" "$@"\n',
        encoding="utf-8",
    )
    program.chmod(0o700)
    with mock.patch.object(sys, "executable", str(program)):
        yield


def call(python: str, folder: Path, arguments: list[str]) -> None:
    """Do what Ray asks Python for: have a worker forked, or become Python."""
    if not any(word.endswith(WORKER) for word in arguments):
        os.execv(python, [python, *arguments])
    words = [word for word in arguments if not word.endswith(SET_UP)]
    order = {"argv": words, "environment": dict(os.environ), "cwd": os.getcwd()}
    with closing(_connection(python, folder)) as connection:
        streams = array.array("i", [1, 2])
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)]
        connection.sendmsg([json.dumps(order).encode()], rights)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)


def _connection(python: str, folder: Path) -> socket.socket:
    """Return a connection to the process that forks; the first to come starts it."""
    try:
        os.mkdir(folder / "started")
    except FileExistsError:
        pass
    else:
        with open(folder / "forks.log", "ab") as log:
            command = [python, __file__, "serve", str(folder)]
            subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    end = time.monotonic() + WAIT
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(folder / "forks"))
            return connection
        except OSError:
            connection.close()
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def serve(folder: Path) -> None:
    """Fork a worker per request; end with the raylet that owns the workers."""
    _import_what_workers_need()
    raylet = int(os.environ["RAY_RAYLET_PID"])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for the forks.
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "forks"))
        server.listen(1024)
        server.settimeout(1.0)
        while Path(f"/proc/{raylet}").exists():
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            connection.settimeout(None)
            with connection:
                order, streams = _received(connection)
                if os.fork() == 0:
                    connection.close()
                    server.close()
                    _work(order, streams)
                for stream in streams:
                    os.close(stream)


def _import_what_workers_need() -> None:
    from unittest import mock

    import ray.actor

    # Ray's own random numbers must not have begun here: every fork would draw the same ones.
    kind = ray.actor.ActorClassID
    fresh = SimpleNamespace(from_random=lambda: kind(os.urandom(kind.size())))
    with mock.patch.object(ray.actor, "ActorClassID", fresh):
        import ray._private.workers.setup_worker
        import ray.tune


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    data, streams, _, _ = socket.recv_fds(connection, 1 << 20, 2)
    while piece := connection.recv(1 << 20):
        data += piece
    return json.loads(data), list(streams)


def _work(order: dict[str, Any], streams: list[int]) -> None:
    """Become a worker."""
    os.setpgid(0, 0)  # Ray ends a worker's whole group with it.
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.dup(2)
    for number, stream in zip((1, 2), streams, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["cwd"])
    try:
        sys.argv = _set_up(order["argv"])
        runpy.run_path(sys.argv[0], run_name="__main__")
    except Exception:  # noqa: BLE001 - Ray looks at nothing that a worker says so early
        os.write(log, traceback.format_exc().encode())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _set_up(arguments: list[str]) -> list[str]:
    """Do what Ray's set-up program does before a worker's own; return that one's arguments."""
    from ray._private.runtime_env.context import RuntimeEnvContext
    from ray._private.utils import update_envs
    from ray._private.workers.setup_worker import parser

    known, rest = parser.parse_known_args(arguments)
    update_envs(
        RuntimeEnvContext.deserialize(known.serialized_runtime_env_context or "{}").env_vars
    )
    return list(rest)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(Path(sys.argv[2]))
    else:
        call(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
