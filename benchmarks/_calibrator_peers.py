"""Calibrators of other libraries behind one signature; a library that is missing is left out."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

Map = Callable[[np.ndarray], np.ndarray]
Fit = Callable[[np.ndarray, np.ndarray], Map]
TINY = 1e-12


def netcal_fit(name: str, logits: np.ndarray, labels: np.ndarray) -> Map:
    """Fit one of netcal's classes on probabilities; the map returns log-probabilities."""
    import netcal.binning
    import netcal.scaling

    home = netcal.scaling if hasattr(netcal.scaling, name) else netcal.binning
    calibrator = getattr(home, name)()
    calibrator.fit(softmax(logits), labels)

    def transform(rows: np.ndarray) -> np.ndarray:
        probs = np.asarray(calibrator.transform(softmax(rows)), dtype=np.float64)
        return np.log(np.maximum(probs, TINY))

    return transform


def uncertainty_fit(name: str, logits: np.ndarray, labels: np.ndarray) -> Map:
    """Fit one of torch-uncertainty's scalers on logits; the map returns log-probabilities."""
    import torch_uncertainty.post_processing as home

    logging.disable(logging.WARNING)
    own = {} if name == "TemperatureScaler" else {"num_classes": logits.shape[1]}
    scaler = getattr(home, name)(model=None, **own)
    rows = TensorDataset(torch.from_numpy(logits), torch.from_numpy(labels))
    scaler.fit(DataLoader(rows, batch_size=len(rows)), progress=False)

    def transform(rows: np.ndarray) -> np.ndarray:
        return scaler(torch.from_numpy(rows)).detach().double().log_softmax(1).numpy()

    return transform


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return float64 probabilities (N, K): in float32, netcal's solver stops where it starts."""
    return torch.from_numpy(logits).double().softmax(1).numpy()


PEERS: dict[str, tuple[str, str, Fit]] = {
    "netcal TemperatureScaling": ("netcal", "ts", partial(netcal_fit, "TemperatureScaling")),
    "netcal LogisticCalibration": ("netcal", "vs", partial(netcal_fit, "LogisticCalibration")),
    "netcal IsotonicRegression": ("netcal", "isotonic", partial(netcal_fit, "IsotonicRegression")),
    "netcal HistogramBinning": (
        "netcal",
        "histogram-binning",
        partial(netcal_fit, "HistogramBinning"),
    ),
    "torch-uncertainty TemperatureScaler": (
        "torch-uncertainty",
        "ts",
        partial(uncertainty_fit, "TemperatureScaler"),
    ),
    "torch-uncertainty VectorScaler": (
        "torch-uncertainty",
        "vs",
        partial(uncertainty_fit, "VectorScaler"),
    ),
    "torch-uncertainty MatrixScaler": (
        "torch-uncertainty",
        "ms",
        partial(uncertainty_fit, "MatrixScaler"),
    ),
    "torch-uncertainty DirichletScaler": (
        "torch-uncertainty",
        "dirichlet",
        partial(uncertainty_fit, "DirichletScaler"),
    ),
}
"""By name: distribution, the calibrator of ours it is compared with, and how it is fitted."""


def versions() -> dict[str, str | None]:
    """Return the version of each peer, None where it is not installed."""
    found: dict[str, str | None] = {}
    for distribution in sorted({entry[0] for entry in PEERS.values()}):
        try:
            found[distribution] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            found[distribution] = None
    return found
