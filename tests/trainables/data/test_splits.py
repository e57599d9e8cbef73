import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainables.data import SplitSpec
from trainables.data._rows import MAX_SEED, allot, limit_rows, make_split, shuffled, take_counts

LABELS = np.repeat(np.arange(4), [400, 200, 100, 10])
TEST = np.repeat(np.arange(4), 25)


@pytest.mark.parametrize(("share", "rows"), [(0.1, 3), (0.25, 8), (0.01, 1)])
def test_a_share_is_rounded_to_whole_rows_and_holds_one_at_least(share, rows):
    split = make_split(np.arange(31) % 2, TEST, SplitSpec(validation=share))
    assert (len(split.validation), len(split.train)) == (rows, 31 - rows)


def test_the_same_on_every_platform():
    # Made once; a change here changes everybody's splits and needs a new schema number.
    assert shuffled(8, 0, "test").tolist() == [0, 2, 1, 5, 4, 3, 6, 7]
    spec = SplitSpec(validation=4, test=6, train_limit=5, test_limit=4, seed=3)
    split = make_split(np.arange(24) % 2, None, spec)
    assert split.train.tolist() == [2, 17, 20, 21, 22]
    assert split.validation.tolist() == [7, 9, 10, 14]
    assert split.test.tolist() == [8, 11, 13, 18]
    tail = take_counts(np.arange(20) % 2, np.array([3, 2]), 0, "long_tail")
    assert tail.tolist() == [5, 6, 10, 14, 19]


def test_every_row_is_equally_likely():
    held = np.zeros(40)
    for seed in range(400):
        held[make_split(np.arange(40) % 4, TEST, SplitSpec(8, seed=seed)).validation] += 1
    # Binomial(400, 1/5): mean 80, deviation 8.
    assert held.sum() == 3200
    assert np.abs(held - 80).max() < 32


@given(
    counts=st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(any),
    share=st.floats(0, 1),
    least=st.integers(0, 1),
    spare=st.integers(0, 1),
)
@example(counts=[30, 29, 1, 1, 1, 1], share=3 / 57, least=1, spare=0)  # Two can give back.
@example(counts=[3, 0, 2], share=0.5, least=0, spare=1)  # Nothing can be left of the second.
def test_allot(counts, share, least, spare):
    available = np.array(counts)
    high = np.maximum(available - spare, 0)
    low = np.minimum(least, high)
    size = int(low.sum() + round(share * (high.sum() - low.sum())))
    taken = allot(available, size, least, spare)
    assert taken.sum() == size
    assert ((low <= taken) & (taken <= high)).all()
    assert taken.tolist() == allot_by_hand(counts, size, low.tolist(), high.tolist())


def allot_by_hand(counts: list[int], size: int, low: list[int], high: list[int]) -> list[int]:
    """Round quotas down, keep them within limits, then change one row of one class at a time."""
    quota = [count * size / sum(counts) for count in counts]
    taken = [min(max(int(q), a), b) for q, a, b in zip(quota, low, high, strict=True)]
    by_remainder = sorted(range(len(counts)), key=lambda k: -(counts[k] * size % sum(counts)))
    while sum(taken) != size:
        for k in by_remainder if sum(taken) < size else by_remainder[::-1]:
            if sum(taken) < size and taken[k] < high[k]:
                taken[k] += 1
            elif sum(taken) > size and taken[k] > low[k]:
                taken[k] -= 1
    return taken


def assert_drawn(
    labels: np.ndarray,
    drawn: np.ndarray,
    left: np.ndarray,
    share: float | int,
    least: int = 0,
    spare: int = 0,
) -> None:
    """Make sure that every class gave its share of all rows to those that were drawn of them."""
    counts = np.bincount(labels[np.concatenate((drawn, left))])
    size = share if isinstance(share, int) else max(1, round(share * counts.sum()))
    taken = np.bincount(labels[drawn], minlength=len(counts))
    assert taken.tolist() == allot(counts, size, least, spare).tolist()


