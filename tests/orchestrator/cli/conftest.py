"""The command line as a user meets it, in an empty folder."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from orchestrator.cli import main


class Answer(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def empty_folder(tmp_path_factory, monkeypatch):
    """Run every command in a folder of its own, away from the user's tracking server."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    # A short path: of a message with a long one the middle is left out.
    folder = tmp_path_factory.mktemp("cwd")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def calsweep(capsys):
    """Return a function that runs a command and gives exit code, output and errors."""

    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        return Answer(code, *capsys.readouterr())

    return call
