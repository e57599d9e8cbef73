from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.datasets import load_digits

from orchestrator.cli import main
from orchestrator.cli._predictions import _paths
from orchestrator.packages.predictions import RowPredictions
from orchestrator.storage.ledger import read_ledger
from orchestrator.storage.results import results_of
from orchestrator.storage.storage import Storage
from tests.orchestrator.one_process import one_process
from tests.trainables.data.small_data import refusal
from trainables.common.errors import InputError
from trainables.metrics import evaluation_report

TASKS = ("a/b", "a.b", "a_b")
CELL = ("--recipe", "ls+ts", "--seed", "1")


def write(storage: Storage, out: Path, *options: str) -> int:
    place = ("--storage", str(storage.folder), "--out", str(out))
    return main(["package", "predictions", "board", *options, *place])


def test_a_cell_gives_the_table_its_figures(storage: Storage, tmp_path: Path) -> None:
    out = tmp_path / "cell.npz"
    assert write(storage, out, *CELL) == 0
    with np.load(out, allow_pickle=False) as found:
        logits, labels, rows = (found[name] for name in ("logits", "labels", "rows"))
        named = [found[name].item() for name in ("task", "recipe", "seed")]
    assert named == ["digits/tiny", "ls+ts", 1]
    ledger = read_ledger(storage.sweep("board").journal)
    (result,) = (each for each in results_of(ledger) if each.recipe == "ls+ts")
    assert evaluation_report(logits, labels) == pytest.approx(result.test[1], abs=1e-12)
    assert (len(set(rows)), rows.dtype) == (120, np.int64)
    assert (load_digits(return_X_y=True)[1][rows] == labels).all()


def test_every_cell_is_a_file_of_a_folder(storage: Storage, tmp_path: Path) -> None:
    assert write(storage, tmp_path / "cells") == 0
    found = sorted(path.name for path in (tmp_path / "cells").iterdir())
    recipes = ("ce", "ls", "ls+ts")
    assert found == sorted(f"digits_tiny-{r}-seed-{s}.npz" for r in recipes for s in (0, 1))


def test_no_cell_takes_the_place_of_another(tmp_path: Path) -> None:
    cells = [(SimpleNamespace(task=task, recipe="ce"), SimpleNamespace(seed=0)) for task in TASKS]
    assert [path.name for path in _paths(tmp_path, cells[:2])] == [
        *("a_b-ce-seed-0.npz", "a.b-ce-seed-0.npz")
    ]
    with pytest.raises(
        InputError, match=r"two tasks would have the same file name; select one with --task$"
    ):
        _paths(tmp_path, cells)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            (),
            "expected one cell for one file, got 6; use a folder, or select a cell with --task, "
            "--recipe and --seed",
        ),
        (("--seed", "7"), "no cell with --seed 7 has been measured; there are: 0, 1"),
        (
            ("--recipe", "mbls"),
            "no cell with --recipe 'mbls' has been measured; there are: ce, ls, ls+ts",
        ),
    ],
)
def test_options_without_a_cell_are_one_line(storage, tmp_path, capsys, options, told):
    assert write(storage, tmp_path / "cell.npz", *options) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("labels", np.array([0, 9]), "labels: expected 0 to 2, got 9 in row 1"),
        ("logits", np.array([[0.0, np.nan, 1.0]] * 2), "logits: expected finite values"),
        ("rows", np.arange(3), "rows: expected one int64 number per label, got int64 with shape"),
        ("seed", np.array(0.5), "seed: expected one integer, got float64 with shape ()"),
        ("task", np.array([b"digits"]), "task and recipe: expected one text each"),
        ("recipe", np.array({"ce": 1}, dtype=object), "it has Python objects"),
    ],
)
def test_a_foreign_file_is_checked(tmp_path: Path, name: str, value: np.ndarray, told: str) -> None:
    honest = {
        "logits": np.zeros((2, 3), np.float32),
        "labels": np.array([0, 1]),
        "rows": np.arange(2),
        "task": np.array("t"),
        "recipe": np.array("ce"),
        "seed": np.array(0),
    }
    path = tmp_path / "foreign.npz"
    np.savez(path, **honest)
    assert RowPredictions.read(path).seed == 0
    np.savez(path, **{**honest, name: value})
    assert told in refusal(RowPredictions.read, path)
    np.savez(path, **{key: value for key, value in honest.items() if key != name})
    with pytest.raises(InputError, match="expected the arrays logits, labels"):
        RowPredictions.read(path)


@pytest.mark.full
def test_rows_are_those_of_the_sweep_after_its_file_was_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = (np.random.default_rng(seed) for seed in (1, 2))
    sweep = (
        "name: NAME\ntasks: [{name: t, logits: own.npz, split: {test: 0.5}}]\n"
        "recipes: [given, ts]\nseeds: [0, 1]\nsearch: {trials: 1}\nexecutor: local\n"
        "resources: {concurrent: 1}\nstorage: kept\n"
    )
    found = []
    for name, draw in (("before", first), ("after", second)):
        labels = draw.integers(3, size=200)
        logits = draw.normal(size=(200, 3)) + 2 * np.eye(3)[labels]
        np.savez("own.npz", logits=logits, labels=labels)
        Path(f"{name}.yaml").write_text(sweep.replace("NAME", name))
        with one_process():
            assert main(["run", f"{name}.yaml", "--quiet"]) == 0
        out = f"cells-{name}"
        place = ("--storage", "kept", "--out", out)
        assert main(["package", "predictions", "before", *place]) == 0
        cells = {path.name: np.load(path) for path in sorted(Path(out).iterdir())}
        found.append({name: cell["rows"].tolist() for name, cell in cells.items()})
    assert len(found[0]) == 4
    assert found[0] == found[1]
