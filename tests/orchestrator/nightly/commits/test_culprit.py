"""Bisections of simulated histories: who is named, by how many nights, and when nobody is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from orchestrator.nightly import CellKey, NightRecord
from orchestrator.nightly.commits.bisect import search
from orchestrator.nightly.commits.culprit import MOST_NIGHTS, Culprit, Range
from orchestrator.nightly.commits.night import Part
from orchestrator.nightly.verdict.contrast import Contrast

COMMITS = 32
LUCK = 33  # The place of a change that never was.


def bisected(place: int, clear: float, rng: np.random.Generator) -> tuple[Range, int]:
    """Return what is found and after how many nights, where from a place on all nights are bad."""
    culprit, nights = Culprit(COMMITS, clear), 0
    while (commit := culprit.next()) is not None:
        culprit.observe(commit, float(commit >= place) + rng.normal() / clear)
        nights += 1
    return culprit.found(), nights


@pytest.mark.parametrize(("clear", "least"), [(5.5, 0.95), (11.0, 1.0)])
def test_the_commit_is_named_in_95_of_100_histories(clear, least):
    # 5.5 deviations are 30 % of speed on one machine, 11 are 20 % of ECE or a point of accuracy.
    rng = np.random.default_rng(0)
    found = [(place, *bisected(place, clear, rng)) for place in np.tile(range(1, 33), 10)]
    right = sum((one.first, one.last) == (place, place) for place, one, _ in found)
    assert right / len(found) >= least
    assert max(nights for *_, nights in found) == MOST_NIGHTS


@pytest.mark.parametrize(("clear", "most"), [(4.0, 4), (5.5, 1), (11.0, 0)])
def test_nobody_is_named_when_nothing_changed(clear, most):
    rng = np.random.default_rng(1)
    found = [bisected(LUCK, clear, rng) for _ in range(200)]
    named = [one for one, _ in found if one.first > 0 and one.last < LUCK]
    assert len(named) <= most
    assert np.mean([nights for _, nights in found]) < 2.5


def test_what_is_computed_several_times_is_surer():
    once, often = Culprit(COMMITS, 3.0), Culprit(COMMITS, 3.0)
    once.observe(16, 1.0)
    often.observe(16, 1.0, times=4)
    assert often.chances[17:].sum() < once.chances[17:].sum() / 10


@pytest.mark.parametrize(
    ("figures", "clear", "times", "computed"),
    [([0.6, 0.4], 2.0, 4, 4), ([0.6], 2.0, 4, 1), ([1.0, 1.0], 6.0, 4, 1), ([0.6], 4.0, 1, 1)],
    ids=["unclear", "the same bits", "clear", "cost"],
)
def test_what_is_not_told_clearly_is_computed_again(figures, clear, times, computed):
    one = NightRecord("2026-01-01", 0.0, {})
    drawn = itertools.cycle(figures)
    cell = CellKey("ce", "d", "ece")
    decided = Contrast(cell, (0,), clear, lambda _: next(drawn), times)
    _, steps = search(["a", "b"], decided, Part(), lambda *_: one, surroundings=False)
    assert steps[0].times == computed


def test_surroundings_that_changed_are_looked_at():
    rng, culprit = np.random.default_rng(2), Culprit(COMMITS, 11.0, surroundings=True)
    while (commit := culprit.next()) is not None:
        culprit.observe(commit, 1.0 + rng.normal() / 11)
    assert culprit.found()[:2] == (0, 0)


def test_a_commit_that_cannot_run_is_not_asked_again():
    culprit = Culprit(4, 11.0)
    assert culprit.next() == 4
    culprit.observe(4, 1.0)
    asked = culprit.next()
    assert asked == 2
    culprit.pass_over(2)
    assert culprit.next() in (1, 3)
    culprit.observe(3, 1.0)
    culprit.observe(1, 0.0)
    assert culprit.found()[:2] == (2, 3)
