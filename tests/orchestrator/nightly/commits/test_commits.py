"""Alarms and the commits behind them: real git, real worktrees, a process a night."""

from __future__ import annotations

import html
import json
import math
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from made_repository import USUAL, MadeRepository
from nights import write_judged

from orchestrator.cli import main
from orchestrator.nightly import Book, CellKey, Nightly, NightRecord, Shape, run_night
from orchestrator.nightly import run as nights
from orchestrator.nightly.commits.night import CommitNights, Part
from orchestrator.nightly.commits.repository import Repository
from orchestrator.nightly.record import Row

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
python.parent.mkdir(parents=True)
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


def alarmed(
    benchmark: Nightly, source: MadeRepository, figures: dict[str, Any], **bad: str
) -> list[NightRecord]:
    """Write eight nights of the first commit and two of the last, which has these figures."""
    first, last = source.hashes[0], source.hashes[-1]
    usual = [night(number, first, USUAL) for number in range(1, 9)]
    records = [*usual, *(night(number, last, figures, **bad) for number in (9, 10))]
    write_judged(Book(benchmark.folder), records)
    return records


def bisect(benchmark: Nightly, source: MadeRepository, *options: str) -> int:
    command = ["nightly", "bisect", str(benchmark.path), "--repository", str(source.folder)]
    return main([*command, "--quiet", *options])


def outcome(benchmark: Nightly, name: str = "2026-01-10") -> dict[str, Any]:
    path = Book(benchmark.folder).night(name).folder / "bisection.json"
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("bad", "worse"),
    [(1, WORSE), (5, {**USUAL, "ce": None}), (8, WORSE)],
    ids=["first", "failed", "last"],
)
def test_the_commit_behind_an_alarm_is_named(bad, worse, make_benchmark, source, capsys):
    for number in range(1, 9):
        source.commit(USUAL if number < bad else worse)
    benchmark = make_benchmark()
    alarmed(benchmark, source, worse)
    assert bisect(benchmark, source) == 0
    said = capsys.readouterr().out
    assert f"is worse by {source.hashes[bad][:7]} change {bad} (" in said.replace("  ", " ")
    found = outcome(benchmark)
    assert (found["commits"], len(found["named"])) == (8, 1)
    assert len(found["steps"]) <= 6
    assert found["steps"][0]["commit"] == source.hashes[-1]
    assert source.git("worktree", "list").count("\n") == 0
    assert not (benchmark.folder / "bisect").exists()


def timed(number: int, code: str, slower: float) -> NightRecord:
    """Return a night on a busy machine, on which calibration alone may be slower."""
    rng = random.Random(number)
    busy = math.exp(rng.gauss(0, 0.2))
    figures = {
        recipe: {**own, SPEED: own[SPEED] * busy * math.exp(rng.gauss(0, 0.003))}
        for recipe, own in speeds(slower).items()
    }
    rows = {("ce", "d"): Row("train", ""), ("ce+ts", "d"): Row("calibrate", "")}
    return replace(night(number, code, figures), rows=rows)


def speeds(slower: float) -> dict[str, dict[str, float]]:
    own = {"ce": 1000.0, "ce+ts": 4000.0 / slower}
    return {recipe: {**USUAL[recipe], SPEED: speed} for recipe, speed in own.items()}


def test_the_commit_that_slows_a_stage_is_named(make_benchmark, source, capsys):
    for number in range(9):
        source.commit(speeds(1.0 if number < 5 else 1.05))
    benchmark = make_benchmark()
    usual = [timed(number, source.hashes[1], 1.0) for number in range(1, 26)]
    write_judged(
        Book(benchmark.folder), [*usual, *(timed(n, source.hashes[-1], 1.05) for n in (26, 27, 28))]
    )
    assert bisect(benchmark, source) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"* on *: calibrate_time is worse by {source.hashes[6][:7]} change 6 (" in said
    assert len(outcome(benchmark, "2026-01-28")["steps"]) <= 6


