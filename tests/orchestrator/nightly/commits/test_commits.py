import html
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from made_repository import USUAL, MadeRepository

from orchestrator.cli import main
from orchestrator.nightly import CellKey, Nightly, NightRecord, Shape
from orchestrator.nightly.commits.night import CommitNights
from orchestrator.nightly.commits.repository import Repository

ROOT = Path(__file__).resolve().parents[4]
SPEED = "images_per_second"
WORSE = {**USUAL, "ce": {"ece": 0.03}}
PLUGIN = """\
from calsweep import LOSSES, RowLoss, number


@LOSSES.register("own")
class Own(RowLoss):
    q: float = number(default=0.5, low=0.0, high=1.0)

    def per_row(self, logits, targets):
        return logits.sum(1)


# """
SETUP = """\
import pathlib, sys
version = pathlib.Path("constraints.txt").read_text().strip()
python = pathlib.Path(".venv/bin/python")
python.parent.mkdir(parents=True, exist_ok=True)
python.write_text(f'#!/bin/sh\\nLIBRARY={version} exec {sys.executable} "$@"\\n')
python.chmod(0o755)
"""


@pytest.fixture
def source(tmp_path):
    return MadeRepository(tmp_path / "code")


def night(number: int, code: str, figures: dict[str, Any], **environment: str) -> NightRecord:
    """Return what a night of a commit's figures measures."""
    cells = {
        CellKey(recipe, "d", metric): {seed: value * (1 + 0.01 * seed) for seed in (0, 1)}
        for recipe, own in figures.items()
        if own
        for metric, value in own.items()
    }
    failed = {(recipe, "d"): "it diverged" for recipe, own in figures.items() if not own}
    shape = Shape(tuple(figures), ("d",), ("ece",), (0, 1))
    place, environment = f"2026-01-{number:02}", {"code": code, **environment}
    return NightRecord(place, float(number), cells, failed, shape, environment)


def gate(benchmark: Nightly, source: MadeRepository, revision: str, out: Path) -> int:
    own = ("--repository", str(source.folder), "--out", str(out), "--quiet")
    return main(["nightly", "gate", revision, str(benchmark.path), *own])


@pytest.mark.parametrize(
    ("figures", "code", "head"),
    [
        (USUAL, 0, "as before"),
        ({**USUAL, "ce": {"ece": 0.0205}}, 0, "as before"),
        (WORSE, 3, "something got worse: ce on d: ece 0.0201 -> 0.0301 (+1.00 points"),
        ({**USUAL, "ce": None}, 3, "results are missing: ce on d failed: it diverged"),
    ],
    ids=["same", "little", "worse", "failed"],
)
def test_the_gate_compares_a_change_with_its_base(
    figures, code, head, make_benchmark, source, tmp_path, capsys
):
    source.commit()
    source.commit(figures)
    out = tmp_path / "comment.md"
    assert gate(make_benchmark(), source, "HEAD~1", out) == code
    base = source.git("log", "-1", "--format=%h %s", "HEAD~1")
    title = f"nightly told, against {base}: {head}"
    assert capsys.readouterr().out.startswith(title)
    assert html.unescape(out.read_text()).startswith(f"# {title}")


def test_a_plugin_of_the_repository_is_that_of_each_commit(
    make_benchmark, source, tmp_path, capsys
):
    own = source.folder / "own.py"
    for worse in ("1.0", "1.5"):
        own.write_text(PLUGIN + worse)
        source.commit()
    benchmark = make_benchmark(sweep={"plugins": [str(own)]})
    assert gate(benchmark, source, "HEAD~1", tmp_path / "o.md") == 3
    assert "something got worse: ce on d: ece 0.0201 -> 0.0301" in capsys.readouterr().out


@pytest.mark.full
def test_the_setup_command_installs_the_libraries_of_each_revision(
    make_benchmark, tmp_path, capsys
):
    source = MadeRepository(tmp_path / "code")
    for constraints in ("1", "1.5"):
        source.commit(constraints=constraints, setup=SETUP)
    own = {"repository": str(source.folder), "setup": [sys.executable, "setup.txt"]}
    benchmark = make_benchmark(gate=own)
    assert main(["nightly", "gate", "HEAD~1", str(benchmark.path), "--quiet"]) == 3
    assert "something got worse: " in capsys.readouterr().out


