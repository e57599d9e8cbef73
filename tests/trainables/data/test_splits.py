"""Splits: disjoint, stratified, seeded, the same everywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainables.data import SplitSpec
from trainables.data._split import allot, make_split, shuffled

LABELS = np.repeat(np.arange(4), [400, 200, 100, 10])
TEST = np.repeat(np.arange(4), 25)


def test_parts_are_disjoint_and_complete():
    split = make_split(LABELS, None, SplitSpec())
    rows = np.concatenate([split.train, split.validation, split.test])
    assert sorted(rows.tolist()) == list(range(len(LABELS)))


def test_every_class_keeps_its_share():
    split = make_split(LABELS, None, SplitSpec(validation=0.2, test=0.5))
    share = np.bincount(LABELS) / len(LABELS)
    for rows in (split.train, split.validation, split.test):
        counts = np.bincount(LABELS[rows], minlength=4)
        assert np.abs(counts - share * len(rows)).max() <= 1


@pytest.mark.parametrize(("share", "rows"), [(0.1, 3), (0.25, 8), (0.01, 1)])
def test_a_share_is_rounded_to_whole_rows_and_holds_one_at_least(share: float, rows: int):
    split = make_split(np.arange(31) % 2, TEST, SplitSpec(validation=share))
    assert (len(split.validation), len(split.train)) == (rows, 31 - rows)


def test_official_test_set_stays_whole():
    split = make_split(LABELS, TEST, SplitSpec(test=0.5))
    assert split.test.tolist() == list(range(100))
    assert len(split.train) + len(split.validation) == len(LABELS)


def test_counts_and_limits():
    spec = SplitSpec(validation=50, train_limit=300, test_limit=40)
    split = make_split(LABELS, TEST, spec)
    assert [len(p) for p in (split.train, split.validation, split.test)] == [300, 50, 40]
    assert not set(split.train.tolist()) & set(split.validation.tolist())
    assert np.bincount(TEST[split.test]).tolist() == [10, 10, 10, 10]


def test_train_limit_leaves_the_other_parts_alone():
    small = make_split(LABELS, TEST, SplitSpec(train_limit=20))
    whole = make_split(LABELS, TEST, SplitSpec())
    np.testing.assert_array_equal(small.validation, whole.validation)
    assert set(small.train.tolist()) < set(whole.train.tolist())
    assert (np.bincount(LABELS[small.train], minlength=4) >= 1).all()


def test_seed_decides():
    first, again = (make_split(LABELS, None, SplitSpec(seed=7)) for _ in range(2))
    other = make_split(LABELS, None, SplitSpec(seed=8))
    np.testing.assert_array_equal(first.train, again.train)
    assert set(first.test.tolist()) != set(other.test.tolist())
    assert set(first.validation.tolist()) != set(other.validation.tolist())


def test_the_same_on_every_platform():
    # Made once; a change here changes everybody's splits and needs a new schema number.
    assert shuffled(8, 0, "test").tolist() == [0, 2, 1, 5, 4, 3, 6, 7]
    split = make_split(np.arange(24) % 2, None, SplitSpec(validation=4, test=4, seed=3))
    assert split.test.tolist() == [1, 6, 13, 18]


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
def test_allot(counts: list[int], share: float, least: int, spare: int):
    available = np.array(counts)
    high = np.maximum(available - spare, 0)
    low = np.minimum(least, high)
    size = int(low.sum() + round(share * (high.sum() - low.sum())))
    taken = allot(available, size, least, spare)
    assert taken.sum() == size
    assert ((low <= taken) & (taken <= high)).all()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"validation": 0.0}, "validation=0.0"),
        ({"validation": 1.0}, "validation=1.0"),
        ({"validation": 0}, "validation=0 is outside"),
        ({"validation": True}, "validation=True"),
        ({"validation": float("nan")}, "validation=nan"),
        ({"test": -3}, "test=-3"),
        ({"test": "half"}, "test='half'"),
        ({"train_limit": 0}, "train_limit=0"),
        ({"test_limit": 1.5}, "test_limit=1.5"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**63}, "seed="),
    ],
)
def test_wrong_spec(fields, text: str):
    with pytest.raises(ValueError, match=text):
        SplitSpec(**fields)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"validation": 710}, "validation=710 leaves nothing"),
        ({"validation": 708}, "validation=708: 708 is outside"),
        ({"train_limit": 700}, "train_limit=700 is more than"),
        ({"train_limit": 3}, "train_limit=3: 3 is outside"),
        ({"test_limit": 101}, "test_limit=101 is more than"),
    ],
)
def test_too_few_images(fields, text: str):
    with pytest.raises(ValueError, match=text):
        make_split(LABELS, TEST, SplitSpec(**fields))
