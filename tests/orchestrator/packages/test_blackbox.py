import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from orchestrator.cli import main
from orchestrator.storage.ledger import read_ledger
from orchestrator.storage.storage import Storage
from trainables.metrics import calibration_report

PAGE = Path(__file__).parents[3] / "docs" / "travel.md"


@pytest.fixture(scope="module")
def reader() -> Any:
    """Return the class of the page, as a stranger copies it."""
    (text,) = re.findall(r'```python title="blackbox.py"\n(.*?)```', PAGE.read_text(), re.DOTALL)
    assert len([line for line in text.splitlines() if line.strip()]) <= 40
    assert not re.search(r"import.*(calsweep|orchestrator|trainables|torch)", text)
    names: dict[str, Any] = {}
    exec(compile(text, "blackbox.py", "exec"), names)
    return names


def export(storage: Storage, out: Path, *options: str) -> dict[str, Any]:
    place = ("--storage", str(storage.folder), "--out", str(out))
    assert main(["search", "blackbox", "board", *options, *place]) == 0
    with np.load(out, allow_pickle=False) as found:
        return {**found, "about": json.loads(str(found["about"]))}


@pytest.fixture(scope="module")
def exported(storage: Storage, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    out = tmp_path_factory.mktemp("blackbox") / "board.npz"
    return out, export(storage, out)


def test_a_blackbox_gives_the_figures_of_the_live_sweep(storage, exported, reader):
    ledger = read_ledger(storage.sweep("board").journal)
    for number, study in enumerate(exported[1]["about"]["studies"]):
        live = ledger.studies[f"{study['task']}|{study['recipe']}"].searched
        assert [run["trial"] for run in study["runs"]] == [trial.number for trial in live]
        for metric in ("nll", "ece"):
            own = reader["nll"] if metric == "nll" else _ece
            blackbox = reader["Blackbox"](exported[0], number, own)
            for trial in live:
                value = blackbox.evaluate(trial.parameters)
                assert value == pytest.approx(trial.metrics[f"val_{metric}"], abs=1e-6)


def _ece(logits: np.ndarray, labels: np.ndarray) -> float:
    return calibration_report(logits, labels=labels)["ece"]


def test_figures_on_test_data_follow_from_the_predictions_of_a_blackbox(
    storage: Storage, exported: tuple[Path, Any]
) -> None:
    ledger = read_ledger(storage.sweep("board").journal)
    arrays = exported[1]
    (study,) = arrays["about"]["studies"]
    known = ledger.studies[f"{study['task']}|{study['recipe']}"]
    chosen = known.chosen_trial
    assert chosen is not None
    (run,) = (run for run in study["runs"] if run["trial"] == chosen.number)
    now = calibration_report(arrays["0/test"][run["test"]], labels=arrays["0/test_labels"])
    assert {name: chosen.test[name] for name in now} == pytest.approx(now, abs=1e-6)


def test_optuna_searches_it(exported: tuple[Path, Any], reader: Any) -> None:
    blackbox = reader["Blackbox"](exported[0])
    study = optuna.create_study(
        directions=blackbox.directions, sampler=optuna.samplers.TPESampler(seed=0)
    )
    study.optimize(blackbox, n_trials=30)
    assert study.best_value == min(blackbox.values)
    assert set(study.best_params) == set(blackbox.search_space)


def test_the_nearest_trial_answers(exported: tuple[Path, Any], reader: Any) -> None:
    blackbox = reader["Blackbox"](exported[0])
    (name,) = blackbox.search_space
    values = [run["parameters"][name] for run in exported[1]["about"]["studies"][0]["runs"]]
    for position, value in enumerate(values):
        others = [abs(other - value) for other in values if other != value]
        near = value + 0.4 * min(others) * (1 if value < 0.25 else -1)
        assert blackbox.evaluate({name: near}) == blackbox.values[position]


def test_every_epoch_ends_in_the_recorded_one(storage, exported, tmp_path):
    arrays = export(storage, tmp_path / "epochs.npz", "--every-epoch", "--recipe", "ls")
    (study,) = arrays["about"]["studies"]
    assert [(run["trial"], run["epoch"]) for run in study["runs"]] == [
        (trial, epoch) for trial in range(3) for epoch in (1, 2)
    ]
    first, last = arrays["0/validation"][::2], arrays["0/validation"][1::2]
    np.testing.assert_array_equal(last, exported[1]["0/validation"])
    assert (first != last).any(axis=(1, 2)).all()


def test_an_unknown_recipe_is_one_line(storage, tmp_path, capsys):
    place = ("--storage", str(storage.folder), "--out", str(tmp_path / "b.npz"))
    assert main(["search", "blackbox", "board", "--recipe", "fl", *place]) == 2
    assert "no recipe 'fl' in sweep 'board'; there are: ce, ls, ls+ts" in capsys.readouterr().err
    assert not (tmp_path / "b.npz").exists()