def test_paths_of_data_begin_where_the_command_runs(make_benchmark, source, tmp_path, monkeypatch):
    (tmp_path / "calsweep").mkdir()
    (tmp_path / "calsweep/__main__.py").write_text("raise SystemExit('not the code of a commit')")
    monkeypatch.chdir(tmp_path)
    with CommitNights(make_benchmark(), Repository(source.folder), "gate", None) as nights:
        assert nights.run(source.hashes[0]).environment["place"] == str(tmp_path)


def test_a_machine_that_grew_busy_is_not_the_change(make_benchmark, source, tmp_path, monkeypatch):
    seconds = {"base": [1.0, 4.0], "change": [4.0, 4.0]}

    def timed(nights: CommitNights, commit: str | None) -> NightRecord:
        left = seconds["base" if commit else "change"]
        figures = {"ce": {"ece": 0.02, "wall_seconds": left.pop(0)}}
        return night(1, commit or "", figures)

    monkeypatch.setattr(CommitNights, "run", timed)
    assert gate(make_benchmark(), source, "HEAD", tmp_path / "o.md") == 0
    seconds |= {"base": [1.0, 1.0], "change": [4.0, 4.0]}
    assert gate(make_benchmark(), source, "HEAD", tmp_path / "o.md") == 3


@pytest.mark.full
def test_a_gate_that_gets_a_signal_leaves_no_processes_or_files(make_benchmark, source, tmp_path):
    benchmark, started = make_benchmark(sweep={"tracking": {}}), tmp_path / "pid"
    text = f"import os, pathlib, time\npathlib.Path({str(started)!r}).write_text(str(os.getpid()))"
    (source.folder / "calsweep/__main__.py").write_text(f"{text}\ntime.sleep(600)\n")
    source.commit()
    command = (sys.executable, "-m", "calsweep", "nightly", "gate", "HEAD", str(benchmark.path))
    gate = subprocess.Popen([*command, "--repository", str(source.folder)])
    end = time.monotonic() + 120
    while not (started.exists() and started.read_text()):
        assert time.monotonic() < end
        assert gate.poll() is None
        time.sleep(0.1)
    gate.terminate()
    assert gate.wait(60) == 130
    assert not psutil.pid_exists(int(started.read_text()))
    assert source.git("worktree", "list").count("\n") == 0
    assert not (benchmark.folder / "gate").exists()
    assert not (benchmark.folder / "lock").exists()


def test_a_recipe_that_fails_on_the_base_too_does_not_fail_the_gate(
    make_benchmark, source, tmp_path
):
    lacking = {**USUAL, "ce": None}
    source.commit(lacking)
    source.commit(lacking)
    assert gate(make_benchmark(), source, "HEAD~1", tmp_path / "o.md") == 0


def test_a_revision_that_is_unknown_is_one_line(make_benchmark, source, tmp_path, capsys):
    assert gate(make_benchmark(), source, "--nowhere", tmp_path / "o.md") == 2
    assert gate(make_benchmark(), source, "nowhere", tmp_path / "o.md") == 2
    errors = capsys.readouterr().err.splitlines()
    assert errors[-1] == (
        f"calsweep: {source.folder}: 'nowhere' is not a commit or branch; "
        "`git branch -a` shows them"
    )


@pytest.mark.slow
def test_git_bisect_names_the_commit_that_the_gate_refuses(make_benchmark, source):
    for number in range(1, 6):
        source.commit({"broken": True} if number == 3 else USUAL if number < 5 else WORSE)
    benchmark = make_benchmark(sweep={"tracking": {}})
    calsweep = f"{shlex.quote(sys.executable)} -m calsweep"
    page = (ROOT / "docs/nightly.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"git bisect run (sh -c '.*')", page)
    script = script.replace("calsweep", calsweep, 1).replace("tonight.yaml", str(benchmark.path))
    first, last = source.hashes[0], source.hashes[-1]
    source.git("bisect", "start", last, first)
    run = shlex.split(script.replace("GOOD", first))
    told = subprocess.run(
        ["git", "bisect", "run", *run],
        cwd=source.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert f"{last} is the first bad commit" in told.stdout
