import io
import json
import re
from pathlib import Path
from statistics import fmean

import pandas as pd
import pytest
import yaml

from orchestrator.cli import main
from orchestrator.packages.evaluations import _short
from orchestrator.packages.hub import FILE, package_file, publish_repository, upload
from orchestrator.packages.package import UnfitError
from orchestrator.packages.verify import VerifyOptions, verify
from orchestrator.storage.storage import Storage
from tests.hub import TOKEN, Hub
from trainables.common.errors import InputError

NAME = "datasets/ada/results"
MEMBERS = [
    "README.md",
    "eval.yaml",
    "every_eval_ever",
    "index.html",
    "models",
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
    assert (len(commits), sorted({name.partition("/")[0] for name in files})) == (1, MEMBERS)
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
    check_rows_of_models(files)
    check_records(files)


def check_rows_of_models(files: dict[str, bytes]) -> None:
    """Each model has a row per task of the benchmark, with its mean over seeds."""
    results = pd.read_parquet(io.BytesIO(files["results.parquet"]))
    tasks = [task["id"] for task in yaml.safe_load(files["eval.yaml"])["tasks"]]
    found = {}
    for recipe, short in (("ce", "ce"), ("ls", "ls"), ("ls+ts", "ls-ts")):
        rows = yaml.safe_load(files[f"models/digits-tiny/{short}/.eval_results/calsweep.yaml"])
        assert [row["dataset"] for row in rows] == [
            {"id": "ada/results", "task_id": task} for task in tasks
        ]
        assert {row["source"]["url"] for row in rows} == {
            "https://huggingface.co/datasets/ada/results"
        }
        found[recipe] = rows[tasks.index("digits-tiny-ece")]["value"]
    assert found == pytest.approx(results.groupby("recipe")["ece"].mean().to_dict())


def check_records(files: dict[str, bytes]) -> None:
    """Each model has a record of Every Eval Ever with what its schema requires."""
    form = r"every_eval_ever/data/results/ada/digits-tiny-(ce|ls|ls-ts)/[\da-f]{8}-[\da-f]{4}-4.*"
    names = [name for name in files if name.startswith("every_eval_ever")]
    assert len(names) == 3
    for name in names:
        assert re.fullmatch(form, name)
        record = json.loads(files[name])
        assert record["model_info"]["additional_details"]["deployment_type"] == "self_deployed"
        assert record["source_metadata"]["evaluator_relationship"] == "first_party"
        acc, *errors, nll = record["evaluation_results"]
        directions = [each["metric_config"]["lower_is_better"] for each in (acc, *errors, nll)]
        assert directions == [False, True, True, True, True]
        assert nll["metric_config"]["max_score"] == "Infinity"
        own = map(float, acc["score_details"]["details"].values())
        assert acc["score_details"]["score"] == pytest.approx(fmean(own))


def test_equal_file_names_get_a_number() -> None:
    names = ["ce", "ls+ts", "ls-ts", "ls/ts", "+"]
    assert list(_short(names).values()) == ["ce", "ls-ts", "ls-ts-2", "ls-ts-3", "unnamed"]


def test_a_name_that_ends_in_a_number_is_given_once() -> None:
    names = ["ls-2", "ls", "ls+2"]
    assert list(_short(names).values()) == ["ls-2", "ls", "ls-2-2"]


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
def test_an_interrupted_upload_leaves_the_repository_as_it_was(folder, login, step, status):
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
def test_a_wrong_or_missing_token_is_refused(folder, hub, monkeypatch, token):
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(InputError) as refusal:
        upload(folder, "ada/results", "Results")
    told = "hf:ada/results: the Hub refuses the token (401); set HF_TOKEN to a token with access"
    assert str(refusal.value) == told
    assert hub.repos == {}


def test_a_folder_has_the_same_files(storage, tmp_path, capsys):
    place = tmp_path / "results"
    words = ("--storage", str(storage.folder), "--to", str(place))
    assert main(["package", "publish", "board", *words]) == 0
    assert "ORG/NAME; replace that by your own" in capsys.readouterr().out
    assert (
        "id: ORG/NAME" in (place / "models/digits-tiny/ce/.eval_results/calsweep.yaml").read_text()
    )
    assert sorted(path.name for path in place.iterdir()) == MEMBERS
    assert package_file(str(place / FILE)) == place / FILE


def test_a_repository_without_a_package_is_refused(hub, storage, capsys):
    hub.put(NAME, {"README.md": b"other"})
    with pytest.raises(InputError, match=r"hf:ada/results has no package\.calsweep"):
        package_file("hf:ada/results")
    with pytest.raises(UnfitError, match="no such file"):
        verify(package_file("absent.zip"))
    with pytest.raises(InputError, match="use hf:ORG/NAME; results are uploaded to its branch"):
        publish_repository(storage, ["board"], "hf:ada/results@main", "")
    assert main(["package", "publish", "board", "--storage", str(storage.folder)]) == 2
    assert "expected --out or --to" in capsys.readouterr().err
