"""Runs an MLflow server on the loopback during a measurement."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.request import urlopen


def free_port() -> int:
    """Return a free port of the loopback."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def mlflow_server(
    folder: Path, *options: str, mlflow: str = "", **environment: str
) -> Iterator[tuple[str, int]]:
    """Run an MLflow server; yield its address and the number of its first process.

    Args:
        folder: The server's current folder, with its ``server.log``.
        options: Options of ``mlflow server`` in addition to host and port.
        mlflow: The MLflow program of another installation.
        environment: Additional environment variables.
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
