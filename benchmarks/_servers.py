"""MLflow on the loopback, for as long as a measurement takes."""

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
    """Return a port of the loopback that nothing listens on."""
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
        folder: Where it runs, and writes ``server.log``.
        options: For ``mlflow server``, besides host and port.
        mlflow: The program of another installation.
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
