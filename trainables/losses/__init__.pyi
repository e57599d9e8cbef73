from ._base import Loss, ReducedLoss, RowLoss, loss_aside
from ._registry import LOSSES, build_loss

__all__ = ["LOSSES", "Loss", "ReducedLoss", "RowLoss", "build_loss", "loss_aside"]
