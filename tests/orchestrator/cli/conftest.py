"""The command line as a user meets it, in an empty folder."""

from typing import NamedTuple

import pytest

from orchestrator.cli import main
from orchestrator.storage.storage import Storage


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


@pytest.fixture
def finished(empty_folder, journal_writer):
    """Return the writer of a finished sweep `old` in `store`: a study of two trials, measured."""
    writer = journal_writer(empty_folder / "store/sweeps/old", "old")
    writer.start()
    study = writer.open("mbls")
    keys = [writer.trial(study, number, 0.2 - number / 10) for number in range(2)]
    writer.close(study, keys[1])
    writer.evaluate(keys[1], study, acc=0.9, ece=0.1)
    writer.end()
    Storage("store").sweep("old").spec_file.touch()
    return writer
