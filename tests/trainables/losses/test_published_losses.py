"""The search spaces' defaults against the papers' hyper-parameters."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from search_spaces import load_space

PARAMETERS = {
    ("mbls", "margin"): "margin",
    ("mbls", "penalty weight"): "weight",
    ("ls", "smoothing"): "smoothing",
    ("fl", "focusing parameter"): "gamma",
    ("ecp", "balancing weight"): "weight",
    ("dfl", "focusing parameter"): "gamma",
    ("ifl", "focusing parameter"): "gamma",
    ("au", "CDF smoothing"): "smoothness",
    ("au", "low-confidence coverage"): "coverage",
    ("acls", "margin"): "margin",
    ("acls", "weight of the predicted-class term"): "weight_pos",
    ("acls", "weight of the other-class terms"): "weight_neg",
}


def is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


@pytest.mark.shared
def test_defaults_are_the_published_ones(shared: Path) -> None:
    met = set()
    with (shared / "published" / "hyperparameters.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = (row["method"], row["parameter"])
            if key not in PARAMETERS or not is_number(row["published_default"]):
                continue
            met.add(key)
            parameter = load_space("methods", row["method"]).parameters[PARAMETERS[key]]
            names = [None if row[k] == "all" else row[k] for k in ("dataset", "model")]
            assert parameter.default_for(*names) == float(row["published_default"]), row
            grid = row["searched_values"].split(";")
            if len(grid) > 1 and all(map(is_number, grid)):
                assert parameter.grid == tuple(map(float, grid)), row
    assert met == set(PARAMETERS)


def test_the_search_reaches_the_ablation_without_margin() -> None:
    assert load_space("methods", "mbls").parameters["margin"].check(0.0) == 0.0