@given(
    labels=st.lists(st.integers(0, 3), min_size=6, max_size=40),
    spec=st.builds(
        SplitSpec,
        validation=st.sampled_from([1, 3, 6, 0.1, 0.3, 0.5, "own", "all"]),
        test=st.sampled_from([1, 4, 0.25, 0.5]),
        train_limit=st.sampled_from([None, None, 1, 4, 12]),
        test_limit=st.sampled_from([None, None, 1, 3, 8]),
        seed=st.sampled_from([0, 5, MAX_SEED]),
        validation_seed=st.sampled_from([None, 0, 7]),
    ),
    official=st.sampled_from([None, [0, 1, 2, 3] * 2, [3] * 9]),
    listed=st.booleans(),
    trains=st.booleans(),
)
def test_every_row_is_in_one_part_of_the_split(labels, spec, official, listed, trains):
    train, test = np.array(labels), None if official is None else np.array(official)
    own = np.arange(1, len(labels), 5) if listed and official else None
    unlimited = replace(spec, train_limit=None, test_limit=None)
    try:
        split, whole = (make_split(train, test, its, own, trains) for its in (spec, unlimited))
    except ValueError:
        with pytest.raises(ValueError, match=r"^(validation|test|train_limit|test_limit)="):
            make_split(train, test, spec, own, trains)
        return
    rest = np.concatenate((whole.train, whole.validation))
    rows = rest if official else np.concatenate((rest, whole.test))
    assert sorted(rows.tolist()) == list(range(len(labels)))
    if test is None:
        assert_drawn(train, whole.test, rest, spec.test, spare=1)
    else:
        assert whole.test.tolist() == list(range(len(test)))
    if spec.validation == "all" and not trains:
        assert not len(whole.train)
    elif spec.validation == "own" and own is not None:
        assert whole.validation.tolist() == own.tolist()
    else:
        share = 0.1 if isinstance(spec.validation, str) else spec.validation
        assert_drawn(train, whole.validation, whole.train, share, spare=int(trains))
    assert split.validation.tolist() == whole.validation.tolist()
    judged = train if test is None else test
    for key, of, least in (("train", train, 1), ("test", judged, 0)):
        part, before = getattr(split, key), getattr(whole, key)
        limit = getattr(spec, f"{key}_limit")
        assert {*part} <= {*before}
        assert len(part) == (limit or len(before))
        if limit:
            assert_drawn(of, part, np.setdiff1d(before, part), limit, least)


@pytest.mark.parametrize("official", [True, False])
def test_each_decision_has_draws_of_its_own(official):
    judged = TEST if official else None
    fields: dict[str, Any] = {"validation": 70, "test": 100, "train_limit": 60, "test_limit": 50}
    usual = make_split(LABELS, judged, SplitSpec(**fields))
    redrawn = make_split(LABELS, judged, SplitSpec(**fields, validation_seed=9))
    assert redrawn.validation.tolist() != usual.validation.tolist()
    assert redrawn.test.tolist() == usual.test.tolist()
    other = make_split(LABELS, judged, SplitSpec(**fields, seed=9, validation_seed=0))
    if official:
        assert other.validation.tolist() == usual.validation.tolist()
    assert other.test.tolist() != usual.test.tolist()
    assert other.train.tolist() != usual.train.tolist()
    for part, of in ((usual.train, LABELS), (usual.test, TEST if official else LABELS)):
        share = np.bincount(of) / len(of)
        assert (np.abs(np.bincount(of[part], minlength=4) - share * len(part)) <= 1).all()


def test_other_test_labels_are_limited_as_the_tasks_own():
    for limit in (None, 1, 40, 99, 100):
        spec = SplitSpec(test_limit=limit, seed=3, validation_seed=4)
        np.testing.assert_array_equal(limit_rows(TEST, spec), make_split(LABELS, TEST, spec).test)
    np.testing.assert_array_equal(limit_rows(TEST, SplitSpec(test_limit=101)), np.arange(100))


