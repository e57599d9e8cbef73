"""Debian's own cron runs the installed entry and leaves a verdict."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import yaml
from told_sweep import short_sweep

from orchestrator.cli import main
from orchestrator.nightly import Book, Nightly, load_nightly

# Minutes of the real clock: cron looks at its tables once a minute.
pytestmark = pytest.mark.long

PATIENCE = 500.0


def crontab(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["crontab", *arguments], input=text, capture_output=True, text=True)


@pytest.fixture
def cron():
    """Run cron for the length of a test, and leave the crontab as it was."""
    if not (shutil.which("cron") and shutil.which("crontab")):
        pytest.skip("there is no cron here")
    before = crontab("-l")
    server = None
    if not _runs():
        if os.geteuid() != 0:
            pytest.skip("starting cron takes root")
        server = subprocess.Popen(["cron", "-f"])
        time.sleep(1)
        assert server.poll() is None, "cron does not start"
    yield
    if before.returncode == 0:
        crontab("-", text=before.stdout)
    else:
        crontab("-r")
    if server is not None:
        server.send_signal(signal.SIGTERM)
        server.wait(10)


def _runs() -> bool:
    try:
        pid = int(Path("/var/run/crond.pid").read_text())
        return Path(f"/proc/{pid}/comm").read_text().strip() == "cron"
    except (OSError, ValueError):
        return False


def test_cron_runs_the_installed_entry(cron, tmp_path, monkeypatch):
    folder = tmp_path / "100% of it's"
    folder.mkdir()
    file = folder / "nightly.yaml"
    sweep = short_sweep("by-cron", folder / "storage", ("ce",), 1)
    sweep["tracking"] = {"uri": f"folder:{folder}/tracking"}
    file.write_text(yaml.safe_dump({"sweep": sweep}))
    start = _install(file, monkeypatch)
    benchmark = load_nightly(file)
    _wait_for_a_verdict(benchmark)
    ((record, verdict),) = Book(benchmark.folder).judged()
    assert record.night == f"{start:%Y-%m-%d}"
    assert verdict.status == "ok"


def _install(file: Path, patch: pytest.MonkeyPatch) -> datetime:
    """Install the entry for a minute that is still to come when it stands; return that minute."""
    patch.chdir(file.parent)
    patch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[4]))
    for minutes in (1, 2, 4, 8):
        start = datetime.now().replace(second=0, microsecond=0) + timedelta(minutes=minutes)
        command = ["nightly", "install", str(file), "--with", "cron", "--at", f"{start:%H:%M}"]
        assert main(command) == 0
        # cron reads its tables at the start of a minute: what is written just before may be late.
        if datetime.now() < start - timedelta(seconds=5):
            return start
    raise AssertionError("an entry cannot be installed within minutes on this machine")


def _wait_for_a_verdict(benchmark: Nightly) -> None:
    deadline = time.monotonic() + PATIENCE
    log = benchmark.folder / "schedule.log"
    while not (Book(benchmark.folder).judged() and not (benchmark.folder / "owner").exists()):
        if time.monotonic() > deadline:
            said = log.read_text() if log.exists() else "nothing"
            raise AssertionError(f"no verdict after {PATIENCE} s; the log says: {said}")
        time.sleep(1)
