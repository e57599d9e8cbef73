import math
from dataclasses import replace

import pytest
import torch

from orchestrator.search.choice import ChoiceRule, Margin, Rank, stands_for_choice
from orchestrator.search.study_state import UNKNOWN, standard_error
from orchestrator.storage.events import StudyClosed, from_line, to_line
from orchestrator.sweep.spec import SearchModel, TaskSpec

TASK = TaskSpec(dataset="digits", model="convnet", protocol="digits")
REFERENCE = {"val_acc": 0.90, "val_ece": 0.10}


def rule(tolerance: float | None = 0.01) -> ChoiceRule:
    search = SearchModel(objective="nll", accuracy_tolerance=tolerance, keep_default=False)
    return ChoiceRule.of(search, TASK)


@pytest.mark.parametrize(
    ("accuracy", "expected"), [(0.95, 0.4), (0.89, 0.4), (0.88, 0.41), (0.50, 0.79)]
)
def test_accuracy_that_is_lost_beyond_the_tolerance_is_charged(accuracy, expected):
    metrics = {"val_nll": 0.4, "val_acc": accuracy}
    assert rule().score(metrics, REFERENCE) == pytest.approx(expected)


def test_nothing_is_charged_without_a_reference_or_a_guard():
    metrics = {"val_nll": 0.4, "val_acc": 0.1}
    assert rule().score(metrics) == 0.4
    assert rule(None).score(metrics, REFERENCE) == 0.4


def test_the_objective_decides_then_the_earlier_trial_then_the_earlier_study():
    later, earlier = Rank(0.2, 3, 2.0), Rank(0.2, 3, 1.0)
    best, second = Rank(0.1, 7, 9.0), Rank(0.2, 1, 9.0)
    assert sorted([later, earlier, second, best]) == [best, second, earlier, later]


def test_only_finished_search_trials_can_be_chosen():
    allowed = [
        (role, status)
        for role in ("search", "seed")
        for status in ("finished", "pruned", "failed")
        if stands_for_choice(role, status)
    ]
    assert allowed == [("search", "finished")]


def test_the_rule_is_written_down_in_plain_values():
    assert list(rule().plain().items()) == [
        ("objective", "val_nll"),
        ("accuracy_tolerance", 0.01),
        ("epoch", TASK.resolved_protocol.keep),
        ("tie", "earlier trial"),
    ]
    assert [rule(own).plain()["accuracy_tolerance"] for own in (None, 0.0)] == [None, 0.0]
    search = SearchModel(objective="nll", accuracy_errors=1.0, keep_default=True)
    asked = ChoiceRule.of(search, TASK).plain()
    assert list(asked.items())[4:] == [("accuracy_errors", 1.0), ("keep_default", True)]


def test_accuracy_may_also_fall_by_standard_errors_of_the_paired_difference():
    paired = replace(rule(), accuracy_errors=2.0)
    metrics = {"val_nll": 0.4, "val_acc": 0.86}
    assert paired.score(metrics, REFERENCE, 0.005) == pytest.approx(0.42)
    assert paired.score(metrics, REFERENCE, 0.015) == 0.4
    assert paired.score(metrics, REFERENCE) == pytest.approx(0.43)
    unguarded = replace(rule(None), accuracy_errors=2.0)
    strict = replace(rule(0.0), accuracy_errors=2.0)
    assert strict.score(metrics, REFERENCE, 0.01) == pytest.approx(0.42)
    rules = (paired, strict, rule(), unguarded)
    assert [one.pairs_accuracy for one in rules] == [True, True, False, False]


@pytest.mark.parametrize(
    ("difference", "error", "errors", "chosen"),
    [(0.1, 0.09, True, 3), (0.1, 0.1, True, 0), (0.1, 0.05, 2, 0), (0.1, 0.049, 2, 3)],
)
def test_the_published_default_stays_unless_it_is_clearly_beaten(difference, error, errors, chosen):
    default, best = Rank(0.5, 0), Rank(0.4, 3)
    found = Margin(difference, error)
    keeping = replace(rule(), keep_default=errors)
    asked: list[tuple[Rank, Rank]] = []

    def measured(first: Rank, second: Rank) -> Margin:
        asked.append((first, second))
        return found

    best_of, margin = keeping.choose([default, Rank(0.45, 1), best], measured)
    assert (best_of.number, margin, asked) == (chosen, found, [(best, default)])
    assert rule().choose([default, best], lambda *_: pytest.fail("asked")) == (best, None)
    # Nothing to compare with: the default failed, or is the best itself.
    assert keeping.choose([Rank(0.6, 2), best], lambda *_: pytest.fail("asked")) == (best, None)
    first = Rank(0.1, 0)
    assert keeping.choose([first, best], lambda *_: pytest.fail("asked")) == (first, None)


@pytest.mark.parametrize("images", [range(6), [0, 0, 0, 1, 2, 2], [7, 5, 7, 5, 5, 5], [1] * 6])
def test_errors_are_those_of_rows_or_of_images_of_any_size(images):
    change = [0.5, -1.0, 2.0, 0.25, 4.0, -3.0]
    mean = sum(change) / 6
    sums = [
        sum(value - mean for value, own in zip(change, images, strict=True) if own == image)
        for image in set(images)
    ]
    count = len(sums)
    squares = sum(value**2 for value in sums)
    expected = math.sqrt(count * squares / (count - 1)) / 6 if count > 1 else UNKNOWN
    found = standard_error(torch.tensor(change), torch.tensor(list(images)))
    assert found == pytest.approx(expected)
    if count == 6:
        assert standard_error(torch.tensor(change)) == pytest.approx(expected)
    assert not Margin(9.0, UNKNOWN).clear(1.0)
    known = StudyClosed(
        study="s", chosen="k", finished=1, failed=0, reason="", margin={"error": UNKNOWN}
    )
    assert from_line(to_line(known)) == known


def test_a_default_that_no_paper_prints_does_not_stay():
    assert ChoiceRule.of(SearchModel(), TASK).keep_default == 2.0
    own = ChoiceRule.of(SearchModel(), TASK, published=False)
    assert own.keep_default == 0.0
    assert "keep_default" not in own.plain()
