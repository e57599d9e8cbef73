"""Packages as repositories of the Hugging Face Hub, against a stub of its API."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest
import yaml

from orchestrator.cli import main
from orchestrator.packages.hub import FILE, package_file, publish_repository, upload
from orchestrator.packages.package import UnfitError
from orchestrator.packages.verify import VerifyOptions, verify
from orchestrator.storage.storage import Storage
from tests.hub import TOKEN, Hub
from trainables.common.errors import InputError

NAME = "datasets/ada/results"
MEMBERS = [
    "README.md",
    "index.html",
    "package.calsweep",
    "predictions.parquet",
    "results.parquet",
    "trials.parquet",
]


@pytest.fixture
def login(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return hub


def test_a_package_is_uploaded_in_one_commit_and_verified(storage: Storage, login: Hub) -> None:
    to = publish_repository(storage, ["board"], "hf:ada/results", "CC-BY-4.0")
    assert to == "https://huggingface.co/datasets/ada/results"
    commits = [call for call in login.calls if call.startswith("POST") and "/commit/" in call]
    files = login.repos[NAME]["main"]
    assert (len(commits), sorted(files)) == (1, MEMBERS)
    _, header, text = files["README.md"].decode().split("---\n", 2)
    card = yaml.safe_load(header)
    assert card["license_name"] == "CC-BY-4.0"
    for config in card["configs"]:
        (part,) = config["data_files"]
        assert len(pd.read_parquet(io.BytesIO(files[part["path"]])))
    assert "    calsweep package verify hf:ada/results\n" in text
    assert "| ls+ts |" in text
    assert not any(TOKEN.encode() in content for content in files.values())
    found = verify(package_file("hf:ada/results"), VerifyOptions(share=0.0, revision="c0ffee"))
    assert found.problems == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("README.md", "package.calsweep"):
        (tmp_path / name).write_text("after")
    return tmp_path


def test_an_upload_again_changes_nothing(folder: Path, login: Hub) -> None:
    for _ in range(2):
        upload(folder, "ada/results", "Results")
        assert login.repos[NAME]["main"] == {"README.md": b"after", "package.calsweep": b"after"}


@pytest.mark.parametrize("step", ["repos/create", "preupload", "/commit/"])
@pytest.mark.parametrize("status", [429, 503])
def test_an_interrupted_upload_leaves_the_repository_as_it_was(
    folder: Path, login: Hub, step: str, status: int
) -> None:
    login.put(NAME, {"README.md": b"before"})
    login.faults += [(f"POST .*{step}", status)] * 7
    with pytest.raises(InputError) as refusal:
        upload(folder, "ada/results", "Results")
    assert str(refusal.value) == f"hf:ada/results: the Hub answers {status}; try again later"
    assert login.repos[NAME]["main"] == {"README.md": b"before"}
    login.faults.clear()
    upload(folder, "ada/results", "Results")
    assert login.repos[NAME]["main"]["README.md"] == b"after"


@pytest.mark.parametrize("token", ["hf_wrong_token", None])
def test_a_wrong_or_missing_token_is_refused(
    folder: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(InputError) as refusal:
        upload(folder, "ada/results", "Results")
    told = "hf:ada/results: the Hub refuses the token (401); set HF_TOKEN to one with the rights"
    assert str(refusal.value) == told
    assert hub.repos == {}


def test_a_folder_has_the_same_files(storage: Storage, tmp_path: Path) -> None:
    place = tmp_path / "results"
    words = ("--storage", str(storage.folder), "--to", str(place))
    assert main(["package", "publish", "board", *words]) == 0
    assert sorted(path.name for path in place.iterdir()) == MEMBERS
    assert package_file(str(place / FILE)) == place / FILE


def test_what_is_not_a_repository_of_packages_is_refused(
    hub: Hub, storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.put(NAME, {"README.md": b"other"})
    with pytest.raises(InputError, match=r"hf:ada/results has no package\.calsweep"):
        package_file("hf:ada/results")
    with pytest.raises(UnfitError, match="there is no such file"):
        verify(package_file("absent.zip"))
    with pytest.raises(InputError, match="use hf:ORG/NAME; results are uploaded to its branch"):
        publish_repository(storage, ["board"], "hf:ada/results@main", "")
    assert main(["package", "publish", "board", "--storage", str(storage.folder)]) == 2
    assert "expected --out or --to" in capsys.readouterr().err
