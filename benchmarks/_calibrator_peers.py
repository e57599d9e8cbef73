"""Calibrators of other libraries behind one signature, and how any of them is timed.

It runs in the environment of those libraries and imports nothing of calsweep, so that neither
side's requirements bind the other. ``_calibrator_peers.py versions`` prints the installed versions;
``_calibrator_peers.py fit LOGITS.npz ROWS NAME ...`` fits each on the first ROWS rows and maps the
others.
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
    """Return float64 probabilities (N, K): in float32, netcal's solver stops where it starts."""
    return torch.from_numpy(logits).double().softmax(1).numpy()


def log(probabilities: np.ndarray) -> np.ndarray:
    """Return the logarithms of probabilities, which are cut off at 1e-12."""
    return np.log(np.maximum(np.asarray(probabilities, dtype=np.float64), TINY))


@dataclass(frozen=True)
class Peer:
    """One calibrator of another library.

    Attributes:
        distribution: The distribution to install.
        family: The calibrator of ours that it is compared with.
        fit: How it is fitted.
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
    """Return the version of each library that is installed, torch included."""
    found = {"torch": torch.__version__}
    for distribution in sorted({peer.distribution for peer in PEERS.values()}):
        try:
            found[distribution] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True)
class Cost:
    """What a fit and a mapping cost.

    Attributes:
        name: Of the fitted calibrator.
        fit: Seconds of the processor for the fit.
        apply: Seconds of the processor for the mapping.
        waited: Seconds that passed in both.
        peak: Most memory above the process with its logits, in KiB.
    """

    name: str
    fit: float
    apply: float
    waited: float
    peak: float


def measure(name: str, fit: Fit, path: Path, rows: int, out: Path | None = None) -> Cost:
    """Fit on the first rows of a file, map the others, and write their log-probabilities.

    Args:
        name: Of the calibrator to fit.
        fit: How.
        path: A ``.npz`` of ``logits`` and ``labels``.
        rows: How many rows the fit sees.
        out: Folder of the ``NAME.npy`` to write; None writes nothing.
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
    """Return a field of a process's status, in KiB."""
    text = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(field)))


def main() -> None:
    """Print the versions, or fit peers and print what each costs, as JSON."""
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
