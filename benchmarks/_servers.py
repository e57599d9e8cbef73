"""PostgreSQL and MLflow on the loopback, for as long as a measurement takes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

USER = "calsweep"


def postgres_here() -> bool:
    """Say whether PostgreSQL and its driver are installed."""
    programs = all(shutil.which(name) for name in ("initdb", "postgres"))
    return programs and find_spec("psycopg2") is not None


def free_port() -> int:
    """Return a port of the loopback that nothing listens on."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def postgres_server(folder: Path, password: str = "") -> Iterator[str]:
    """Run PostgreSQL, as another user where this one is root; yield its owner's address.

    Args:
        folder: Holds its data and its log.
        password: Everyone must know theirs; the owner's. Without it nobody is asked.
    """
    user = "nobody" if os.geteuid() == 0 else None
    data, secret = folder / "postgres", folder / "postgres-password"
    data.mkdir()
    if user:
        shutil.chown(data, user)
        for place in (folder, *folder.parents[:-1]):
            place.chmod(place.stat().st_mode | 0o011)
    port = free_port()
    made = ["initdb", "-D", str(data), "-U", USER, "-E", "UTF8", "--no-sync"]
    made += ["-A", "scram-sha-256", "--pwfile", str(secret)] if password else ["-A", "trust"]
    secret.touch(mode=0o600)
    if user:
        shutil.chown(secret, user)
    secret.write_text(password, encoding="utf-8")
    subprocess.run(made, check=True, capture_output=True, user=user, cwd="/")
    secret.unlink()
    settings = ["-h", "127.0.0.1", "-p", str(port), "-k", str(data)]
    with open(folder / "postgres.log", "ab") as log:
        server = subprocess.Popen(
            ["postgres", "-D", str(data), *settings], user=user, cwd="/", stdout=log, stderr=log
        )
    owner = f"{USER}:{password}" if password else USER
    uri = f"postgresql+psycopg2://{owner}@127.0.0.1:{port}/postgres"
    try:
        wait_until_it_answers(uri)
        yield uri
    finally:
        server.send_signal(signal.SIGINT)  # SIGTERM would wait for clients that keep connections.
        server.wait()


def wait_until_it_answers(uri: str) -> None:
    """Wait until a tracking store answers."""
    from orchestrator.tracking import ping

    end = time.monotonic() + 300
    while not ping(uri, timeout=5.0)[0]:
        if time.monotonic() > end:
            raise RuntimeError(f"{uri} does not answer")
        time.sleep(0.5)


@contextmanager
def mlflow_server(
    folder: Path, *options: str, mlflow: str = "", **environment: str
) -> Iterator[tuple[str, int]]:
    """Run an MLflow server; yield its address and the number of its first process.

    Args:
        folder: Where it runs, and writes ``server.log``.
        options: Of ``mlflow server``, beside host and port.
        mlflow: The program, where it is that of another installation.
        environment: More variables for it.
    """
    port, log = free_port(), folder / "server.log"
    command = [mlflow] if mlflow else [sys.executable, "-m", "mlflow"]
    with open(log, "ab") as stream:
        server = subprocess.Popen(
            [*command, "server", "--host", "127.0.0.1", "--port", str(port), *options],
            cwd=folder,
            stdout=stream,
            stderr=stream,
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **environment},
            start_new_session=True,
        )
    uri, end = f"http://127.0.0.1:{port}", time.monotonic() + 300
    try:
        while not _is_healthy(uri):
            if time.monotonic() > end:
                raise RuntimeError(log.read_text(encoding="utf-8"))
            time.sleep(0.2)
        yield uri, server.pid
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def _is_healthy(uri: str) -> bool:
    try:
        urlopen(f"{uri}/health", timeout=2).close()
    except OSError:
        return False
    return True
