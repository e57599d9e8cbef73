import pytest
import torch
from standin_card import CARD, standin_card

from trainables.calibrators import build_calibrator, cross_fit, fold_calibrators, nll_after_ts_terms
from trainables.calibrators._crossfit import stratified_folds
from trainables.common.errors import InputError
from trainables.metrics import calibration_report


class Memory:
    """Remembers the rows it was fitted on and marks those it has seen."""

    def __init__(self) -> None:
        self.seen: set[float] = set()

    def fit(self, logits, labels):
        self.seen = set(logits[:, 0].tolist())
        return self

    def __call__(self, logits):
        marks = [float(value in self.seen) for value in logits[:, 0].tolist()]
        return torch.tensor(marks).unsqueeze(1).expand(-1, logits.shape[1])


def test_no_row_is_scored_by_a_calibrator_that_saw_it():
    logits = torch.arange(60.0).reshape(30, 2)
    labels = torch.arange(30) % 2
    assert not bool(cross_fit(Memory, logits, labels, folds=4, seed=3).any())


def test_a_group_is_in_one_fold():
    logits = torch.arange(60.0).reshape(30, 2)
    labels, groups = torch.arange(30) % 2, torch.arange(30) % 7
    logits[:, 0] = groups.float()  # What the calibrator knows a row by.
    assert not bool(cross_fit(Memory, logits, labels, folds=4, groups=groups).any())
    with pytest.raises(InputError, match="folds=8 needs at least as many groups of rows, got 7"):
        cross_fit(Memory, logits, labels, folds=8, groups=groups)


def test_groups_are_dealt_out_evenly_in_the_order_of_the_seed():
    logits, labels = torch.arange(60.0).reshape(30, 2), torch.arange(30) % 2
    groups = 5 * (torch.arange(30) % 10)  # Ten groups of three rows.

    def dealt(seed: int) -> list[set[int]]:
        folds = fold_calibrators(Memory, logits, labels, 4, seed, groups)
        return [set(groups[held].tolist()) for _, held in folds]

    assert [len(fold) for fold in dealt(0)] == [3, 3, 2, 2]
    assert dealt(0) == dealt(0) != dealt(1)


def test_each_row_gets_the_calibrator_of_the_other_folds(rows):
    logits, labels = rows
    out = cross_fit(lambda: build_calibrator("ts"), logits, labels, folds=3, seed=5)
    fold = stratified_folds(labels, 3, 5)
    for index in range(3):
        held_out = fold == index
        fitted = build_calibrator("ts").fit(logits[~held_out], labels[~held_out])
        assert torch.equal(out[held_out], fitted(logits[held_out]))


def test_a_cross_fit_has_five_folds_and_seed_0_by_default():
    logits, labels = torch.arange(60.0).reshape(30, 2), torch.arange(30) % 2
    found, expected = (
        [held.tolist() for _, held in fold_calibrators(Memory, logits, labels, *asked)]
        for asked in ((), (5, 0))
    )
    assert found == expected
    marks = cross_fit(lambda: build_calibrator("ts"), logits.sin(), labels)
    again = cross_fit(lambda: build_calibrator("ts"), logits.sin(), labels, folds=5, seed=0)
    assert torch.equal(marks, again)


@pytest.mark.parametrize("grouped", [False, True])
def test_a_cross_fit_gives_the_same_on_a_simulated_gpu_and_a_cpu(rows, grouped):
    logits, labels = rows[0][:80], rows[1][:80]
    groups = torch.arange(80) // 4 if grouped else None
    expected = cross_fit(lambda: build_calibrator("ts"), logits, labels, groups=groups)
    with standin_card(free=2**36, total=2**36):
        given = (each.to(CARD) for each in (logits, labels))
        found = cross_fit(lambda: build_calibrator("ts"), *given, groups=groups)
        assert found.device == CARD
        assert torch.equal(found.cpu(), expected)


def test_folds_are_even_within_classes_and_overall():
    labels = torch.tensor([0] * 23 + [1] * 9 + [2] * 2 + [3])
    fold = stratified_folds(labels, 5, 0)
    assert torch.equal(fold, stratified_folds(labels, 5, 0))
    assert not torch.equal(fold, stratified_folds(labels, 5, 1))
    assert torch.bincount(fold, minlength=5).tolist() == [7, 7, 7, 7, 7]
    for label in range(4):
        counts = torch.bincount(fold[labels == label], minlength=5)
        assert int(counts.max() - counts.min()) <= 1


def test_a_cross_fit_works_with_a_class_of_one_row(rows):
    logits, labels = rows
    labels = torch.where(labels == 4, 3, labels)
    labels[0] = 4
    out = cross_fit(lambda: build_calibrator("ts", "cls"), logits, labels)
    assert bool(torch.isfinite(out).all())


@pytest.mark.full
def test_a_cross_fit_may_have_as_many_folds_as_rows(rows):
    logits, labels = rows[0][:6], rows[1][:6]
    out = cross_fit(lambda: build_calibrator("vs"), logits, labels, folds=6)
    for row in range(6):
        others = torch.arange(6) != row
        fitted = build_calibrator("vs").fit(logits[others], labels[others])
        assert torch.equal(out[~others], fitted(logits[~others]))


def test_fewer_rows_than_folds_is_an_error():
    with pytest.raises(InputError, match="folds=5 needs at least as many rows, got 2"):
        cross_fit(Memory, torch.zeros(2, 2), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"folds=1 is outside \[2, inf\)"):
        cross_fit(Memory, torch.zeros(2, 2), torch.tensor([0, 1]), folds=1)


def test_the_temperature_of_a_network_does_not_count():
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(400, 4, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    terms = nll_after_ts_terms(logits, labels)
    assert terms.shape == (400,)
    assert torch.equal(terms, nll_after_ts_terms(logits.double(), labels))
    for scale in (0.2, 5.0):
        torch.testing.assert_close(
            nll_after_ts_terms(scale * logits, labels), terms, rtol=1e-5, atol=0
        )
    # Drawn from these logits, the labels want the temperature 1; the others cost more.
    nll = {s: calibration_report(logits=s * logits, labels=labels)["nll"] for s in (0.2, 1.0, 5.0)}
    assert float(terms.mean()) == pytest.approx(nll[1.0], abs=0.01)
    assert min(nll[0.2], nll[5.0]) > nll[1.0] + 0.05


@pytest.mark.filterwarnings("error::trainables.calibrators.FitWarning")
def test_no_row_is_scored_by_a_temperature_that_has_seen_it():
    logits = torch.tensor([[3.0, 0.0]]).repeat(10, 1)
    labels = torch.zeros(10, dtype=torch.long)
    labels[0] = 1
    # The nine others are right: without the wrong row its fold's temperature ends at the sharpest.
    assert float(nll_after_ts_terms(logits, labels)[0]) > 10
