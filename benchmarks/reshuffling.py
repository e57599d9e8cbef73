"""Whether a search chooses better if every configuration trains and validates on rows of its own.

Nagler et al. (2405.15393) report that new splits per configuration make a search overfit its
validation rows less. Here each configuration of a grid is trained on each of ``SPLITS`` splits of
the same rows, and searches are replayed over these trainings: one that keeps a split, and one that
draws a split for each configuration. A choice is judged by its metric on test rows, which no split
holds, averaged over all splits.

    python benchmarks/reshuffling.py --storage FOLDER --out docs/results/reshuffling.md

Sweeps that are in the storage are not run again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from _machine import describe
from _page import options, publish
from numpy.typing import NDArray

from orchestrator.replay.recorded import RecordedStudy, read_sweeps
from orchestrator.running.run import run_sweep
from orchestrator.storage.storage import Storage
from orchestrator.sweep.spec import parse_sweep
from trainables.stages import objective_terms

SWEEP = """
name: split-{split}
tasks:
  - dataset: digits-noisy
    model: convnet
    protocol: {{base: digits, name: digits-12, epochs: 12, batch_size: 32, lr: 0.1}}
    split: {{test: 1200, validation: 150, vary: true}}
recipes: [ce, ls, fl, mbls, mixup, mdca]
search:
  sampler: grid
  accuracy_tolerance: null
  spaces:
    ls: {{smoothing: {{choices: [0.02, 0.05, 0.08, 0.12, 0.16, 0.2, 0.25, 0.3]}}}}
    fl: {{gamma: {{choices: [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0]}}}}
    mbls:
      margin: {{choices: [1.0, 3.0, 6.0, 10.0]}}
      weight: {{choices: [0.02, 0.05, 0.1, 0.2]}}
    mixup: {{alpha: {{choices: [0.1, 0.2, 0.4, 0.6, 0.8, 1.0]}}}}
    mdca: {{weight: {{choices: [0.5, 1.0, 2.0, 4.0, 8.0, 16.0]}}}}
seeds: [{split}]
executor: local
tracking: {{uri: "folder:{storage}/runs"}}
storage: {storage}
"""
SPLITS = 26
SEARCHES = 20_000
BOOTSTRAPS = 1_000
OBJECTIVES = ("nll", "ece")
Table = NDArray[np.float64]


@dataclass(frozen=True)
class Figures:
    """What the configurations of one study came to, by configuration and split, (C, S).

    Attributes:
        validation: The objective on the validation rows of the split.
        test: The same metric on the test rows.
    """

    method: str
    validation: Table
    test: Table

    def on(self, splits: NDArray[np.int64]) -> Figures:
        """Return the figures of some splits, perhaps of one more than once."""
        return Figures(self.method, self.validation[:, splits], self.test[:, splits])

    def searched(self, draws: np.random.Generator, searches: int) -> tuple[float, float]:
        """Return the mean loss of the choices of searches with one split, and with many."""
        losses = self.test.mean(1)
        kept = losses[self.validation.argmin(0)].mean()
        configurations, splits = self.validation.shape
        columns = draws.integers(splits, size=(searches, configurations))
        seen = self.validation[np.arange(configurations), columns]
        return float(kept), float(losses[seen.argmin(1)].mean())


def figures(storage: Storage, objective: str) -> list[Figures]:
    """Return the figures of all studies, one a method."""
    names = [f"split-{split}" for split in range(SPLITS)]
    sweeps = read_sweeps(storage, names)
    found = []
    for studies in zip(*(sweep.studies for sweep in sweeps), strict=True):
        columns = [by_configuration(study, objective) for study in studies]
        rows = [name for name in columns[0] if all(name in column for column in columns)]
        validation, test = (
            np.array([[column[row][part] for column in columns] for row in rows]) for part in (0, 1)
        )
        found.append(Figures(studies[0].plan.recipe.name, validation, test))
    return found


def by_configuration(study: RecordedStudy, objective: str) -> dict[str, tuple[float, float]]:
    """Return the objective on validation and test rows, by configuration."""
    return {
        str(one.trial.configuration): (
            float(objective_terms(objective, one.logits, study.labels).mean()),
            float(objective_terms(objective, one.outputs, study.test_labels).mean()),
        )
        for one in study.trials
    }


def lines(found: list[Figures]) -> Iterator[str]:
    """Yield a row for every method, and one for all: regrets, and their ratio with its interval."""
    draws = np.random.default_rng(0)
    totals = np.zeros((BOOTSTRAPS + 1, 2))
    for one in found:
        best = one.test.mean(1).min()
        samples = [np.arange(SPLITS)]
        samples += [draws.integers(SPLITS, size=SPLITS) for _ in range(BOOTSTRAPS)]
        regrets = []
        for number, splits in enumerate(samples):
            own = one.on(splits)
            lowest = own.test.mean(1).min()
            searches = SEARCHES if number == 0 else 500
            regrets.append([loss - lowest for loss in own.searched(draws, searches)])
        totals += np.array(regrets) / best
        kept, drawn = regrets[0]
        yield row(one.method, len(one.test), kept / best, drawn / best)
    low, high = np.quantile(totals[1:, 1] / totals[1:, 0], (0.025, 0.975))
    whole = row("all", sum(len(one.test) for one in found), *(totals[0] / len(found)))
    yield f"{whole[:-2]} ({low:.2f} to {high:.2f}) |"


def row(method: str, configurations: int, kept: float, drawn: float) -> str:
    """Return a line of the table."""
    ratio = drawn / kept
    return (
        f"| {method} | {configurations} | {100 * kept:.2f} % | {100 * drawn:.2f} % | {ratio:.2f} |"
    )


def main() -> None:
    """Run what is missing, and print the tables."""
    parser = options(__doc__)
    parser.add_argument("--storage", type=Path, required=True)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    storage = Storage(str(wanted.storage))
    for split in range(SPLITS):
        if not (wanted.storage / "sweeps" / f"split-{split}" / "table.csv").exists():
            text = SWEEP.format(split=split, storage=wanted.storage.absolute())
            run_sweep(parse_sweep(text, f"split-{split}"))
            sys.stderr.write(f"{split + 1} of {SPLITS} splits\n")
    text = [f"{describe(torch.device('cpu'))}; {SPLITS} splits, {SEARCHES} searches each.\n"]
    for objective in OBJECTIVES:
        text += [
            f"\n## {objective}\n",
            "| method | configurations | one split | a split each | ratio |",
        ]
        text += ["| --- | ---: | ---: | ---: | ---: |", *lines(figures(storage, objective))]
    publish("\n".join(text) + "\n", wanted.out)


if __name__ == "__main__":
    main()
