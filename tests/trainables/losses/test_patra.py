from typing import Any

import pytest
import torch
from torch import Tensor

from trainables.losses import Loss, build_loss

LOGITS = torch.tensor([[2, 0], [0.1, 0], [1, 0], [3, 0], [0.5, 0]], dtype=torch.float64)
TARGETS = torch.tensor([0, 0, 1, 0, 1])
PLACES = torch.arange(5)


def fresh(**options: Any) -> Loss:
    loss = build_loss("patra", **options)
    loss.prepare(len(LOGITS), 2)
    loss.start_epoch(0)
    return loss


def counted(loss: Loss) -> list[int]:
    """Return the rows that have a gradient."""
    logits = LOGITS.clone().requires_grad_()
    loss.eval()(logits, TARGETS, PLACES).backward()
    loss.train()
    assert logits.grad is not None
    return logits.grad.abs().sum(dim=1).nonzero().flatten().tolist()


@pytest.mark.parametrize("pruned", [0.4, 0.5])  # Of five, and of three, whole ones.
def test_patra_prunes_the_least_confident_remaining_rows_for_good(pruned: float) -> None:
    loss = fresh(pruned=pruned, every=2)
    remaining = []
    for epoch in range(5):
        loss.start_epoch(epoch)
        loss(LOGITS, TARGETS, PLACES)
        remaining.append(counted(loss))
    assert remaining == [[0, 1, 2, 3, 4]] * 2 + [[0, 2, 3]] * 2 + [[0, 3]]


@pytest.mark.parametrize(("momentum", "first"), [(0.3, [0, 1, 2, 3]), (0.9, [1, 2, 3, 4])])
def test_confidence_is_averaged_over_epochs(momentum: float, first: list[int]) -> None:
    loss = fresh(pruned=0.2, every=2, momentum=momentum)
    loss(LOGITS, TARGETS, PLACES)
    loss.start_epoch(1)
    swapped = LOGITS[[1, 0, 2, 3, 4]]
    loss(swapped * 0.9, TARGETS, PLACES)
    assert expected_least(momentum) == (set(range(5)) - set(first)).pop()
    loss.start_epoch(2)
    assert counted(loss) == first


def expected_least(momentum: float) -> int:
    def sure(logits: Tensor) -> Tensor:
        return logits.softmax(dim=1).amax(dim=1)

    swapped = LOGITS[[1, 0, 2, 3, 4]] * 0.9
    average = (1 - momentum) * momentum * sure(LOGITS) + momentum * sure(swapped)
    return int(average.argmin())


def test_the_pixels_of_a_pruned_image_go_with_it() -> None:
    loss = build_loss("patra", pruned=0.4, every=1)
    loss.prepare(3, 2)
    logits = torch.cat([LOGITS, LOGITS[:1]]).view(3, 1, 2, 2).movedim(-1, 1).clone()
    targets, places = torch.cat([TARGETS, TARGETS[:1]]).view(3, 1, 2), torch.tensor([2, 0, 1])
    loss(logits, targets, places)
    loss.start_epoch(1)
    # Mean confidences are 0.70, 0.84 and 0.75.
    loss(logits.requires_grad_(), targets, places).backward()
    assert logits.grad is not None
    moved = logits.grad.abs().sum(dim=1).gt(0).view(3, 2)
    assert moved.tolist() == [[False, False], [True, True], [True, True]]


def test_pruned_rows_survive_saving() -> None:
    first, second = fresh(pruned=0.4, every=1), fresh(pruned=0.4, every=1)
    first(LOGITS, TARGETS, PLACES)
    first.start_epoch(1)
    second.load_state_dict(first.state_dict())
    assert counted(second) == counted(first) == [0, 2, 3]
