"""Seconds that our engine takes for an epoch of texts, beside a plain PyTorch loop.

Run ``python benchmarks/training_texts.py --out docs/results/training-texts.md``; it needs no data.
"""

from __future__ import annotations

import numpy as np
import torch
from _machine import describe
from _page import options, publish
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from training import Side, ratios, spread

from trainables.data import DatasetInfo, RowArrays, Texts
from trainables.methods import build_method
from trainables.stages.engine import Trainer, seeded_network
from trainables.stages.protocols import Protocol, protocol_from

CLASSES = 20
MODEL = "gpool-cnn"
EXPLANATION = """\
Both train `gpool-cnn` from the same weights with cross-entropy and Adam on the same random texts,
in batches of 128. The plain loop is a DataLoader over tensors, float32 throughout, a loss read back
every step. They run in turn, an epoch each a round, after one that does not count: medians of the
rounds with half the interquartile range; *ratio* is the median over the rounds of engine / loop,
with the smallest and largest.
"""


def random_texts(count: int, length: int, words: int) -> tuple[RowArrays, DatasetInfo]:
    """Return texts without padding, the most expensive ones, and their facts."""
    generator = np.random.default_rng(0)
    values = generator.integers(1, words + 1, (count, length), dtype=np.int32)
    labels = np.arange(count, dtype=np.int64) % CLASSES
    inputs = Texts(words, length, tuple(map(str, range(words))))
    classes = tuple(map(str, range(CLASSES)))
    return RowArrays(values, labels), DatasetInfo("random", classes, inputs, "", "")


class PlainLoop:
    """Trains with cross-entropy as anyone would write it down."""

    def __init__(self, rows: RowArrays, info: DatasetInfo, protocol: Protocol) -> None:
        self._network = seeded_network(MODEL, info, 0).train()
        self._optimizer = torch.optim.Adam(self._network.parameters(), lr=protocol.lr)
        data = TensorDataset(torch.from_numpy(rows.values), torch.from_numpy(rows.labels))
        self._loader = DataLoader(data, protocol.batch_size, shuffle=True)

    def train_epoch(self) -> float:
        """Run one epoch; return the sum of its batches' losses."""
        total = 0.0
        for texts, labels in self._loader:
            loss = F.cross_entropy(self._network(texts), labels)
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            total += loss.item()
        return total


def seconds(rates: list[float], count: int) -> str:
    """Return the median of an epoch's seconds with half the interquartile range."""
    low, middle, high = np.quantile([count / rate for rate in rates], [0.25, 0.5, 0.75])
    return f"{middle:.1f} ± {(high - low) / 2:.1f}"


def main() -> None:
    """Measure, print the figures and write them to a file if asked to."""
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--length", type=int, default=500)
    parser.add_argument("--words", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    wanted = parser.parse_args()
    torch.set_num_threads(wanted.threads)
    device = torch.device("cpu")
    rows, info = random_texts(wanted.texts, wanted.length, wanted.words)
    protocol = protocol_from("mbls2022-text")
    trainer = Trainer(MODEL, build_method({"ce": {}}), rows, info, protocol, 0, device)
    sides = [
        Side("our engine", trainer.train_epoch, wanted.texts),
        Side("plain loop", PlainLoop(rows, info, protocol).train_epoch, wanted.texts),
    ]
    for side in sides:
        side.epoch()
    for _ in range(wanted.rounds):
        for side in sides:
            side.measure(device)
    lines = [
        "| | seconds an epoch | texts a second | by CPU time |",
        "| --- | ---: | ---: | ---: |",
    ]
    for side in sides:
        rates = f"{spread(side.wall)} | {spread(side.cpu)}"
        lines.append(f"| {side.name} | {seconds(side.wall, wanted.texts)} | {rates} |")
    mine, theirs = sides
    lines.append(f"| ratio | | {ratios(mine.wall, theirs.wall)} | {ratios(mine.cpu, theirs.cpu)} |")
    title = f"{wanted.texts:,} texts of {wanted.length} words: n = {wanted.rounds} rounds"
    table = "\n".join(lines)
    text = f"# Training on texts\n\n{EXPLANATION}\n## {title}\n\n{table}\n\n{describe(device)}\n"
    publish(text, wanted.out)


if __name__ == "__main__":
    main()