def test_a_night_with_an_alarm_names_the_commit_by_itself(make_benchmark, source, told_sweep):
    for number in range(1, 5):
        source.commit({**USUAL, "ce": None} if number >= 3 else USUAL)
    bisect = {"repository": str(source.folder), "after_alarm": True}
    benchmark = make_benchmark(bisect=bisect)
    with pytest.MonkeyPatch.context() as patch:
        for commit, name in ((0, "2026-01-01"), (4, "2026-01-02")):
            surroundings = {"code": source.hashes[commit]}
            told_sweep.failures = {"ce": "it diverged"} if commit else {}
            patch.setattr(nights, "current_environment", lambda *_, known=surroundings: known)
            outcome = run_night(benchmark, name)
    text = f"ce on d is worse by {source.hashes[3][:7]} change 3 ("
    assert outcome.messages[0].startswith(text)
    assert text in (outcome.night.folder / "report.md").read_text()


def test_a_busy_machine_does_not_hide_what_a_commit_did(make_benchmark, source, capsys):
    for number in range(1, 5):
        source.commit(USUAL if number < 3 else WORSE)
    benchmark = make_benchmark()
    records = [
        night(number, source.hashes[0 if number < 9 else -1], figures | slow)
        for number in range(1, 11)
        for figures in [{"ce": {"ece": 0.02 if number < 9 else 0.03}}]
        for slow in [{"ce+ts": {"ece": 0.01, "wall_seconds": 1.0 if number < 7 else 900.0}}]
    ]
    write_judged(Book(benchmark.folder), records)
    assert bisect(benchmark, source) == 0
    assert f"ce on d: ece is worse by {source.hashes[3][:7]} change 3" in capsys.readouterr().out


def test_nothing_is_named_when_nothing_changed(make_benchmark, source, capsys):
    for _ in range(8):
        source.commit()
    benchmark = make_benchmark()
    alarmed(benchmark, source, WORSE)
    assert bisect(benchmark, source) == 0
    assert "not confirmed" in capsys.readouterr().out
    assert outcome(benchmark)["named"] == []


def test_what_is_bad_at_the_good_commit_too_is_no_commit(make_benchmark, tmp_path, capsys):
    source = MadeRepository(tmp_path / "code")
    source.hashes.clear()
    for _ in range(9):
        source.commit(WORSE)  # As the libraries of today make it.
    benchmark = make_benchmark()
    alarmed(benchmark, source, WORSE, torch="3")
    assert bisect(benchmark, source) == 0
    assert "no commit, " in capsys.readouterr().out
    same = [
        replace(record, environment={"code": source.hashes[0], "torch": "2"})
        for record in [night(n, "", USUAL) for n in range(11, 19)]
    ]
    worse = [
        replace(
            night(n, source.hashes[0], WORSE), environment={"code": source.hashes[0], "torch": "4"}
        )
        for n in (19, 20)
    ]
    other = make_benchmark(sweep={"name": "same"})
    write_judged(Book(other.folder), [*same, *worse])
    assert bisect(other, source) == 0
    assert "the code is that of 2026-01-18; what else changed: torch: 2 -> 4" in (
        capsys.readouterr().out
    )


def test_a_change_of_libraries_is_a_commit_like_others(make_benchmark, tmp_path, capsys):
    source = MadeRepository(tmp_path / "code")
    source.hashes.clear()
    for number in range(6):
        source.commit(constraints="1.5" if number >= 4 else "1", setup=SETUP)
    setup = [sys.executable, "setup.txt"]
    benchmark = make_benchmark(bisect={"repository": str(source.folder), "setup": setup})
    alarmed(benchmark, source, {name: {"ece": 1.5 * own["ece"]} for name, own in USUAL.items()})
    assert main(["nightly", "bisect", str(benchmark.path), "--quiet"]) == 0
    said = capsys.readouterr().out
    assert source.hashes[4][:7] in said
    assert said.endswith("it changes the libraries of constraints.txt\n")


