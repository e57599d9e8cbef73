"""What the documents say is so: their files, commands and examples."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import orchestrator
from orchestrator.cli import main
from orchestrator.plan import make_plan
from orchestrator.spec import SearchModel, SweepSpec, parse_sweep

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
EXAMPLE = [
    "trainables/losses/gce.py",
    "search_spaces/methods/gce.yaml",
    "tests/trainables/losses/test_gce.py",
]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", read(name), re.DOTALL)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_linked_files_exist(name: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", read(name))
    paths = re.findall(r"`((?:examples|docs|tests|benchmarks|trainables)/[\w./-]*)`", read(name))
    for path in {*links, *paths} - set(EXAMPLE):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("name", DOCUMENTS[:2])
def test_named_commands_exist(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in set(
        re.findall(r"calsweep ((?:nightly )?[a-z]+)", re.sub(r"calsweep compares", "", read(name)))
    ):
        assert main([*command.split(), "--help"]) == 0, command
        options = re.findall(rf"calsweep {command}[^\n`]*?(--[a-z-]+)", read(name))
        shown = capsys.readouterr().out
        assert [option for option in options if option not in shown] == []


def test_the_sweep_file_shows_every_key_and_parses() -> None:
    (text,) = blocks("README.md", "yaml")
    spec = parse_sweep(text, "README.md")
    shown = set(re.findall(r"(\w+):", text))
    assert shown >= {*SweepSpec.model_fields, *SearchModel.model_fields}
    assert len(spec.tasks) == 2
    assert {study.stage for study in make_plan(spec)} == {"train", "refine", "calibrate"}


def test_values_called_defaults_are_the_defaults() -> None:
    (text,) = blocks("README.md", "yaml")
    spec = parse_sweep(text, "README.md")
    chosen = {"name", "tasks", "recipes", "variants", "search"}
    for name, field in SweepSpec.model_fields.items():
        assert name in chosen or getattr(spec, name) == field.default, name
    for name, field in SearchModel.model_fields.items():
        chosen = {"trials", "fixed", "spaces"}
        assert name in chosen or getattr(spec.search, name) == field.default, name


def test_the_python_example_uses_what_there_is() -> None:
    (text,) = blocks("README.md", "python")
    compile(text, "README.md", "exec")
    names = re.search(r"from orchestrator import (.+)", text)
    assert names is not None
    assert set(names[1].split(", ")) <= set(orchestrator.__all__)


def test_a_method_is_one_file_one_yaml_and_one_test(tmp_path: Path) -> None:
    for package in ("trainables", "search_spaces", "orchestrator"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    python, yaml = blocks("CONTRIBUTING.md", "python"), blocks("CONTRIBUTING.md", "yaml")
    for path, text in zip(EXAMPLE, [python[0], yaml[0], python[1]], strict=True):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", *arguments]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    assert "5 passed" in run("pytest", "-q", EXAMPLE[2])
    assert re.search(
        r"^ gce .* q 0\.7 in \[0\.05, 1\]", run("orchestrator", "list", "methods"), re.M
    )
