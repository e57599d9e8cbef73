"""Trackers of every kind, for tests of what must hold for each."""

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_power_is_cut(monkeypatch):
    """Spare waiting for the disk; what must be on it when is tested where files are written."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def either_store(request, tmp_path):
    """Return the address of a folder, or of the kind of tracker that a parameter names.

    Questions are put to any tracker in the same words; that all understand them alike is held by
    their contract.
    """
    if getattr(request, "param", "folder") == "database":
        return request.getfixturevalue("database")
    return f"folder:{tmp_path}/tracked"


@pytest.fixture(scope="session")
def postgresql():
    """Return the address of a PostgreSQL of our own, where there is one to start."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = shutil.which("initdb") or (str(installed[-1]) if installed else "")
    if not found:
        pytest.skip("there is no PostgreSQL here")
    # It refuses to be root's, and its user cannot look into root's folders of tests.
    user = "postgres" if os.getuid() == 0 else None
    programs, folder = Path(found).resolve().parent, Path(tempfile.mkdtemp(prefix="postgresql"))
    if user is not None:
        shutil.chown(folder, user)

    def run(program, *words):
        command = [programs / program, "-D", folder / "data", *words]
        done = subprocess.run(
            command, user=user, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        assert done.returncode == 0, done.stderr.decode()

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run("initdb", "--username=calsweep", "--auth=trust", "--no-sync")
    settings = f"-c listen_addresses=127.0.0.1 -p {port} -c unix_socket_directories='' -c fsync=off"
    run("pg_ctl", "--wait", "--timeout=300", "-l", folder / "log", "-o", settings, "start")
    try:
        yield f"postgresql+psycopg2://calsweep@127.0.0.1:{port}/postgres"
    finally:
        run("pg_ctl", "--wait", "-m", "immediate", "stop")
        shutil.rmtree(folder)
