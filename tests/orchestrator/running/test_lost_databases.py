"""A tracking database that is damaged or named elsewhere: the journals have all that it had."""

import os
import shlex
from pathlib import Path

import numpy as np
import pytest

from orchestrator.cli import main
from orchestrator.cli._options import tracked_results
from orchestrator.running.run import run_sweep
from orchestrator.storage.storage import SweepFolder
from orchestrator.sweep.spec import SweepSpec, parse_sweep
from orchestrator.tracking import study_results
from tests.orchestrator.databases import databases_made
from tests.orchestrator.one_process import one_process

SWEEP = """
name: lost
tasks: [{name: t, logits: mine.npz, split: {test: 0.5}}]
recipes: [given]
search: {trials: 1}
executor: local
resources: {concurrent: 1}
storage: kept
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepSpec:
    """Run a sweep in the current folder."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    scores = np.random.default_rng(0).normal(size=(60, 4))
    np.savez("mine.npz", logits=scores, labels=np.arange(60) % 4)
    with one_process():
        return run_sweep(parse_sweep(SWEEP, "s")).spec


def test_sync_sets_a_damaged_database_aside_and_delivers_everything_again(
    spec: SweepSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (before,) = study_results(spec.tracking_uri, "lost")
    assert tracked_results(["lost"], None, "kept") == [[before]]
    # MLflow keeps its connection to a file, as long as the process lives.
    database = Path("kept").rename("moved").absolute() / "mlflow.db"
    os.truncate(database, 40_000)
    assert main(["best", "lost", "--storage", "moved"]) == 2
    told = capsys.readouterr().err
    assert (
        "mlflow.db is damaged (database disk image is malformed); `calsweep storage sync " in told
    )
    _, remedy, effect = told.split("`")
    assert effect == " renames it and builds it again\n"
    assert tracked_results(["lost"], None, "moved") == [[before]]
    with databases_made():
        assert main(shlex.split(remedy)[1:]) == 0  # As it is printed.
    aside, done = capsys.readouterr().out.splitlines()
    assert f"{database} is damaged (database disk image is malformed): renamed to mlflow" in aside
    assert done.startswith("everything in ")
    (again,) = study_results(f"sqlite:///{database}", "lost")
    assert (again.test, again.configuration) == (before.test, before.configuration)
    # The journal is here, so a tracker elsewhere is asked only for other sweeps.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/elsewhere.db")
    assert main(["table", "lost", "--storage", "moved"]) == 0
    for command in (["table", "other"], ["best", "lost"]):
        assert main([*command, "--storage", "moved"]) == 2
        assert (
            f"no tracking database at {tmp_path}/elsewhere.db (set by MLFLOW_TRACKING_URI; "
            "unset this variable to use --storage)" in capsys.readouterr().err
        )


def test_a_damaged_database_of_another_program_is_not_replaced(spec, tmp_path, capsys):
    other = tmp_path / "other.db"
    other.write_text("the database of another program, which is none of SQLite's")
    code = main(
        ["storage", "sync", str(SweepFolder.of(spec).path), "--tracking-uri", f"sqlite:///{other}"]
    )
    assert (code, other.read_text()[:12]) == (2, "the database")
    assert f"{other} is damaged (file is not a database); rename it" in capsys.readouterr().err
