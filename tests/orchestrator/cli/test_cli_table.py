import csv
import json

import pandas as pd
import pytest

from orchestrator.cli._table import SHOWN
from orchestrator.tables.arrange import DIMENSIONS
from orchestrator.tracking import sync as deliver

TEST = {"test_acc": 0.98, "test_ece": 0.02, "test_ece_floor": 0.003}


@pytest.fixture
def store(tmp_path, monkeypatch):
    uri = f"folder:{tmp_path}/tracked"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return uri


@pytest.fixture
def ask(calsweep, writer, store):
    """Return a function that asks for a table of a finished sweep of ``ce`` and ``mbls``."""
    writer.start()
    for recipe, ece in (("ce", 0.02), ("mbls", 0.009)):
        study = writer.open(recipe, trials=1)
        key = writer.trial(study, 0, 0.3, configuration={recipe: {}})
        writer.close(study, key, finished=1)
        writer.evaluate(key, study, **{**TEST, "test_ece": ece}, test_nll=0.06)
    writer.end()
    deliver(writer.path, store)

    def call(*arguments):
        return calsweep("table", writer.sweep, *arguments)

    return call


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--layout", "macal/tabel1"],
            "unknown layout 'macal/tabel1'; near are: macal/table1, macal/table5, macal/table4, "
            "or PATH.yaml; `calsweep list layouts` shows all",
        ),
        (["--show", "published"], "--show published needs --layout, which names the paper's table"),
        (["--show", "tied,runs"], "--show: 'tied' is unknown; near are: ties, mixed, sorted"),
        (["--show", "floor, x"], f"--show: 'x' is unknown; there are: {', '.join(SHOWN)}"),
        (
            ["--show", "runs,comparable"],
            "--show: comparable and runs exclude each other: comparable has no runs",
        ),
        (["--baseline", "ls"], "baseline: no row is named 'ls'; rows are ce, mbls"),
        (["--recipes", "ls"], "no recipe matches 'ls'; recipes are ce, mbls"),
        (["--rows", "recipe,colour"], f"rows: 'colour' is not one of {', '.join(DIMENSIONS)}"),
    ],
)
def test_a_wrong_request_gets_one_line(ask, arguments, expected):
    code, out, err = ask(*arguments)
    assert (code, out, err) == (2, "", f"calsweep: {expected}\n")


def test_a_table_goes_to_a_file_in_every_format(ask, tmp_path):
    frame = tmp_path / "table.parquet"
    assert ask("--format", "parquet", "--out", frame).out == f"wrote {frame}\n"
    text = tmp_path / "table.json"
    assert ask("--format", "json", "--out", text).out == f"wrote {text}\n"
    assert text.read_text() == ask("--format", "json").out
    found = pd.read_parquet(frame).pivot(index="row", columns="column", values="mean")
    told = pd.DataFrame(json.loads(text.read_text())["cells"])
    pd.testing.assert_frame_equal(found, told.pivot(index="row", columns="column", values="mean"))
    assert 0.009 in found.loc["mbls"].tolist()


def test_a_comparable_table_has_nothing_that_differs_between_equal_runs(ask):
    usual, comparable = (
        ask("--format", "csv", *more).out for more in ((), ("--show", "comparable"))
    )
    (first, *_), (other, *_) = (csv.DictReader(text.splitlines()) for text in (usual, comparable))
    differing = {name for name in first if first[name] != other[name]}
    assert differing == {"run_ids"} | ({"seconds_mean", "seconds_std"} & differing)
    assert other["run_ids"] == other["seconds_mean"] == ""


def test_rows_are_sorted_by_the_first_metric(ask):
    def rows(*options):
        out = ask("--format", "csv", *options).out
        return [row["recipe"] for row in csv.DictReader(out.splitlines())]

    assert rows() == ["ce", "mbls"]
    assert rows("--show", "sorted", "--metrics", "ece,acc") == ["mbls", "ce"]
    assert rows("--show", "sorted", "--metrics", "acc,ece") == ["ce", "mbls"]


def test_parquet_needs_a_file(ask):
    code, out, err = ask("--format", "parquet")
    assert (code, out) == (2, "")
    assert "cannot be printed; use --out FILE.parquet" in err