def test_all_rows_may_be_held_out_where_nothing_is_trained():
    split = make_split(LABELS, TEST, SplitSpec(len(LABELS)), trains=False)
    assert (len(split.train), len(split.validation)) == (0, len(LABELS))
    with pytest.raises(ValueError, match="validation=711 is more than 710 rows"):
        make_split(LABELS, TEST, SplitSpec(711), trains=False)


@pytest.mark.parametrize("seed", [0, MAX_SEED])
def test_the_smallest_and_largest_values_are_allowed(seed):
    spec = SplitSpec(1, 1, train_limit=1, test_limit=1, seed=seed, validation_seed=seed)
    assert SplitSpec(**spec.to_dict()) == spec
    assert SplitSpec(seed=seed).to_dict() == {
        "validation": 0.1,
        "test": 0.25,
        "train_limit": None,
        "test_limit": None,
        "seed": seed,
    }


NEITHER, COUNT, WHOLE, SEED = (
    "is neither a fraction in (0, 1) nor a count",
    "is outside [1, inf) for a count",
    "is not a whole number of at least 1",
    "is outside [0, 2^63)",
)


NEEDED = (
    "rows, which every sweep needs; use a fraction in (0, 1), such as 0.1, or a count of at least 1"
)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"validation": 0.0}, f"validation=0.0 leaves no validation {NEEDED}"),
        ({"validation": 0}, f"validation=0 leaves no validation {NEEDED}"),
        ({"validation": True}, f"validation=True {NEITHER}"),
        ({"validation": float("nan")}, f"validation=nan {NEITHER}"),
        ({"test": -3}, f"test=-3 {COUNT}"),
        ({"test": "half"}, f"test='half' {NEITHER}"),
        ({"train_limit": 0}, f"train_limit=0 {WHOLE}"),
        ({"train_limit": True}, f"train_limit=True {WHOLE}"),
        ({"test_limit": 1.5}, f"test_limit=1.5 {WHOLE}"),
        ({"seed": -1}, f"seed=-1 {SEED}"),
        ({"seed": 2**63}, f"seed={2**63} {SEED}"),
        ({"validation_seed": -1}, f"validation_seed=-1 {SEED}"),
        ({"test": 0, "validation": "all"}, f"test=0 leaves no test {NEEDED}"),
        ({"validation": False}, f"validation=False {NEITHER}"),
        ({"test": 1.0}, f"test=1.0 {NEITHER}"),
    ],
)
def test_wrong_spec(fields, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        SplitSpec(**fields)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"validation": 710},
            "validation=710 leaves nothing of 710 rows; for a fraction "
            "use split: {validation: 0.1}",
        ),
        ({"validation": 708}, "validation=708: expected 0 to 706 rows, got 708 of 710 rows"),
        ({"train_limit": 700}, "train_limit=700 is more than all 639 rows"),
        ({"train_limit": 3}, "train_limit=3: expected 4 to 639 rows, got 3"),
        ({"test_limit": 101}, "test_limit=101 is more than all 100 rows"),
    ],
)
def test_too_few_images(fields, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        make_split(LABELS, TEST, SplitSpec(**fields))


def test_the_most_that_fits_is_allowed():
    assert len(make_split(LABELS, TEST, SplitSpec(validation=706)).train) == 4
    spec = SplitSpec(train_limit=639, test_limit=100)
    split, usual = make_split(LABELS, TEST, spec), make_split(LABELS, TEST, SplitSpec())
    np.testing.assert_array_equal(split.train, usual.train)
    np.testing.assert_array_equal(split.test, usual.test)
    assert np.bincount(LABELS[make_split(LABELS, TEST, SplitSpec(train_limit=4)).train]).max() == 1
