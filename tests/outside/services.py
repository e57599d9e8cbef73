"""Servers that histories need: MLflow's and SLURM's, each started when it is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

from tests.orchestrator.cluster.slurm_daemons import NEEDED, daemons_of_slurm, found, free_port
from tests.outside.draw import Row

START_SECONDS = 120


class Services:
    """The servers, on the loopback; ``without`` names values of rows that this machine lacks."""

    def __init__(self) -> None:
        self._open, self._lock = ExitStack(), threading.Lock()
        self._folder = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
        self.without = {"slurm"} if any(found(program) is None for program in NEEDED) else set()

    def variables(self, row: Row) -> dict[str, str]:
        """Return environment variables of a row's commands, after starting its servers."""
        with self._lock:
            found = {"TRACKER": self._tracker} if row["tracker"] == "server" else {}
            return found | (self._slurm if row["submit"] == "slurm" else {})

    def close(self) -> None:
        """End the servers."""
        self._open.close()

    @cached_property
    def _slurm(self) -> dict[str, str]:
        (folder := self._folder / "slurm").mkdir()
        return self._open.enter_context(daemons_of_slurm(folder))

    @cached_property
    def _tracker(self) -> str:
        """Return the address of a server of MLflow."""
        port = free_port()
        database = f"sqlite:///{self._folder}/tracked.db"
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--workers", "1", "--backend-store-uri", database]
        log = self._open.enter_context((self._folder / "server.log").open("w"))
        environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
        server = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=self._folder, env=environment
        )
        self._open.callback(server.wait)
        self._open.callback(server.terminate)
        address, end = f"http://127.0.0.1:{port}", time.monotonic() + START_SECONDS
        while True:
            try:
                urllib.request.urlopen(f"{address}/health", timeout=1).close()
            except OSError:
                assert time.monotonic() < end, "the server of MLflow does not answer"
                time.sleep(0.5)
            else:
                return address
