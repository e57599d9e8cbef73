import numpy as np
import pytest
from nights import ECE, SPEED

from orchestrator.nightly import CellKey, NightRecord
from orchestrator.nightly.verdict.series import find_steps, night_series, pooled, worse_step

RNG = np.random.default_rng(0)
NOISE = RNG.normal(size=60)


@pytest.mark.parametrize(
    ("metric", "expected"), [("ece", 3.0), ("wall_seconds", 1.0), ("images_per_second", 6.0)]
)
def test_a_night_counts_by_its_mean_or_by_its_best_time(metric, expected):
    assert pooled(metric, (6.0, 1.0, 2.0)) == expected


def told(cell: CellKey, *nights: dict[int, float]) -> list[NightRecord]:
    return [NightRecord(f"2026-01-0{n}", 0.0, {cell: row}) for n, row in enumerate(nights, 1)]


@pytest.mark.parametrize(
    ("nights", "expected"),
    [
        ([], []),
        ([{0: 3.0, 1: 5.0}], [4.0]),
        ([{5: 1.0}, {0: 3.0, 1: 5.0}], [np.nan, 4.0]),
        # The night before it shares seed 1, an earlier one seed 0.
        ([{0: 9.0, 5: 9.0}, {1: 2.0, 2: 9.0}, {0: 9.0, 1: 4.0}], [np.nan, 2.0, 4.0]),
        # The night before it shares none.
        ([{1: 2.0, 2: 9.0}, {7: 9.0}, {0: 9.0, 1: 4.0}], [2.0, np.nan, 4.0]),
    ],
)
def test_nights_of_a_cell_are_taken_over_the_seeds_that_the_last_ones_share(nights, expected):
    assert np.array_equal(night_series(told(ECE, *nights), [ECE])[:, 0], expected, equal_nan=True)


def test_a_series_starts_on_the_night_of_an_accepted_change():
    found = night_series(told(ECE, *({0: float(n)} for n in range(3))), [ECE], {ECE: "2026-01-02"})
    assert np.array_equal(found[:, 0], [np.nan, 1.0, 2.0], equal_nan=True)


@pytest.mark.parametrize(("cell", "low"), [(ECE, [0.0, -1.0]), (SPEED, [np.nan, np.nan])])
def test_figures_must_be_finite_and_those_of_ratios_above_0(cell, low):
    nights = told(cell, *({0: value} for value in (0.0, -1.0, np.inf, 0.5)))
    found = night_series(nights, [cell])[:, 0]
    assert np.array_equal(found, [*low, np.nan, 0.5], equal_nan=True)


def test_a_step_must_be_worth_its_while():
    # Half the product of nights and squared height: 20 and 45 where 36 is asked for.
    assert find_steps(np.repeat([0.0, 2.0], 10), 1.0) == ()
    assert len(find_steps(np.repeat([0.0, 3.0], 10), 1.0)) == 1


def test_steps_are_found_where_they_are():
    series = np.repeat([0.0, 6.0, 2.0], 20) + NOISE
    steps = find_steps(series, 1.0)
    assert [step.index for step in steps] == [20, 40]
    assert steps[0].before == pytest.approx(series[:20].mean())
    assert (steps[1].after, steps[1].nights) == (pytest.approx(series[40:].mean()), 20)


def test_noise_and_constants_have_no_steps():
    assert find_steps(NOISE, 1.0) == ()
    assert find_steps(np.full(60, 3.0), 1e-9) == ()
    assert find_steps(np.array([0.0, 9.0, 0.0]), 1.0) == ()


def test_a_level_lasts_five_nights_at_least():
    series = np.repeat([0.0, 20.0, 0.0], [20, 3, 20])
    places = [0, *(step.index for step in find_steps(series, 1.0)), len(series)]
    assert len(places) > 2
    assert min(np.diff(places)) >= 5


def test_find_steps_needs_noise_above_0():
    with pytest.raises(ValueError, match="noise=0"):
        find_steps(NOISE, 0.0)


def test_a_step_is_compared_with_the_best_earlier_level():
    series = np.repeat([3.0, 0.0, 4.0], 20) + 0.1 * NOISE
    found = worse_step(series, 0.1, 2.0)
    step, level = found
    assert (step.index, level) == (40, pytest.approx(series[20:40].mean()))


def test_the_shortest_series_with_a_step():
    series = np.repeat([0.0, 4.0], 5)
    assert [step.index for step in find_steps(series, 0.1)] == [5]
    assert worse_step(series, 0.1, 2.0) is not None
    assert worse_step(series[1:], 0.1, 2.0) is None


def test_the_best_level_may_be_lower_than_any_five_of_its_nights():
    best = [0.0, 0.0, 0.3, 0.3, 0.0, 0.0]
    found = worse_step(np.array([1.0] * 10 + best + [1.11] * 15), 0.1, 1.0)
    assert (found[0].index, found[1]) == (16, pytest.approx(0.1))


def test_a_series_that_has_recovered_has_no_worse_step():
    series = np.repeat([0.0, 4.0], [40, 20]) + 0.1 * NOISE
    assert worse_step(series, 0.1, 2.0) is not None
    assert worse_step(np.append(series, 0.0), 0.1, 2.0) is None
    assert worse_step(-series, 0.1, 2.0) is None
    assert worse_step(series, 0.1, 5.0) is None


@pytest.mark.parametrize(
    ("later", "threshold", "worse"),
    [
        ([2.7] * 10, 1.0, True),  # Six standard errors of ten nights beside ten are 2.68.
        ([4.0] * 13 + [0.0, 4.0], 2.0, True),
        ([4.0] * 13 + [3.0, 5.0], 4.0, False),
        ([6.0] * 14 + [4.0], 4.0, False),
    ],
    ids=["six errors", "recovered yesterday", "the level is not above", "tonight is not above"],
)
@pytest.mark.parametrize("shift", [-100.0, 0.0, 100.0])
def test_a_step_needs_its_level_and_the_last_night_above_the_threshold(
    later, threshold, worse, shift
):
    for before in ([0.0] * 10, [-1.0, 1.0] * 5):
        found = worse_step(np.array(before + later) + shift, 1.0, threshold)
        assert (found is not None) == worse
        if found is not None:
            assert (found[0].index, found[1]) == (10, pytest.approx(shift))


def test_a_staircase_of_small_steps_is_worse():
    series = 0.1 * np.arange(60) + 0.05 * NOISE
    found = worse_step(series, 0.2, 2.0)
    assert found is not None
    assert max(step.after - step.before for step in find_steps(series, 0.2)) < 2.0


def test_the_lowest_level_may_be_the_first_nights():
    series = np.array([0.0] * 5 + [1.0] * 10)
    found = worse_step(series, 0.05, 0.9)
    step, level = found
    assert (step.index, step.nights, level) == (5, 10, 0.0)
    assert worse_step(series, 0.05, 1.1) is None
