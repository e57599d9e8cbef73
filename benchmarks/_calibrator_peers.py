"""Times calibrators of other libraries behind one signature.

This script runs in an environment with these libraries and does not import calsweep, so that their
requirements cannot conflict. ``_calibrator_peers.py versions`` prints the installed versions;
``_calibrator_peers.py fit LOGITS.npz ROWS NAME ...`` fits each calibrator on the first ROWS rows
and maps the other rows.
"""

import argparse
import importlib.metadata
import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

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
    return lambda rows: log(calibrator.transform(softmax(rows)))


def uncertainty_fit(name: str, logits: np.ndarray, labels: np.ndarray) -> Map:
    """Fit one of torch-uncertainty's scalers on logits; the map returns log-probabilities."""
    import torch_uncertainty.post_processing as home

    logging.disable(logging.WARNING)
    own = {} if name == "TemperatureScaler" else {"num_classes": logits.shape[1]}
    scaler = getattr(home, name)(model=None, **own)
    rows = TensorDataset(torch.from_numpy(logits), torch.from_numpy(labels))
    scaler.fit(DataLoader(rows, batch_size=len(rows)), progress=False)
    return lambda rows: scaler(torch.from_numpy(rows)).detach().double().log_softmax(1).numpy()


def probmetrics_fit(name: str, logits: np.ndarray, labels: np.ndarray) -> Map:
    """Fit one of probmetrics' calibrators on probabilities; the map returns log-probabilities."""
    from probmetrics.calibrators import get_calibrator

    calibrator = get_calibrator(name)
    calibrator.fit(softmax(logits), labels)
    return lambda rows: log(calibrator.predict_proba(softmax(rows)))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return float64 probabilities (N, K); in float32, netcal's solver stops at its start."""
    return torch.from_numpy(logits).double().softmax(1).numpy()


def log(probabilities: np.ndarray) -> np.ndarray:
    """Return the logarithms of probabilities, clipped from below at 1e-12."""
    return np.log(np.maximum(np.asarray(probabilities, dtype=np.float64), TINY))


@dataclass(frozen=True)
class Peer:
    """One calibrator of another library.

    Attributes:
        distribution: Name of the package to install.
        family: Name of our calibrator to compare with.
        fit: Function that fits it.
    """

    distribution: str
    family: str
    fit: Fit


NETCAL = {
    "TemperatureScaling": "ts",
    "LogisticCalibration": "vs",
    "IsotonicRegression": "isotonic",
    "HistogramBinning": "histogram-binning",
}
UNCERTAINTY = {
    "TemperatureScaler": "ts",
    "VectorScaler": "vs",
    "MatrixScaler": "ms",
    "DirichletScaler": "dirichlet",
}
PROBMETRICS = {"temp-scaling": "ts", "svs": "svs", "sms": "sms", "isotonic": "isotonic"}
PEERS = {
    **{f"netcal {n}": Peer("netcal", f, partial(netcal_fit, n)) for n, f in NETCAL.items()},
    **{
        f"torch-uncertainty {n}": Peer("torch-uncertainty", f, partial(uncertainty_fit, n))
        for n, f in UNCERTAINTY.items()
    },
    **{
        f"probmetrics {n}": Peer("probmetrics", f, partial(probmetrics_fit, n))
        for n, f in PROBMETRICS.items()
    },
}


def versions() -> dict[str, str]:
    """Return the versions of the installed libraries, including torch."""
    found = {"torch": torch.__version__}
    for distribution in sorted({peer.distribution for peer in PEERS.values()}):
        try:
            found[distribution] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True)
class Cost:
    """The cost of fitting a calibrator and of mapping rows.

    Attributes:
        name: Name of the fitted calibrator.
        fit: CPU seconds for the fit.
        apply: CPU seconds for the mapping.
        waited: Wall-clock seconds for both.
        peak: Peak memory in KiB, minus the memory of the process with its logits.
    """

    name: str
    fit: float
    apply: float
    waited: float
    peak: float


def measure(name: str, fit: Fit, path: Path, rows: int, out: Path | None = None) -> Cost:
    """Fit on the first rows of a file, map the other rows, and write their log-probabilities.

    Args:
        name: Name of the calibrator.
        fit: Function that fits it.
        path: A ``.npz`` file with ``logits`` and ``labels``.
        rows: Number of rows to fit on.
        out: Folder for ``NAME.npy``; None writes nothing.
    """
    with np.load(path) as file:
        logits, labels = file["logits"], file["labels"]
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = memory("VmRSS")
    start, begun = time.process_time(), time.perf_counter()
    transform = fit(logits[:rows], labels[:rows])
    fitted = time.process_time()
    mapped = transform(logits[rows:])
    done, ended = time.process_time(), time.perf_counter()
    cost = Cost(name, fitted - start, done - fitted, ended - begun, memory("VmHWM") - before)
    if out is not None:
        np.save(out / f"{name}.npy", np.asarray(mapped))
    return cost


def memory(field: str, process: str = "self") -> float:
    """Return a field of ``/proc/PROCESS/status`` in KiB."""
    text = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(field)))


def main() -> None:
    """Print the versions, or fit peers and print their costs, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("versions")
    fit = commands.add_parser("fit")
    fit.add_argument("logits", type=Path)
    fit.add_argument("rows", type=int)
    fit.add_argument("names", nargs="+", choices=sorted(PEERS))
    fit.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    if wanted.command == "versions":
        print(json.dumps(versions()))
        return
    for name in wanted.names:
        cost = measure(name, PEERS[name].fit, wanted.logits, wanted.rows, wanted.out)
        print(json.dumps(asdict(cost)), flush=True)


if __name__ == "__main__":
    main()
