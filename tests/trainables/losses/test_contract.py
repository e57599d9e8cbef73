from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from standin_card import CARD, standin_card
from torch import Tensor

from trainables.contracts import LOSS_CHECKS, NoWaiting, batch, seasoned, settings
from trainables.contracts.losses import (
    CLASSES,
    ROWS,
    has_the_gradient_of_its_value,
    ignores_rows,
    minds_no_order,
    stays_finite,
)
from trainables.losses import LOSSES, build_loss, loss_aside

NAMES = LOSSES.names()
# Their value depends on which row follows which.
ORDERED = {"crl"}
# The default's gradient leaves something out on purpose; checked in another form of the loss.
GRADCHECK = {
    "acls": {"variant": "paper", "margin": 1.0},
    "au": {"histogram": "batch"},
    "cape": {"every": 3},
}
# They ask what became of a sample before.
WITH_HISTORY = {"cape", "crl", "patra"}


def checks() -> Iterator[Any]:
    for name in NAMES:
        for check in LOSS_CHECKS:
            if check is not minds_no_order or name not in ORDERED:
                yield pytest.param(name, check, id=f"{name}-{check.__name__}")


@pytest.mark.full
@pytest.mark.parametrize(("name", "check"), list(checks()))
def test_every_loss_passes_the_checks_of_plugins(name, check):
    check(name, **(GRADCHECK.get(name, {}) if check is has_the_gradient_of_its_value else {}))


@pytest.mark.parametrize("name", NAMES)
def test_any_target_may_be_the_ignored_one(name: str) -> None:
    ignores_rows(name, 3)


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_extreme_logits_stay_finite_in_half_precision(name: str) -> None:
    stays_finite(name, (torch.bfloat16, torch.float16))


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.sum() > 0),
        lambda x: float(x.max()),
        lambda x: x[x > 0],
        lambda x: x[x.argmax()],
        lambda x: x.nonzero(),
        lambda x: x.masked_select(x > 0),
        lambda x: torch.bincount(x.long().clamp(min=0)),
        lambda x: x.index_put((x > 0,), torch.zeros(())),
        lambda x: x.repeat_interleave(x.long().clamp(min=1)),
        lambda x: torch.unique(x),
    ],
)
def test_the_guard_against_waiting_notices(wait: Callable[[Tensor], Any]) -> None:
    with NoWaiting(), pytest.raises(AssertionError, match="waits for the device"):
        wait(torch.arange(-3.0, 3.0))


@pytest.mark.parametrize("name", sorted(set(NAMES) - ORDERED))
def test_pixels_count_as_rows(name: str) -> None:
    logits, targets, indices = batch(rows=24)
    flat = seasoned(name)(logits, targets, indices)
    image_logits = logits.view(2, 3, 4, CLASSES).movedim(-1, 1)
    image = seasoned(name)(image_logits, targets.view(2, 3, 4), torch.arange(2))
    torch.testing.assert_close(image, flat)


@pytest.mark.parametrize("name", sorted(set(NAMES) - WITH_HISTORY))
def test_a_loss_works_without_any_preparation(name: str) -> None:
    logits, targets, _ = batch()
    assert torch.isfinite(build_loss(name)(logits, targets))


def naive_means(values: Tensor, valid: Tensor) -> list[float]:
    pairs = zip(values.flatten(1), valid.flatten(1), strict=True)
    return [float(v[counts].mean()) if counts.any() else 0.0 for v, counts in pairs]


@pytest.mark.parametrize("name", ["cape", "crl", "patra"])
def test_a_history_is_of_each_images_pixels_that_count(name: str) -> None:
    loss = build_loss(name).double()
    loss.prepare(6, CLASSES)
    sure, right, total, average = ([0.0] * 6 for _ in range(4))
    for epoch in range(3):
        loss.start_epoch(epoch)
        for part, places in enumerate(([4, 0, 5], [1, 3])):  # The image at 2 never comes.
            count = len(places)
            logits, targets, _ = batch(scale=1.0, rows=4 * count, classes=3, seed=2 * epoch + part)
            images = logits.view(count, 2, 2, 3).movedim(-1, 1)
            labels = targets.view(count, 2, 2)
            labels[0, 0, 1] = labels[1] = -100
            loss(images, labels, torch.tensor(places))
            largest, predicted = images.softmax(1).max(1)
            valid = labels != -100
            means = naive_means(largest, valid)
            hits = naive_means((predicted == labels).double(), valid)
            for place, mean, hit in zip(places, means, hits, strict=True):
                sure[place], right[place] = mean, hit
                total[place] += hit
                average[place] = 0.7 * average[place] + 0.3 * mean
    kept = {
        "cape": {"confidences": sure, "right": right},
        "crl": {"history.counts": total, "history.epoch": 2},
        "patra": {"average": average, "kept": [True] * 6},
    }[name]
    state = loss.state_dict()
    assert set(state) == set(kept)
    for key, expected in kept.items():
        assert state[key].tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_a_loss_and_its_state_follow_the_batch_to_its_device(name: str) -> None:
    for setting in settings(name):
        expected = seasoned(name, **setting).train()(*batch())
        loss = seasoned(name, **setting).train()
        with standin_card():
            logits, targets, indices = (part.to(CARD) for part in batch())
            found = loss(logits, targets, indices)
            assert found.device == CARD
            torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize("rows", [ROWS - 8, ROWS])
@pytest.mark.parametrize("name", NAMES)
def test_a_loss_that_is_prepared_again_equals_a_new_one(name: str, rows: int) -> None:
    first, second = build_loss(name), build_loss(name)
    first.prepare(rows, CLASSES)
    for epoch in range(21):
        first.start_epoch(epoch)
        first(*batch(rows=rows, seed=50 + epoch))
    for loss in (first, second):
        loss.prepare(ROWS, CLASSES)
        for epoch in range(6):
            loss.start_epoch(epoch)
            loss(*batch(seed=epoch))
    assert torch.equal(first(*batch(seed=99)), second(*batch(seed=99)))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["au", "cape", "crl", "patra"])
def test_a_loss_taken_aside_counts_no_sample(name: str, training: bool) -> None:
    loss = seasoned(name).train(training)
    before = {key: kept.clone() for key, kept in loss.state_dict().items()}
    value = loss_aside(loss, *batch())
    assert loss.training is training
    assert all(torch.equal(before[key], kept) for key, kept in loss.state_dict().items())
    assert torch.equal(value, loss.eval()(*batch()))
    loss.train(training)
    with pytest.raises(ValueError, match="do not belong"):
        loss_aside(loss, torch.zeros(2, 3), torch.zeros(4))
    assert loss.training is training


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *(("au", "bins"), ("cape", "bins"), ("cape", "every"), ("patra", "every")),
        *(("au", "batch_size"), ("aurc", "batch_size")),
    ],
)
def test_counts_of_a_loss_are_at_least_one(name: str, key: str) -> None:
    assert getattr(build_loss(name, **{key: 1}), key) == 1
    with pytest.raises(ValueError, match=rf"^{key}=0 is outside \[1, inf\)$"):
        build_loss(name, **{key: 0})


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(ValueError, match="reduction='none' is not one of mean, sum"):
        build_loss("ce", reduction="none")