def test_a_commit_that_cannot_run_is_passed_over(make_benchmark, source, capsys):
    for number in range(1, 9):
        source.commit({"broken": True} if number == 4 else USUAL if number < 7 else WORSE)
    benchmark = make_benchmark()
    alarmed(benchmark, source, WORSE)
    assert bisect(benchmark, source) == 0
    assert f"is worse by {source.hashes[7][:7]}" in capsys.readouterr().out
    broken = [step for step in outcome(benchmark)["steps"] if step["badness"] is None]
    assert [step["commit"] for step in broken] == [source.hashes[4]]
    assert broken[0]["why"].endswith("ended with exit code 1: this commit is broken")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--night", "2026-02-01"), "--night: '2026-02-01' has no verdict in "),
        (("--night", "2026-01-03"), "2026-01-03 has no alarm about a recipe"),
        (
            ("--cell", "ce on x: ece"),
            "--cell: 'ce on x: ece' is not in alarm on 2026-01-10; use one of ce on d: ece",
        ),
        (("--repository", "/"), "/: git rev-parse: fatal: not a git repository"),
    ],
)
def test_a_strangers_mistake_is_one_line(options, said, make_benchmark, source, capsys):
    benchmark = make_benchmark()
    source.commit(WORSE)
    alarmed(benchmark, source, WORSE)
    assert bisect(benchmark, source, *options) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"calsweep: {said}")
    assert errors.count("\n") == 1


def test_a_benchmark_that_never_ran_is_left_alone(make_benchmark, source, capsys):
    benchmark = make_benchmark()
    assert bisect(benchmark, source) == 2
    assert "--night: 'none' has no verdict in" in capsys.readouterr().err
    assert not benchmark.folder.exists()


def test_the_alarm_that_is_named_is_looked_into(make_benchmark, source):
    worse = {recipe: {"ece": 10 * own["ece"]} for recipe, own in USUAL.items()}
    source.commit(worse)
    benchmark = make_benchmark()
    alarmed(benchmark, source, worse)
    for recipe in USUAL:
        assert bisect(benchmark, source, "--cell", f"{recipe} on d: ece") == 0
        assert outcome(benchmark)["cell"][0] == recipe


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
def test_a_change_is_held_against_its_base(
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


def test_paths_of_data_begin_where_the_command_runs(make_benchmark, source, tmp_path, monkeypatch):
    (tmp_path / "calsweep").mkdir()
    (tmp_path / "calsweep/__main__.py").write_text("raise SystemExit('not the code of a commit')")
    monkeypatch.chdir(tmp_path)
    with CommitNights(make_benchmark(), Repository(source.folder), "gate", None) as nights:
        assert nights.run(source.hashes[0], Part()).environment["place"] == str(tmp_path)


def test_a_machine_that_grew_busy_is_not_the_change(make_benchmark, source, tmp_path, monkeypatch):
    seconds = {"base": [1.0, 4.0], "change": [4.0, 4.0]}

    def timed(nights: CommitNights, commit: str | None, part: Part) -> NightRecord:
        left = seconds["base" if commit else "change"]
        figures = {"ce": {"ece": 0.02, "wall_seconds": left.pop(0)}}
        return night(1, commit or "", figures)

    monkeypatch.setattr(CommitNights, "run", timed)
    assert gate(make_benchmark(), source, "HEAD", tmp_path / "o.md") == 0
    seconds |= {"base": [1.0, 1.0], "change": [4.0, 4.0]}
    assert gate(make_benchmark(), source, "HEAD", tmp_path / "o.md") == 3


def test_a_gate_that_is_told_to_end_leaves_nothing(make_benchmark, source, tmp_path):
    benchmark, started = make_benchmark(), tmp_path / "pid"
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


def test_what_the_base_lacks_too_is_not_the_changes(make_benchmark, source, tmp_path):
    lacking = {**USUAL, "ce": None}
    source.commit(lacking)
    source.commit(lacking)
    assert gate(make_benchmark(), source, "HEAD~1", tmp_path / "o.md") == 0


def test_a_revision_that_is_unknown_is_one_line(make_benchmark, source, tmp_path, capsys):
    assert gate(make_benchmark(), source, "--nowhere", tmp_path / "o.md") == 2
    assert gate(make_benchmark(), source, "nowhere", tmp_path / "o.md") == 2
    errors = capsys.readouterr().err.splitlines()
    assert errors[-1] == f"calsweep: {source.folder}: 'nowhere' is no commit or branch there"
