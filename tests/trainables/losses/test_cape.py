import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.losses import Loss, build_loss

# Confidences rise from row to row; the first three of six are wrong.
LOGITS = torch.tensor([[0.1, 0], [0.5, 0], [1, 0], [1.5, 0], [2, 0], [3, 0]], dtype=torch.float64)
TARGETS = torch.tensor([1, 1, 1, 0, 0, 0])
ORDER = torch.tensor([3, 0, 5, 1, 4, 2])


def trained(bins: int, epochs: int, every: int = 1) -> Loss:
    """Return the loss at the start of epoch ``epochs``, the batches in another order each time."""
    loss = build_loss("cape", bins=bins, every=every)
    loss.prepare(len(LOGITS), 2)
    for epoch in range(epochs):
        loss.start_epoch(epoch)
        for part in ORDER.roll(epoch).split(4):
            loss(LOGITS[part], TARGETS[part], part)
    loss.start_epoch(epochs)
    return loss


def towards(goals: list[float]) -> Tensor:
    confidence = LOGITS.softmax(dim=1)[:, 0]
    return F.binary_cross_entropy(confidence, torch.tensor(goals, dtype=torch.float64))


@pytest.mark.parametrize(
    ("bins", "goals"), [(1, [0.5] * 6), (2, [0, 0, 0, 1, 1, 1]), (3, [0, 0, 0.5, 0.5, 1, 1])]
)
def test_goals_are_the_shares_of_bins_of_equal_size(bins: int, goals: list[float]) -> None:
    loss = trained(bins, epochs=1)(LOGITS, TARGETS, torch.arange(6))
    torch.testing.assert_close(loss, towards(goals))


def test_goals_are_those_of_the_epoch_before() -> None:
    loss = trained(bins=1, epochs=1)
    first = loss(LOGITS, 1 - TARGETS, torch.arange(6))
    torch.testing.assert_close(first, towards([0.5] * 6))
    for epoch in (2, 3):
        loss.start_epoch(epoch)
        value = loss(LOGITS, torch.zeros(6, dtype=torch.int64), torch.arange(6))
    torch.testing.assert_close(value, towards([1.0] * 6))


def test_the_first_of_equally_confident_samples_are_in_the_lower_bins() -> None:
    loss = build_loss("cape", bins=20, every=1)
    loss.prepare(100, 2)
    logits = torch.tensor([[1.0, 0.0]]).double().repeat(100, 1)
    places = torch.arange(100)
    targets = places // 5 % 2  # By bins: right, wrong, right ...
    loss.start_epoch(0)
    loss(logits, targets, places)
    loss.start_epoch(1)
    confidence = logits.softmax(dim=1)[0, 0]
    for some in places.split(5):
        expected = -(1 - confidence if targets[some[0]] else confidence).log()
        torch.testing.assert_close(loss(logits[some], targets[some], some), expected)


def test_the_first_of_several_largest_classes_is_the_predicted_one() -> None:
    logits = torch.tensor([[1.0, 1, 0], [2, 0, 2], [0, 0, 0], [3, 1, 1]], dtype=torch.float64)
    targets = torch.tensor([1, 0, 2, 0])
    loss = build_loss("cape", bins=4, every=1)
    loss.prepare(4, 3)
    for epoch in (0, 1):
        loss.start_epoch(epoch)
        value = loss(logits, targets, torch.arange(4))
    confidence, goals = logits.softmax(dim=1).amax(dim=1), torch.tensor([0.0, 1, 0, 1]).double()
    torch.testing.assert_close(value, F.binary_cross_entropy(confidence, goals))


@pytest.mark.parametrize("every", [1, 2, 5])
def test_one_epoch_of_calibration_follows_every_few_of_cross_entropy(every: int) -> None:
    loss = build_loss("cape", bins=1, every=every)
    loss.prepare(len(LOGITS), 2)
    plain = F.cross_entropy(LOGITS, TARGETS)
    calibrating = []
    for epoch in range(12):
        loss.start_epoch(epoch)
        if not torch.equal(loss(LOGITS, TARGETS, torch.arange(6)), plain):
            calibrating.append(epoch)
    assert calibrating == list(range(every, 12, every + 1))


def test_the_pixels_of_an_image_share_its_goal() -> None:
    loss = build_loss("cape", bins=2, every=1)
    loss.prepare(2, 2)
    images, targets = LOGITS.view(2, 3, 1, 2).movedim(-1, 1), TARGETS.view(2, 3, 1)
    for epoch in (0, 1):
        loss.start_epoch(epoch)
        value = loss(images, targets, torch.tensor([1, 0]))
    torch.testing.assert_close(value, towards([0, 0, 0, 1, 1, 1]))
