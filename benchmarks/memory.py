"""Measures the memory of two concurrent trials on the same images, which should share one copy.

Run ``python benchmarks/memory.py --megabytes 600``. Each trial is a process that opens the prepared
data as a search trial does and trains one epoch with a very cheap loss. The figure is the peak of
the proportional set size (a page that two processes share counts half for each), summed over both
processes, minus the same sum for a hundredth of the images. Libraries are excluded, because other
programs share them. For comparison, two trials read the images into their own memory.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor

from trainables.data import PreparedData, RowArrays, SplitSpec, prepare
from trainables.losses import build_loss
from trainables.methods import TrainingMethod
from trainables.stages.engine import Trainer
from trainables.stages.protocols import Protocol

PIXELS = 32 * 32 * 3
TRIALS = 2
MEGABYTE = 10**6
SAMPLE_SECONDS = 0.3
SMALL = 100
"""The baseline has this many times fewer images."""


class NextToNothing(TrainingMethod):
    """A very cheap method: it reads every image and trains a single layer."""

    def training_loss(
        self, network: Any, images: Tensor, targets: Tensor, indices: Tensor, *drawn: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return a loss that touches images and weights."""
        logits = network.classifier.weight.sum() * images.mean((1, 2, 3))
        return logits.square().mean(), logits


def make_data(folder: Path, megabytes: float) -> PreparedData:
    """Store random images in CIFAR-10's format as a sweep would."""
    generator = np.random.default_rng(0)
    count = int(megabytes * MEGABYTE / PIXELS)
    images = generator.integers(0, 256, (count + 200, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(len(images)) % 10
    path = folder / f"{count}.npz"
    np.savez(
        path, x_train=images[100:], y_train=labels[100:], x_test=images[:100], y_test=labels[:100]
    )
    prepared = prepare(f"npz:{path}", folder, SplitSpec(validation=100), folder / "data")
    path.unlink()
    return prepared


def trial(directory: str, copy: bool) -> None:
    """Run one epoch, print ``done``, and wait until the standard input ends."""
    torch.set_num_threads(1)
    prepared = PreparedData.open(directory)
    train = prepared.search().train
    if copy:
        train = RowArrays(np.array(train.values), np.array(train.labels))
    protocol = Protocol(epochs=1, batch_size=64, lr=1e-6, augmentation="crop-flip")
    method = NextToNothing(build_loss("ce"))
    cpu = torch.device("cpu")
    Trainer("convnet", method, train, prepared.info, protocol, 0, cpu).train_epoch()
    print("done", flush=True)  # The measuring process waits for this line.
    sys.stdin.read()


def peak_memory(prepared: PreparedData, copy: bool, folder: Path) -> int:
    """Return the peak memory of ``TRIALS`` concurrent trials together, in bytes."""
    # Without -B the first process would compile all modules, which takes additional memory.
    command = [sys.executable, "-B", __file__, "--trial", str(prepared.directory)]
    command += ["--copy"] if copy else []
    words = [folder / f"{number}.txt" for number in range(TRIALS)]
    running = []
    for word in words:
        with word.open("w") as stream:
            running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=stream))
    peak = 0
    try:
        while not all(word.read_text() for word in words):
            if any(process.poll() is not None for process in running):
                raise RuntimeError("a trial ended before its epoch did")
            peak = max(peak, _memory(running))
            time.sleep(SAMPLE_SECONDS)
        return max(peak, _memory(running))
    finally:
        for process in running:
            process.communicate()


def _memory(running: list[subprocess.Popen[bytes]]) -> int:
    """Return the memory of all processes at one moment, in bytes.

    The processes are paused. Otherwise a page that the second process maps after the first process
    was read would count one and a half times.
    """
    processes = [psutil.Process(process.pid) for process in running]
    try:
        for process in processes:
            process.suspend()
            while process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
                time.sleep(0.001)
        maps = (part for process in processes for part in process.memory_maps(grouped=True))
        return sum(part.pss for part in maps if ".so" not in Path(part.path).suffixes)
    finally:
        for process in processes:
            process.resume()


def main() -> None:
    """Measure and print one line of JSON, or be one of the trials."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=600, help="10^6 bytes of images")
    parser.add_argument("--copy", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--trial", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trial:
        trial(options.trial, options.copy)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        few, many = (make_data(folder, options.megabytes / part) for part in (SMALL, 1))
        size = sum(entry["bytes"] for file, entry in many.files.items() if "train_images" in file)
        base = peak_memory(few, False, folder)
        shared, own = (peak_memory(many, copy, folder) for copy in (False, True))
    megabytes = {"images": size, "baseline": base, "peak": shared, "peak_of_own": own}
    figures: dict[str, float] = {key: round(v / MEGABYTE, 1) for key, v in megabytes.items()}
    copies = {"copies": shared, "copies_of_own": own}
    figures |= {key: round((peak - base) / size, 2) for key, peak in copies.items()}
    print(json.dumps({"trials": TRIALS, **figures}))


if __name__ == "__main__":
    main()
