"""Recipes against each other over networks and splits."""

from __future__ import annotations

import csv
from itertools import product

import numpy as np
import pytest

from orchestrator.cli._arena import FIELDS, show_arena
from orchestrator.statistics import arena
from orchestrator.storage.results import StudyResult
from trainables.common.errors import InputError

# NLL of each recipe: `best` always wins, `even` ties with the baseline on one of two networks.
NLL = {
    "given": {"one": 1.0, "two": 2.0},
    "even": {"one": 1.0, "two": 1.5},
    "best": {"one": 0.5, "two": 1.0},
}


def result(recipe: str, network: str, size: int, seeds: int = 4, **changes: object) -> StudyResult:
    fields = {
        "sweep": "s",
        "task": f"{size}/{network}",
        "recipe": recipe,
        "status": "finished",
        "dataset": network,
        "model": "given",
        "seconds": (0.5,) * seeds,
        "test": tuple(
            {"nll": NLL[recipe][network] + 0.01 * seed, "brier": 0.5, "ece": 0.1 / (1 + seed)}
            for seed in range(seeds)
        ),
        **changes,
    }
    return StudyResult(**fields)


RESULTS = [result(*place) for place in product(NLL, ("one", "two"), (10, 20))]


def test_gains_wins_and_strengths_of_a_made_up_arena() -> None:
    pytest.importorskip("choix")
    found = arena(RESULTS, "given", draws=200)
    assert [standing.recipe for standing in found.standings] == ["best", "even", "given"]
    assert (found.networks, found.tasks, found.seeds) == (("one", "two"), 4, 4)
    best, even, given = found.standings
    assert best.gains["nll"].value == pytest.approx(0.75)
    # A resample holds the first network twice, both, or the second twice.
    assert best.gains["nll"][1:] == pytest.approx((0.5, 1.0))
    assert even.gains["nll"].value == pytest.approx(0.25)
    assert even.gains["brier"] == pytest.approx((0, 0, 0))
    assert [best.wins.value, even.wins.value, given.wins.value] == pytest.approx([1, 0.375, 0.125])
    assert given.strength == 0
    assert best.strength > even.strength > 0
    assert best.seconds == pytest.approx(0.5)


def test_strengths_are_those_of_two_players_in_chess() -> None:
    pytest.importorskip("choix")
    scores = np.array([1.0] * 75 + [3.0] * 25)  # Below 2 in three of four splits.
    both = [
        result(name, "one", 10, test=tuple(dict.fromkeys(("nll", "brier", "ece"), v) for v in own))
        for name, own in (("given", np.full(100, 2.0)), ("best", scores))
    ]
    best, _ = arena(both, "given", draws=2).standings
    assert best.wins.value == pytest.approx(0.75)
    assert best.strength == pytest.approx(400 * np.log10(3), rel=0.01)


def test_what_is_incomplete_is_left_out_with_the_reason(capsys) -> None:
    pytest.importorskip("choix")
    failed = result("even", "one", 10, seeds=2, status="failed", reason="out of reach")
    others = [r for r in RESULTS if (r.recipe, r.task) != ("even", "10/one")]
    found = arena([*others, failed], "given", draws=10)
    assert found.absent == {"even": "2 of 4 seeds on 10/one: out of reach"}
    show_arena(found, "markdown")
    text = capsys.readouterr().out.split("\n")
    assert text[3].startswith("| best ")
    assert text[-2] == "left out: even (2 of 4 seeds on 10/one: out of reach)"
    show_arena(found, "csv")
    best, *_ = csv.DictReader(capsys.readouterr().out.splitlines())
    assert list(best) == list(FIELDS)
    standing = found.standings[0]
    assert best["recipe"] == standing.recipe
    assert float(best["ece_gain_low"]) == standing.gains["ece"].low
    assert float(best["cpu_seconds"]) == standing.seconds


def test_an_arena_of_one_is_refused() -> None:
    with pytest.raises(InputError, match="only one recipe"):
        arena([r for r in RESULTS if r.recipe == "given"], "given")
    with pytest.raises(InputError, match="no given"):
        arena([r for r in RESULTS if r.recipe != "given"], "given")
