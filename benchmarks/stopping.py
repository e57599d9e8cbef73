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
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orchestrator.cli._console import output
from orchestrator.replay import RecordedSweep, read_sweeps
from orchestrator.search.choice import DEFAULT
from orchestrator.storage.storage import SweepFolder

OBJECTIVES = ("ece", "nll", "brier")
TOLERANCE = 0.01
TRIALS = 20
SEARCHES = 20  # Of each study, by each rule.

Curves = NDArray[np.float64]


class Rule(NamedTuple):
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
    folder = SweepFolder(options.parse_args().sweep.absolute())
    (sweep,) = read_sweeps(folder.storage, [folder.name], test=False)
    found = {objective: list(curves(sweep, objective)) for objective in OBJECTIVES}
    output().print("| rule | objective | epochs run | choices unchanged |")
    output().print("| --- | --- | ---: | ---: |")
    for name, rule in RULES.items():
        for objective in OBJECTIVES:
            epochs, same = compare(rule, found[objective])
            output().print(f"| {name} | {objective} | {100 * epochs:.0f} % | {100 * same:.0f} % |")


def curves(sweep: RecordedSweep, objective: str) -> Iterator[Curves]:
    """Yield the guarded objective of each study of trainings, (T, E), the published default first.

    The guard is plain cross-entropy at the same epoch.
    """
    told: dict[str, list[Mapping[str, float]]] = {}
    for trial, _, metrics in sweep.epochs():
        told.setdefault(trial.key, []).append(metrics)
    for study in (study for study in sweep.studies if study.plan.stage == "train"):
        accuracy, values = (
            np.array([[epoch[name] for epoch in told[found.trial.key]] for found in study.trials])
            for name in ("val_acc", f"val_{objective}")
        )
        assert study.plain is not None
        plain = np.array([epoch["val_acc"] for epoch in told[study.plain.trial.key]])
        yield values + np.maximum(0.0, plain - TOLERANCE - accuracy)


def compare(rule: Rule, found: list[Curves]) -> tuple[float, float]:
    """Return the share of epochs run and of choices unchanged."""
    draw = np.random.default_rng(0)
    rows = []
    for study in found * SEARCHES:
        order = [DEFAULT, *1 + draw.permutation(len(study) - 1)[: TRIALS - 1]]
        asked = study[order]
        ends, final = rule.ends(asked), asked[:, -1]
        chosen = np.where(ends == asked.shape[1], final, np.inf).argmin()
        rows.append((ends.sum() / asked.size, chosen == final.argmin()))
    epochs, unchanged = np.mean(np.array(rows, dtype=float), axis=0)
    return float(epochs), float(unchanged)


if __name__ == "__main__":
    main()
