"""Predictions of pixels: the metrics of all pixels, and the logits of a sample."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from trainables.common.errors import TrainingDivergedError
from trainables.data import MaskedBatcher, Pixels, move
from trainables.metrics import StreamedReport
from trainables.models import Network
from trainables.stages.engine import as_written, in_precision

SHOWN = 4  # Largest number of images whose complete maps the evaluation stores.
CERTAIN = 255  # The stored value of a confidence of 1.

# Maps images (N, 3, H, W) to logits or log-probabilities (N, K, H, W).
PixelOutputs: TypeAlias = Callable[[Tensor], Tensor]


def outputs_of(network: Network) -> PixelOutputs:
    """Return a function that computes a network's outputs in evaluation mode."""

    def compute(images: Tensor) -> Tensor:
        network.eval()
        with as_written(), in_precision(network):
            return network(images).float()

    return compute


def calibrated(outputs: PixelOutputs, calibrator: Callable[[Tensor], Tensor]) -> PixelOutputs:
    """Return a function that applies a calibrator of rows (N, K) to each pixel of ``outputs``."""

    def compute(images: Tensor) -> Tensor:
        rows = outputs(images).movedim(1, -1)
        return calibrator(rows.reshape(-1, rows.shape[-1])).view(rows.shape).movedim(-1, 1)

    return compute


@torch.inference_mode()
def score_pixels(
    outputs: PixelOutputs, batcher: MaskedBatcher, pixels: Pixels, num_classes: int
) -> tuple[Tensor, StreamedReport]:
    """Measure all labelled pixels in one pass, with images at their own size.

    Returns:
        The ``outputs`` of ``pixels``, (S, K), float32 on the CPU, and the metrics of all labelled
        pixels.

    Raises:
        TrainingDivergedError: If an output is not finite.
    """
    report, row = StreamedReport(num_classes), 0
    kept: list[Tensor] = []
    for batch in batcher.batches(torch.arange(len(batcher)), batcher.at_once):
        for images, targets in batcher.whole(batch):
            found = outputs(images).movedim(1, -1)
            if not bool(found.isfinite().all()):
                raise TrainingDivergedError("logits of pixels became NaN or infinite")
            labelled = (targets >= 0).nonzero(as_tuple=True)  # Only once: it waits for the device.
            report.add(found[labelled], targets[labelled])
            ends = torch.tensor([row, row := row + len(images)])
            taken = slice(*torch.searchsorted(pixels.rows, ends).tolist())
            drawn = pixels.rows[taken] - int(ends[0]), pixels.places[taken]
            own, places = (move(part, found.device) for part in drawn)
            width = batch.shape[3]
            kept.append(found[own, places // width, places % width])
    return torch.cat(kept).cpu(), report


@torch.inference_mode()
def predict_pixels(outputs: PixelOutputs, batcher: MaskedBatcher, num_classes: int) -> Tensor:
    """Return log-probabilities (N, K, H, W), float32 on the CPU; uniform outside of images."""
    parts = batcher.batches(torch.arange(len(batcher)), batcher.at_once)
    return torch.cat([_whole_batch(outputs, batcher, batch, num_classes) for batch in parts])


def _whole_batch(
    outputs: PixelOutputs, batcher: MaskedBatcher, batch: Tensor, num_classes: int
) -> Tensor:
    parts = []
    for images, _ in batcher.whole(batch):
        found = torch.zeros(len(images), num_classes, *batch.shape[2:])
        found[..., : images.shape[2], : images.shape[3]] = outputs(images).cpu()
        parts.append(found.log_softmax(1))
    return torch.cat(parts)


@torch.inference_mode()
def shown_maps(
    outputs: PixelOutputs, batcher: MaskedBatcher, num_classes: int
) -> dict[str, Tensor]:
    """Return a few evenly spaced images with predictions, for the report; all are uint8.

    Returns:
        ``rows`` (M, H, W, 4), images and masks as stored; ``predicted`` (M, H, W), classes;
        ``confidence`` (M, H, W), 255 for 1.
    """
    order = torch.arange(len(batcher))[:: -(-len(batcher) // SHOWN)]
    (batch,) = batcher.batches(order, SHOWN)
    confidence, predicted = _whole_batch(outputs, batcher, batch, num_classes).exp().max(1)
    return {
        "rows": batch.permute(0, 2, 3, 1).contiguous().cpu(),
        "predicted": predicted.to(torch.uint8),
        "confidence": (CERTAIN * confidence).round().to(torch.uint8),
    }
