"""Measures how much the demo's figures vary from run to run, for ``nightly_verdict.py``.

Run ``python benchmarks/nightly_noise.py --out benchmarks/results/nightly-noise.json``. Every night
is a process that trains the same methods on the handwritten digits with the same seeds.

- *repeats*: the same seeds, machine and settings. Figures of quality are equal to the last digit;
  speed, time and memory vary. Wall-clock time and process time are measured; process time excludes
  other work on the machine.
- *arithmetic*: the same seeds with other instruction sets, which round differently, as another
  library version or machine would. Training may amplify these differences.
- different seeds within one night: the largest variation of figures of quality.
"""

import argparse
import json
import os
import platform
import resource
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from trainables.data import SplitSpec, prepare
from trainables.stages import StageRequest, TaskData, evaluate_on_test, open_stage
from trainables.stages.protocols import named_protocol
from trainables.store.artifacts import Artifact, ArtifactStore

METHODS = ("ce", "ls", "mbls")
QUALITY = ("acc", "ece", "aece", "cwece", "nll")
ARITHMETIC = ("default", "avx2", "avx512")
"""Instruction sets."""
REPEATED = "avx2"
REPEATED_METHODS = ("ce",)
REPEATED_SEEDS = 3


class Night:
    """Trains and calibrates every recipe with each seed.

    Args:
        folder: An empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self._protocol = named_protocol("digits")
        split = SplitSpec(validation=self._protocol.validation or 0.1)
        self._prepared = prepare("digits", folder, split, folder / "data")
        self._data = TaskData(self._prepared, torch.device("cpu"))
        self._store = ArtifactStore(folder / "artifacts")

    def run(self, methods: tuple[str, ...], seeds: int) -> dict[str, Any]:
        """Return values by recipe, metric and seed, and the process's peak memory in bytes."""
        rows: dict[str, list[dict[str, float]]] = {}
        for seed in range(seeds):
            for method in methods:
                clocks = time.perf_counter(), time.process_time()
                trained = self._stage("train", method, seed)
                rows.setdefault(method, []).append(self._row(trained, *clocks))
                fitted = self._stage("calibrate", "ts", seed, trained)
                rows.setdefault(f"{method}+ts", []).append(self._row(fitted, *clocks))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"rows": rows, "peak_memory": peak}

    def _stage(
        self, stage: str, part: str, seed: int, upstream: Artifact | None = None
    ) -> Artifact:
        request = StageRequest(
            stage=stage,
            parts={part: {}},
            data=str(self._prepared.directory),
            model="convnet",
            protocol=self._protocol.to_dict(),
            seed=seed,
            upstream=upstream.key if upstream else None,
            upstream_stage=upstream.stage if upstream else None,
        )
        run = open_stage(request, self._store, self._data)
        metrics: dict[str, float] = {}
        while run.epoch < run.epochs:
            metrics = run.run_epoch()
        return run.finish(metrics)

    def _row(self, artifact: Artifact, wall: float, process: float) -> dict[str, float]:
        times = {
            "wall_seconds": time.perf_counter() - wall,
            "process_seconds": time.process_time() - process,
        }
        metrics, _ = evaluate_on_test(self._store, artifact.ref, self._prepared, self._data.device)
        return {**{name: metrics[name] for name in QUALITY}, **times}


def night(arithmetic: str, methods: tuple[str, ...], seeds: int) -> dict[str, Any]:
    """Run one night in a new process, forked before PyTorch has computed anything."""
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_night, args=(sender, arithmetic, methods, seeds))
    process.start()
    found = receiver.recv()
    process.join()
    return found


def _night(sender: Connection, arithmetic: str, methods: tuple[str, ...], seeds: int) -> None:
    os.environ["ATEN_CPU_CAPABILITY"] = arithmetic
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        sender.send(Night(Path(folder)).run(methods, seeds))


def table(nights: list[dict[str, Any]], metric: str) -> np.ndarray:
    """Return a metric as an array (nights, recipes, seeds)."""
    return np.array(
        [[[row[metric] for row in rows] for rows in one["rows"].values()] for one in nights]
    )


def quality_noise(repeats: list[dict[str, Any]], others: list[dict[str, Any]]) -> dict[str, Any]:
    """Return, by metric, the mean and the standard deviations of one seed's figure per recipe."""
    found = {}
    for metric in QUALITY:
        same, other = table(repeats, metric), table(others, metric)
        found[metric] = {
            "level": other.mean((0, 2)).tolist(),
            "repeats": float(np.ptp(same, axis=0).max()),
            "arithmetic": np.sqrt(other.var(0, ddof=1).mean(1)).tolist(),
            "seeds": np.sqrt(other.var(2, ddof=1).mean(0)).tolist(),
        }
    return found


def cost_noise(repeats: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the log cost of each night's best seed minus the median, by recipe and night."""
    found = {}
    for metric in ("wall_seconds", "process_seconds"):
        values = np.log(table(repeats, metric).min(2))
        found[metric] = (values - np.median(values, axis=0)).T.round(5).tolist()
    memory = np.log([one["peak_memory"] for one in repeats])
    found["peak_memory"] = [(memory - np.median(memory)).round(5).tolist()]
    return found


def summary(
    repeats: list[dict[str, Any]], others: list[dict[str, Any]], load: list[float]
) -> dict[str, Any]:
    """Return the figures of all nights that are written to the file."""
    return {
        "setting": f"{os.cpu_count()} cores, Python {platform.python_version()}, PyTorch "
        f"{torch.__version__}; load average during the repeats {min(load):.1f} to {max(load):.1f}",
        "recipes": list(others[0]["rows"]),
        "seeds": len(others[0]["rows"]["ce"]),
        "nights": {"arithmetic": len(others), "repeats": len(repeats)},
        "quality": quality_noise(repeats, others),
        "cost": cost_noise(repeats),
    }


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=4)
    wanted = parser.parse_args()
    console = Console(stderr=True)
    load, repeats = [], []
    for _ in track(range(wanted.repeats), console=console):
        repeats.append(night(REPEATED, REPEATED_METHODS, REPEATED_SEEDS))
        load.append(os.getloadavg()[0])
    others = [night(s, METHODS, wanted.seeds) for s in track(ARITHMETIC, console=console)]
    found = summary(repeats, others, load)
    text = json.dumps(found, indent=1) + "\n"
    wanted.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
