"""The rule of choice by its definition: guard, order, tie, and who may be chosen at all."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from orchestrator.search.choice import ChoiceRule, Rank, stands_for_choice
from orchestrator.sweep.spec import SearchModel, TaskSpec

TASK = TaskSpec(dataset="digits", model="convnet", protocol="digits")
REFERENCE = {"val_acc": 0.90, "val_ece": 0.10}


def rule(tolerance: float | None = 0.01) -> ChoiceRule:
    return ChoiceRule.of(SearchModel(objective="nll", accuracy_tolerance=tolerance), TASK)


@pytest.mark.parametrize(
    ("accuracy", "expected"), [(0.95, 0.4), (0.89, 0.4), (0.88, 0.41), (0.50, 0.79)]
)
def test_accuracy_that_is_lost_beyond_the_tolerance_is_charged(
    accuracy: float, expected: float
) -> None:
    metrics = {"val_nll": 0.4, "val_acc": accuracy}
    assert rule().score(metrics, REFERENCE) == pytest.approx(expected)


def test_nothing_is_charged_without_a_reference_or_a_guard() -> None:
    metrics = {"val_nll": 0.4, "val_acc": 0.1}
    assert rule().score(metrics) == 0.4
    assert rule(None).score(metrics, REFERENCE) == 0.4


def test_the_objective_decides_then_the_earlier_trial_then_the_earlier_study() -> None:
    later, earlier = Rank(0.2, 3, 2.0), Rank(0.2, 3, 1.0)
    best, second = Rank(0.1, 7, 9.0), Rank(0.2, 1, 9.0)
    assert sorted([later, earlier, second, best]) == [best, second, earlier, later]


def test_only_finished_search_trials_stand_for_choice() -> None:
    allowed = [
        (role, status)
        for role in ("search", "seed")
        for status in ("finished", "pruned", "failed")
        if stands_for_choice(role, status)
    ]
    assert allowed == [("search", "finished")]


def test_the_rule_is_written_down_in_plain_values() -> None:
    assert list(asdict(rule()).items()) == [
        ("objective", "val_nll"),
        ("accuracy_tolerance", 0.01),
        ("epoch", TASK.resolved_protocol.keep),
        ("tie", "earlier trial"),
    ]
