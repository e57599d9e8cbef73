"""Folders and files whose names mean something else in an address or to a shell."""

from pathlib import Path

import numpy as np
import pytest

from orchestrator.running.run import run_sweep
from orchestrator.sweep.spec import load_sweep, parse_sweep
from orchestrator.sweep.tracking_uri import check_tracking_uri, database_uri, sqlite_file
from orchestrator.tracking import study_results
from tests.orchestrator.one_process import one_process
from trainables.common.errors import InputError
from trainables.plugins import load_plugins

PLUGIN = """
from calsweep import METRICS

@METRICS.register("sure", better="lower")
def sure(probs, labels):
    return probs.amax(1).mean()
"""
SWEEP = """
name: odd
plugins: ["./{name}.py"]
tasks: [{{name: t, logits: "{root}/{name}/{name}.npz", split: {{test: 0.5}}}}]
recipes: [given]
search: {{trials: 1}}
executor: local
resources: {{concurrent: 1}}
storage: "./{name}/store"
data_root: "./{name}/data"
"""
NAMES = ["my%20project", "a?b#c", "it's 'q' é", "-x", "~x"]


def write_sweep(folder: Path, name: str) -> Path:
    """Write a sweep file, its plugin and its data, all of that name, in a folder of that name."""
    root = folder / name
    (root / name).mkdir(parents=True)
    (root / f"{name}.py").write_text(PLUGIN, encoding="utf-8")
    scores = np.random.default_rng(0).normal(size=(60, 4))
    np.savez(root / name / f"{name}.npz", logits=scores, labels=np.arange(60) % 4)
    file = root / f"{name}.yaml"
    file.write_text(SWEEP.format(name=name, root=root), encoding="utf-8")
    return file


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_a_sweep_runs_in_a_folder_of_any_name(name, tmp_path, monkeypatch):
    file = write_sweep(tmp_path, name)
    monkeypatch.chdir(file.parent)
    with one_process():
        outcome = run_sweep(load_sweep(file))
    database = file.parent / name / "store" / "mlflow.db"
    assert (outcome.status, outcome.tracked) == ("finished", True)
    assert outcome.spec.tracking_uri == database_uri(database.parent)
    assert (sqlite_file(outcome.spec.tracking_uri), database.is_file()) == (database, True)
    assert study_results(outcome.spec.tracking_uri, "odd")
    # Nothing was written under another spelling of the name.
    assert [each.name for each in tmp_path.iterdir()] == [name]
    assert {each.name for each in file.parent.iterdir()} == {name, f"{name}.py", file.name}


@pytest.mark.parametrize("sign", ["\n", "\r", "\x1b", "\x7f", "\u2028"])
def test_a_path_with_a_control_character_is_refused_everywhere(sign, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = f"a{sign}b"
    told = f"it has the control character {sign!r}"
    key = sign.encode("unicode_escape").decode()
    file = tmp_path / f"{name}.yaml"
    file.write_text(SWEEP.format(name="x", root="."), encoding="utf-8")
    sweep = SWEEP.replace('plugins: ["./{name}.py"]\n', "").format(name="x", root=".")
    for attempt in (
        lambda: load_sweep(file),
        lambda: load_plugins([f"./{name}.py"]),
        lambda: parse_sweep(sweep.replace("./x/store", rf"./a{key}b"), "s"),
        lambda: parse_sweep(sweep.replace("./x/data", rf"./a{key}b"), "s"),
        lambda: parse_sweep(sweep.replace("./x/x.npz", rf"./a{key}b.npz"), "s"),
    ):
        with pytest.raises(InputError) as refusal:
            attempt()
        assert told in str(refusal.value)
    with pytest.raises(InputError, match="cannot be a path: it has the control character"):
        check_tracking_uri(f"sqlite:///{tmp_path}/{name}.db")


def test_an_address_with_a_bare_percent_sign_names_the_right_spelling(tmp_path):
    (tmp_path / "my%20project").mkdir()
    with pytest.raises(InputError, match=r"means the file .*/my project/m.db; write %25 for"):
        check_tracking_uri(f"sqlite:///{tmp_path}/my%20project/m.db")
    check_tracking_uri(f"sqlite:///{tmp_path}/my%2520project/m.db")
