"""Networks as their trainings left them, and what they predict."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from trainables.calibrators import Calibrator, calibrator_from_recipe
from trainables.common.devices import concrete
from trainables.common.stages import GIVEN, ArtifactRef
from trainables.data import Batcher, DatasetInfo, MaskedImages
from trainables.methods import build_method
from trainables.models import PRETRAINED, Network
from trainables.refinements import build_refinement
from trainables.stages.base import Parts, find_artifact
from trainables.stages.engine import EVALUATION_BATCH, every_row, in_batches, place, seeded_network
from trainables.stages.pixels import PixelOutputs, calibrated, outputs_of, predict_pixels
from trainables.store.artifacts import Artifact, ArtifactStore


def extract_features(
    network: Network, batcher: Batcher, kind: str = "none", seed: int = 0
) -> Tensor:
    """Return features (N, D) of one view of all rows, drawn from ``seed``; see ``in_batches``."""
    generator = torch.Generator().manual_seed(seed)
    return in_batches(
        network,
        lambda batch: network.features(batcher.view(batch, kind, generator)),
        every_row(batcher),
    )


# Returns a network's features (N, D) of rows, given its training's key and what computes them.
Keep: TypeAlias = Callable[[str, Callable[[], Tensor]], Tensor]


class LastPass:
    """The features that a network gave last, for every chain that ends in them."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Tensor] = {}

    def keep(self, rows: str, trained: str, compute: Callable[[], Tensor]) -> Tensor:
        """Return the features of ``rows`` by a training, computed unless they are the last."""
        if (rows, trained) not in self._found:
            self._found.clear()  # First, so that memory never holds two.
            self._found[rows, trained] = compute()
        return self._found[rows, trained]


def restore_network(trained: Artifact, info: DatasetInfo, device: torch.device) -> Network:
    """Return the network of a ``train`` artifact as it was trained."""
    request = trained.record["request"]
    method = build_method(request["parts"])
    # Its weights are those of the training, whatever it began with.
    model = request["model"].removesuffix(PRETRAINED)
    network = seeded_network(model, info, request["seed"])
    network = method.scheme.attach(network, info.num_classes)
    network.load_state_dict(trained.tensors("weights"))
    return place(network, device, request["precision"])


def predictor(
    store: ArtifactStore,
    ref: ArtifactRef,
    info: DatasetInfo,
    device: torch.device,
    keep: Keep | None = None,
) -> Callable[[np.ndarray], Tensor]:
    """Return a function from rows as stored, (N, ...), to log-probabilities (N, K), float32, CPU.

    Of images with masks, which need not have them, it is to those of pixels, (N, K, H, W).

    It goes down the chain of stages that ends in an artifact; nothing but the rows is read by it.
    The features of the rows are those that ``keep`` returns, if given; not of images with masks.

    Raises:
        InputError: If an artifact is missing or damaged.
    """
    inputs, device = info.inputs, concrete(device)
    if isinstance(inputs, MaskedImages):
        of_pixels = pixel_outputs(store, ref, info, device)
        return lambda values: predict_pixels(
            of_pixels, inputs.batcher(values, device), info.num_classes
        )
    outputs = _outputs(store, ref, info, device, keep)
    return lambda values: outputs(values).log_softmax(1).float().cpu()


def pixel_outputs(
    store: ArtifactStore, ref: ArtifactRef, info: DatasetInfo, device: torch.device
) -> PixelOutputs:
    """Return a function from images on a device, (N, 3, H, W), to logits of their pixels.

    For the rest see ``predictor``.
    """
    artifact = find_artifact(store, ref)
    before = artifact.upstream
    if before is None:
        return outputs_of(restore_network(artifact, info, device))
    calibrator = calibrator_of(artifact.record["request"]["parts"])
    calibrator.load_state_dict(artifact.tensors("calibrator"))
    return calibrated(pixel_outputs(store, before, info, device), calibrator)


def calibrator_of(parts: Parts) -> Calibrator:
    """Return the calibrator that a request names, not fitted."""
    ((part, parameters),) = parts.items()
    return calibrator_from_recipe(part, parameters)


def network_precision(store: ArtifactStore, ref: ArtifactRef) -> str:
    """Return the precision in which the network of a chain of stages computes."""
    artifact = find_artifact(store, ref)
    if artifact.upstream is not None:
        return network_precision(store, artifact.upstream)
    return str(artifact.record["request"]["precision"])


def _outputs(
    store: ArtifactStore,
    ref: ArtifactRef,
    info: DatasetInfo,
    device: torch.device,
    keep: Keep | None,
) -> Callable[[np.ndarray], Tensor]:
    """Return a function from rows as stored to logits or log-probabilities (N, K)."""
    artifact = find_artifact(store, ref)
    request = artifact.record["request"]
    before = artifact.upstream
    if ref.stage == "calibrate" and before is not None:
        inner = _outputs(store, before, info, device, keep)
        calibrator = calibrator_of(request["parts"])
        calibrator.load_state_dict(artifact.tensors("calibrator"))
        return torch.inference_mode()(lambda values: calibrator(inner(values).cpu()))
    if ref.stage == GIVEN:
        return lambda values: torch.from_numpy(np.array(values, dtype=info.inputs.dtype))
    trained = artifact if before is None else find_artifact(store, before)
    network = restore_network(trained, info, device)

    def features(values: np.ndarray) -> Tensor:
        def compute() -> Tensor:
            return extract_features(network, info.inputs.batcher(values, device))

        return compute() if keep is None else keep(trained.key, compute)

    if ref.stage == "train" or not artifact.record.get("accepted", True):
        return lambda values: in_batches(
            network,
            lambda batch: network.classify(batch.to(device)),
            features(values).split(EVALUATION_BATCH),
        )
    ((name, parameters),) = request["parts"].items()
    head = build_refinement(name, **parameters).build_head(network.feature_dim, info.num_classes)
    head.load_state_dict(artifact.tensors("head"))
    head.eval().to(device)
    return torch.inference_mode()(lambda values: head(features(values).to(device)))
