"""Accuracy on CIFAR against the time that a CPU trains, by the project's own engine.

Run ``OMP_NUM_THREADS=2 python benchmarks/minutes.py --data cifar10.npz --out minutes.md``; shorter
with ``--protocol cifar-fast/0.4``. Every row of the training set but the validation rows is
trained on; accuracy is that of the validation rows, after every epoch.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from _machine import describe
from sklearn.model_selection import train_test_split

from trainables.data import RowArrays, read_source
from trainables.methods import build_method
from trainables.metrics import calibration_report
from trainables.stages.engine import Trainer, predict
from trainables.stages.protocols import named_protocol

HEAD = """\
| epoch | training loss | accuracy % | NLL | ECE % | wall s | CPU s |
| ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""


def main() -> None:
    """Train once; write a row an epoch."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", type=Path, required=True, help="an .npz file")
    options.add_argument("--model", default="whitened-cnn")
    options.add_argument("--protocol", default="cifar-fast")
    options.add_argument("--precision", default="float32")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--out", type=Path, required=True)
    given = options.parse_args()

    source, protocol = read_source(f"npz:{given.data}", "."), named_protocol(given.protocol)
    images, labels = source.train.read(0, len(source.train.labels)), source.train.labels
    train, held = train_test_split(
        np.arange(len(labels)), test_size=protocol.validation, stratify=labels, random_state=0
    )
    rows = RowArrays(images[train], labels[train])
    cpu, targets = torch.device("cpu"), torch.from_numpy(labels[held])
    validation = source.info.inputs.batcher(images[held], cpu)
    method = build_method({"ce": {}})
    trainer = Trainer(
        given.model, method, rows, source.info, protocol, given.seed, cpu, given.precision
    )
    title = (
        f"{given.model} on {len(train):,} images of {given.data.name}, {given.protocol}, "
        f"{given.precision}, seed {given.seed}; {len(held):,} validation images.\n\n{HEAD}\n"
    )
    sys.stdout.write(title)
    lines, wall, busy = [title], 0.0, 0.0
    for epoch in range(protocol.epochs):
        began, spent = time.monotonic(), time.process_time()
        loss = trainer.train_epoch()["train_loss"]
        wall += time.monotonic() - began
        busy += time.process_time() - spent
        found = calibration_report(logits=predict(trainer.network, validation), labels=targets)
        lines.append(
            f"| {epoch + 1} | {loss:.3f} | {100 * found['acc']:.2f} | {found['nll']:.3f} | "
            f"{100 * found['ece']:.2f} | {wall:.0f} | {busy:.0f} |\n"
        )
        sys.stdout.write(lines[-1])
        sys.stdout.flush()
        given.out.write_text("".join(lines), encoding="utf-8")
    end = f"\n{describe(cpu)}\n"
    sys.stdout.write(end)
    given.out.write_text("".join([*lines, end]), encoding="utf-8")


if __name__ == "__main__":
    main()
