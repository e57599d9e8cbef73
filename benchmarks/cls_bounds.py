r"""Where alpha and beta of class-wise loss scaling (CLS) end, and what they do to the fit.

The paper finds both by SLSQP from the class losses before and after the first step (eq. 6) and
names no bounds; its released code bounds alpha to [0.1, ln(K) / 2] and beta to [1.5, 2]. Takes real
networks' probabilities, fits a temperature with CLS on some rows of each split, and judges it
on others beside one fitted with cross-entropy:

    OMP_NUM_THREADS=1 python benchmarks/cls_bounds.py ../shared/data/logits --kind probs
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from _machine import describe
from _page import options as options_of
from _page import publish, table
from torch import Tensor

from trainables.calibrators import build_calibrator
from trainables.calibrators.objectives.cls import ALPHA_LOW, BETA_BOUNDS
from trainables.data import read_logits
from trainables.metrics import calibration_report

QUESTION = "What do alpha and beta of class-wise loss scaling come to?"
ROWS, SPLITS = 5000, 5
BOUNDS = ("released", "paper")
SHOWN = ("ece", "cwece", "nll")
CLOSE = 1e-3
"""How near a bound a value lies that counts as on it."""


class Fit(NamedTuple):
    """One temperature fitted with CLS, and what it changes over one fitted with cross-entropy.

    Attributes:
        ends: Where alpha and beta lie: ``low``, ``high`` or ``inside`` their bounds.
        temperature: Over that of cross-entropy.
        changes: Test metric to its difference, below 0 for better; fractions, NLL in nats.
    """

    alpha: float
    beta: float
    ends: tuple[str, str]
    temperature: float
    changes: tuple[float, ...]


def fits(logits: Tensor, labels: Tensor, options: dict[str, str]) -> Iterator[Fit]:
    """Yield a fit for each split; the rows that are left judge."""
    run = options["run"]
    objective = {"bounds": options["bounds"], "normalization": options["normalization"]}
    for split in range(SPLITS):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(split))
        own, rest = order[:ROWS], order[ROWS:]
        plain = build_calibrator("ts", variant=run).fit(logits[own], labels[own])
        scaled = build_calibrator("ts", "cls", objective, variant=run).fit(logits[own], labels[own])
        first, second = (
            calibration_report(logits=found(logits[rest]), labels=labels[rest])
            for found in (plain, scaled)
        )
        told, classes = scaled.summary(), logits.shape[1]
        bounds = ((ALPHA_LOW, math.log(classes) / 2), BETA_BOUNDS)
        if objective["bounds"] == "paper":
            bounds = ((0.0, math.inf), (0.0, math.inf))
        ends = tuple(_end(told[key], *b) for key, b in zip(("alpha", "beta"), bounds, strict=True))
        yield Fit(
            told["alpha"],
            told["beta"],
            (ends[0], ends[1]),
            told["temperature"] / plain.summary()["temperature"],
            tuple(second[name] - first[name] for name in SHOWN),
        )


def _end(value: float, low: float, high: float) -> str:
    return "low" if value - low < CLOSE else "high" if high - value < CLOSE else "inside"


def line(name: str, options: dict[str, str], found: Sequence[Fit]) -> list[str]:
    """Return a line of the table: where the values end, and the mean and range of what changes."""
    places = [
        ", ".join(f"{end} {ends.count(end)}" for end in ("low", "inside", "high") if end in ends)
        for ends in zip(*(fit.ends for fit in found), strict=True)
    ]
    ratio = [fit.temperature for fit in found]
    cells = [
        name,
        *options.values(),
        f"{np.median([fit.alpha for fit in found]):.3g} ({places[0]})",
        f"{np.median([fit.beta for fit in found]):.3g} ({places[1]})",
        f"{np.mean(ratio):.3f} [{min(ratio):.3f}; {max(ratio):.3f}]",
    ]
    for index, metric in enumerate(SHOWN):
        changes = np.array([fit.changes[index] for fit in found])
        factor, digits = (1, 4) if metric == "nll" else (100, 2)
        ends = np.array([changes.min(), changes.mean(), changes.max()]) * factor
        cells.append(f"{ends[1]:+.{digits}f} [{ends[0]:+.{digits}f}; {ends[2]:+.{digits}f}]")
    return cells


def main() -> None:
    """Fit on every file and print the table."""
    parser = options_of(__doc__)
    parser.add_argument("folder", type=Path, help="of .npz files")
    parser.add_argument("--kind", default="logits", choices=["logits", "probs"])
    given = parser.parse_args()
    headings = ["network", "bounds", "normalization", "run", "alpha", "beta", "T over TS's"]
    headings += [f"{name} {'nats' if name == 'nll' else 'points'}" for name in SHOWN]
    rows = []
    for path in sorted(given.folder.glob("*.npz")):
        held = read_logits(path, kind=given.kind).rows
        runs = [(own, norm, "paper") for own in BOUNDS for norm in ("nd", "cm", "mm")]
        for bounds, normalization, run in (*runs, *((own, "nd", "released") for own in BOUNDS)):
            options = {"bounds": bounds, "normalization": normalization, "run": run}
            found = [*fits(held.logits, held.labels, options)]
            rows.append(line(path.stem, options, found))
    shown = table(headings, [row for row in rows if row[2:4] == ["nd", "paper"]], 4)
    place = f"{describe(torch.device('cpu'))}."
    publish(QUESTION, shown, place, given.out, {"": (headings, rows)})


if __name__ == "__main__":
    main()
