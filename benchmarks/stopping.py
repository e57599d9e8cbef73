"""What stopping trials by their learning curves would save, and how many choices it would change.

    calsweep run benchmarks/search.yaml
    python benchmarks/stopping.py calsweep-search/sweeps/digits34

Replays rules that depend on recorded curves alone, in the order of trials, so that a resumed sweep
would stop the same ones: at each rung, an epoch, a trial ends if its guarded objective there is not
among the best share of the trials that came to that rung before it. Searches are the published
default and then recorded trials in random order.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from orchestrator.cli._console import output
from orchestrator.search.choice import DEFAULT
from orchestrator.storage.events import Epoch
from orchestrator.storage.journal import iterate_events
from orchestrator.storage.ledger import Ledger, Study, Trial
from orchestrator.storage.storage import SweepFolder

OBJECTIVES = ("ece", "nll", "brier")
CURVES = tuple(f"val_{name}" for name in ("acc", *OBJECTIVES))
TOLERANCE = 0.01
TRIALS = 20
SEARCHES = 20  # Of each study, by each rule.

Curves = NDArray[np.float64]


@dataclass(frozen=True)
class Rule:
    """When a trial is stopped.

    Attributes:
        kept: Share of the earlier trials at a rung that it has to be among.
        rungs: Shares of a training at which it is asked.
        start: How many earlier trials have to have come to a rung before anything is stopped.
    """

    kept: float
    rungs: tuple[float, ...]
    start: int

    def ends(self, curves: Curves) -> NDArray[np.int64]:
        """Return how many epochs each trial runs, (T,), of objectives by epoch, (T, E)."""
        epochs = curves.shape[1]
        ends = np.full(len(curves), epochs)
        for number, own in enumerate(curves):
            for rung in (round(share * epochs) for share in self.rungs):
                before = curves[:number, rung - 1][ends[:number] >= rung]
                if len(before) >= self.start and own[rung - 1] > np.quantile(before, self.kept):
                    ends[number] = rung
                    break
        return ends


RULES: Mapping[str, Rule] = {
    "median, each epoch from the fifth": Rule(1 / 2, tuple(e / 30 for e in range(5, 30)), 4),
    "best half at 1/4 and 1/2": Rule(1 / 2, (1 / 4, 1 / 2), 1),
    "best half at 1/2 and 3/4": Rule(1 / 2, (1 / 2, 3 / 4), 1),
    "best third at 1/3 and 2/3": Rule(1 / 3, (1 / 3, 2 / 3), 1),
    "best three quarters at 1/3 and 2/3": Rule(3 / 4, (1 / 3, 2 / 3), 4),
}


def main() -> None:
    """Print a line for each rule and objective."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("sweep", type=Path, help="folder of a sweep that has ended")
    ledger = with_curves(SweepFolder(options.parse_args().sweep.absolute()))
    output().print("| rule | objective | epochs run | choices unchanged | regret |")
    output().print("| --- | --- | ---: | ---: | ---: |")
    for name, rule in RULES.items():
        for objective in OBJECTIVES:
            epochs, same, regret = compare(rule, list(studies(ledger, objective)))
            shares = f"{100 * epochs:.0f} % | {100 * same:.0f} %"
            output().print(f"| {name} | {objective} | {shares} | {regret:.4f} |")


def with_curves(sweep: SweepFolder) -> Ledger:
    """Return what the journal tells, with the curves of every trial."""
    events = iterate_events(sweep.journal), iterate_events(sweep.journal, kinds=(Epoch,))
    return Ledger(chain(*events), curves=CURVES)


def studies(ledger: Ledger, objective: str) -> Iterator[Curves]:
    """Yield the guarded objective of each study of trainings, (T, E), the published default first.

    The guard is the sweep's: plain cross-entropy at the same epoch.
    """
    plain = next(s for s in ledger.studies.values() if s.recipe == "ce").searched[DEFAULT]
    for trials in map(finished, ledger.studies.values()):
        if len(trials) > 1 and trials[0].stage == "train":
            lost = curve(plain, "acc") - TOLERANCE - np.array([curve(t, "acc") for t in trials])
            yield np.array([curve(t, objective) for t in trials]) + np.maximum(0.0, lost)


def finished(study: Study) -> list[Trial]:
    """Return the trials of a search that finished."""
    return [trial for trial in study.searched if trial.status == "finished"]


def curve(trial: Trial, metric: str) -> Curves:
    """Return a validation metric by epoch, (E,)."""
    return np.array(trial.curves[f"val_{metric}"][1])


def compare(rule: Rule, found: list[Curves]) -> tuple[float, float, float]:
    """Return the share of epochs run and of choices unchanged, and what the others lose.

    The loss is the mean of the final objective over that of the search that stops nothing.
    """
    draw = np.random.default_rng(0)
    rows = []
    for curves in found * SEARCHES:
        order = [DEFAULT, *1 + draw.permutation(len(curves) - 1)[: TRIALS - 1]]
        asked = curves[order]
        ends, final = rule.ends(asked), asked[:, -1]
        chosen = np.where(ends == asked.shape[1], final, np.inf).argmin()
        same = chosen == final.argmin()
        rows.append((ends.sum() / asked.size, same, final[chosen] - final.min()))
    epochs, unchanged, regret = np.mean(np.array(rows, dtype=float), axis=0)
    return float(epochs), float(unchanged), float(regret)


if __name__ == "__main__":
    main()
