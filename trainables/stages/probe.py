"""One training step in its own process, because a bad GPU may hang or break the process."""

import math
import sys

import numpy as np
import torch

from trainables.common.devices import concrete
from trainables.common.errors import TrainingDivergedError
from trainables.common.faults import reason_of
from trainables.data import DatasetInfo, Images, RowArrays
from trainables.methods import build_method
from trainables.stages.engine import Trainer, predict
from trainables.stages.protocols import protocol_from

CLASSES, ROWS, SIDE = 10, 64, 32
MODEL = "resnet20"


def training_step(device: torch.device, precision: str = "bfloat16") -> float:
    """Train a small network for one step, like a trial, and predict; return the loss."""
    images = Images((SIDE, SIDE), 3, (0.5,) * 3, (0.25,) * 3, "crop-flip")
    info = DatasetInfo("probe", tuple(map(str, range(CLASSES))), images, "", "")
    pixels = np.random.default_rng(0).integers(0, 256, (ROWS, SIDE, SIDE, 3), dtype=np.uint8)
    rows = RowArrays(pixels, np.arange(ROWS) % CLASSES)
    protocol = protocol_from({"epochs": 1, "batch_size": ROWS, "lr": 0.1})
    method, device = build_method({"ce": {}}), concrete(device)
    trainer = Trainer(MODEL, method, rows, info, protocol, 0, device, precision)
    loss = trainer.train_epoch()["train_loss"]
    logits = predict(trainer.network, images.batcher(pixels, device))
    if not math.isfinite(float(logits.sum())):
        raise TrainingDivergedError("predictions became NaN or infinite after one step")
    return loss


def main() -> None:
    """Print the loss of the step, or exit with code 1 and a one-line reason."""
    try:
        loss = training_step(torch.device(sys.argv[1]))
    except Exception as error:  # noqa: BLE001 - every failure is reported
        sys.exit(reason_of(error))
    sys.stdout.write(f"{loss}\n")


if __name__ == "__main__":
    main()
