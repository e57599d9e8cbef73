import os
import platform
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy
import psutil
import pytest
import torch

from orchestrator.storage import provenance
from orchestrator.storage.provenance import git_commit, library_versions


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository of someone's with this code lying in it, not yet added."""
    file = tmp_path / "venv" / "orchestrator" / "provenance.py"
    file.parent.mkdir(parents=True)
    file.write_text("code")
    (tmp_path / "own.txt").write_text("own")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "own.txt")
    git(tmp_path, "commit", "-q", "-m", "own")
    monkeypatch.setattr(provenance, "__file__", str(file))
    return tmp_path


def test_code_inside_a_foreign_repository_has_no_commit(package: Path) -> None:
    assert git_commit() == ""


def test_the_commit_says_whether_there_are_local_changes(package: Path) -> None:
    git(package, "add", ".")
    git(package, "commit", "-q", "-m", "code")
    commit = git(package, "rev-parse", "HEAD")
    assert git_commit() == commit
    (package / "untracked.txt").write_text("x")
    assert git_commit() == commit
    (package / "own.txt").write_text("changed")
    assert git_commit() == f"{commit}-dirty"
    git(package, "add", "own.txt")
    assert git_commit() == f"{commit}-dirty"


def test_before_its_first_commit_a_repository_has_none(package: Path) -> None:
    git(package, "add", ".")
    git(package, "update-ref", "-d", "HEAD")
    assert git_commit() == ""


def test_a_git_that_does_not_answer_tells_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    assert git_commit() == ""


def test_outside_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "provenance.py"
    file.write_text("code")
    monkeypatch.setattr(provenance, "__file__", str(file))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit() == ""
    monkeypatch.setenv("PATH", "")
    assert git_commit() == ""


def test_every_library_has_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = library_versions()
    assert versions["numpy"] == numpy.__version__
    assert "not installed" not in versions.values()
    named = "calsweep torch torchvision timm ray optuna mlflow numpy scipy scikit-learn"
    assert list(versions) == named.split()
    monkeypatch.setattr(provenance, "LIBRARIES", ("no-such-library",))
    assert library_versions() == {"no-such-library": "not installed"}


def test_provenance_has_code_libraries_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=25 * 2**26))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", "GPU {}".format)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    monkeypatch.setattr(provenance, "git_commit", lambda: "c0de")
    found = provenance.provenance()
    assert (found["git_commit"], found["hardware"].pop("machine")) == ("c0de", platform.machine())
    assert found["hardware"] == {"cpus": 7, "memory_gb": 1.6, "gpus": ["GPU 0", "GPU 1"]}
    assert found["versions"] == {"python": platform.python_version(), **library_versions()}
