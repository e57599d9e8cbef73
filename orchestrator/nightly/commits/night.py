"""Run nights of single commits, each with the code of that commit."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from orchestrator.nightly.book import Book
from orchestrator.nightly.commits.repository import Repository
from orchestrator.nightly.config import Nightly
from orchestrator.nightly.record import ALARM, FINE, NightRecord
from orchestrator.running.control import say
from orchestrator.storage.storage import Storage
from orchestrator.sweep.plugins import PluginModel
from trainables.common.errors import InputError
from trainables.common.files import make_folders
from trainables.common.yaml_text import write_mapping

NIGHT = "2000-01-01"  # Any date will do: each commit has its own storage.
GRACE_SECONDS = 10.0  # Time that a night has to end after SIGTERM.


class CommitNights(AbstractContextManager["CommitNights"]):
    """Runs a benchmark at several commits, each with its own code (``python -m calsweep``).

    Args:
        nightly: The benchmark; all commits use its current file.
        name: Name of the temporary folder, next to the nights, for checkouts and storages.
    """

    def __init__(
        self, nightly: Nightly, repository: Repository, name: str, console: Console | None
    ) -> None:
        self._nightly = nightly
        self._repository = repository
        self._folder = nightly.folder / name
        self._console = console
        self._count = 0

    def run(self, commit: str | None) -> NightRecord:
        """Run a night of a commit, or of the working tree if ``commit`` is None."""
        self._count += 1
        place = self._folder / f"{self._count}-{commit[:10] if commit else 'here'}"
        shutil.rmtree(place, ignore_errors=True)
        make_folders(place)
        path = place / "nightly.yaml"
        code = place / "code" if commit else self._repository.top
        path.write_text(write_mapping(self._document(place, code)))
        named = self._repository.described(commit) if commit else "the working tree"
        say(self._console, f"night {self._count}: {named}")
        checked_out = self._repository.checked_out(commit, code) if commit else nullcontext()
        with checked_out:
            self._execute(code, path)
        record = Book(Storage(place / "storage").nightly(self._nightly.name)).night(NIGHT).record
        if record is None:
            raise InputError(f"{named}: the benchmark ended without a record")
        return record

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _execute(self, code: Path, path: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(code)}
        python = sys.executable
        if setup := self._nightly.model.gate.setup:
            _call(setup, code, environment, (0,))
            own = code / ".venv/bin/python"
            python = str(own) if own.exists() else python
        night = ("nightly", "run", str(path), "--night", NIGHT, "--quiet")
        # Run in the current folder, because data paths may be relative; -P keeps it off sys.path.
        _call((python, "-P", "-m", "calsweep", *night), Path.cwd(), environment, (FINE, ALARM))

    def _document(self, place: Path, code: Path) -> dict[str, Any]:
        sweep, model = self._nightly.sweep, self._nightly.model
        own = sweep.model_dump(mode="json", exclude_unset=True)
        changed = {
            "plugins": [self._plugin(plugin, code) for plugin in sweep.plugins],
            "recipes": [recipe.name for recipe in sweep.expanded],
            "seeds": list(sweep.seeds),
            "storage": str(place / "storage"),
            "data_root": str(Path(sweep.data_root).expanduser().absolute()),
            "tracking": {},
        }
        return {"sweep": {**own, **changed}, "metrics": list(model.metrics)}

    def _plugin(self, plugin: PluginModel, code: Path) -> str | dict[str, str]:
        """Return a plugin's entry; for a plugin in the repository, its path in ``code``."""
        place, top = Path(plugin.path).resolve(), self._repository.top.resolve()
        if not place.is_relative_to(top):
            return plugin.model_dump()
        return str(code / place.relative_to(top))


def _call(
    command: Sequence[str], folder: Path, environment: dict[str, str], accepted: Sequence[int]
) -> None:
    """Run a command; raise ``InputError`` if it cannot run or its exit code is not accepted."""
    shown = " ".join(command[:5])
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise InputError(f"{shown!r} cannot be run: {error.strerror or error}") from error
    with process:
        try:
            out, err = process.communicate()
        except BaseException:  # On SIGTERM, the command also ends the processes it has started.
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=GRACE_SECONDS)
            process.kill()
            raise
    if process.returncode not in accepted:
        lines = (err.strip() or out.strip()).splitlines() or ["no output"]
        raise InputError(f"{shown!r} ended with exit code {process.returncode}: {lines[-1]}")
