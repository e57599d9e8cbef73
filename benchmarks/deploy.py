r"""Tests whether rankings of calibrators differ between ECE, AUGRC and sizes of conformal sets.

    OMP_NUM_THREADS=1 python benchmarks/deploy.py ../shared/data/logits DEMO_STORAGE \
        --out benchmarks/results/deploy.md

Each calibrator is fitted with its defaults on half of the fitting rows of each network, conformal
thresholds on the other half. Every pair of calibrators is tested on the same test rows, by the
column's terms per row, with Holm's correction over the pairs of a column and network. A pair is
reversed if two columns prefer different calibrators and both differences are significant.
"""

import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import scipy
import torch
from _page import options, publish, setting, table
from torch import Tensor

from orchestrator.statistics import KeptPredictions
from orchestrator.statistics._ranks import holm
from orchestrator.storage.ledger import read_ledger
from orchestrator.storage.results import results_of
from trainables.calibrators import build_calibrator, parse_calibrator
from trainables.data import read_logits
from trainables.metrics import METRICS, column_report, evaluation_report, row_terms, rows_or_value
from trainables.store.artifacts import ArtifactStore

CALIBRATORS = """given ts ts-ls ts-fl ts-cls ets pts cts svs sms vs ms dirichlet beta platt
quadratic isotonic cir histogram-binning venn-abers spline kernel meta-mis mcct pnorm smart"""
RECIPES = CALIBRATORS.split()
TESTED = ("nll", "ece", "augrc", "aps_90_size")
NAMED = (("ece", "augrc"), ("ece", "aps_90_size"))
SHOWN = ("nll", "brier", "ece", "signed_ece", "aurc", "augrc", "risk_80")
SHOWN += ("aps_90_size", "lac_90_size")
SHOWN_OF_ROWS = METRICS.columns(SHOWN)
QUESTION = "Do ECE, AUGRC and the size of conformal sets rank calibrators differently?"
LEVEL = 0.05
DETECTED = 0.8
Rows = tuple[Tensor, Tensor]


def networks(logits: Path, demo: Path) -> Iterator[tuple[str, Rows, Rows]]:
    """Yield the name, the fitting rows and the test rows of each network."""
    for path in sorted(logits.glob("*.npz")):
        rows = read_logits(path, "probs").rows
        half = len(rows) // 2
        fit = rows.logits[:half], rows.labels[:half]
        yield path.stem, fit, (rows.logits[half:], rows.labels[half:])
    kept = KeptPredictions(ArtifactStore(demo / "artifacts"))
    for result in results_of(read_ledger(demo / "sweeps" / "demo" / "journal.jsonl")):
        if "+" not in result.recipe:
            key = result.predictions[0]
            rows = kept.read(key)
            assert rows is not None
            test = rows["log_probs"], rows["labels"]
            yield f"digits {result.recipe}", kept.validation(key), test


def calibrated(fit: Rows, test: Rows) -> Iterator[tuple[str, Rows, Rows]]:
    """Yield each calibrator's log-probabilities for the rows of thresholds and the test rows."""
    half = len(fit[1]) // 2
    for recipe in RECIPES:
        apply = lambda rows: rows.float().log_softmax(1)  # noqa: E731
        if recipe != "given":
            name, objective = parse_calibrator(recipe)
            apply = build_calibrator(name, objective).fit(fit[0][:half], fit[1][:half])
        yield recipe, (apply(fit[0][half:]), fit[1][half:]), (apply(test[0]), test[1])


class Column:
    """One column of all calibrators of a network.

    Attributes:
        values: Values of R recipes, (R,).
        told: (R, R): the sign of each significant difference, else 0.
        detectable: Median over pairs of the smallest true difference that 80 % of tests find.
    """

    def __init__(self, terms: Tensor) -> None:
        self.values = terms.mean(1).numpy()
        count, rows = terms.shape
        pairs = np.array(list(combinations(range(count), 2)))
        centred = terms - terms.mean(1, keepdim=True)
        cov = (centred @ centred.T / (rows - 1)).numpy()
        one, other = pairs.T
        error = np.sqrt(
            np.maximum(cov[one, one] + cov[other, other] - 2 * cov[one, other], 0) / rows
        )
        gap = self.values[one] - self.values[other]
        size = np.divide(gap, error, out=np.zeros_like(gap), where=error > 1e-12)
        apart = holm(2 * scipy.stats.norm.sf(np.abs(size)))[1] <= LEVEL
        self.told = np.zeros((count, count))
        self.told[one, other] = np.sign(gap) * apart
        reach = scipy.stats.norm.isf([LEVEL / 2 / len(pairs), 1 - DETECTED]).sum()
        self.detectable = float(np.median(error) * reach)


def terms_of(metric: str, test: Rows, conformal: Rows) -> Tensor:
    """Return the terms (N,) of N test rows whose mean is the column's metric."""
    if METRICS[metric].source == "rows":
        return rows_or_value(metric, *test, conformal)
    return row_terms(metric, *test)


def reversals(first: Column, second: Column) -> tuple[int, int, int, list[str]]:
    """Count the pairs of calibrators that two columns order differently.

    Returns:
        Number of reversed pairs, number of pairs that differ significantly in both columns, number
        of reversed pairs among the significant ones, and the names of these.
    """
    pairs = list(combinations(range(len(RECIPES)), 2))
    signs = [np.sign(c.values[:, None] - c.values[None]) for c in (first, second)]
    seen = sum(bool(signs[0][p] * signs[1][p] < 0) for p in pairs)
    both = [p for p in pairs if first.told[p] and second.told[p]]
    turned = [p for p in both if first.told[p] != second.told[p]]
    names = [f"{RECIPES[a]}, {RECIPES[b]}" for a, b in turned]
    return seen, len(both), len(turned), names


def main() -> None:
    """Print the page."""
    parser = options(__doc__)
    parser.add_argument("logits", type=Path, help="folder of .npz files of netcal's examples")
    parser.add_argument("demo", type=Path, help="storage of `calsweep demo`")
    args = parser.parse_args()
    torch.manual_seed(0)
    start, lines, reversed_lines, ranks = time.perf_counter(), [], [], []
    for name, fit, test in networks(args.logits, args.demo):
        own = list(calibrated(fit, test))
        for recipe, conformal, rows in own:
            figures = {**evaluation_report(*rows), **column_report(*rows, SHOWN_OF_ROWS, conformal)}
            lines.append([name, recipe, *(f"{figures[metric]:.5f}" for metric in SHOWN)])
        found = {
            metric: Column(torch.stack([terms_of(metric, rows, fitted) for _, fitted, rows in own]))
            for metric in TESTED
        }
        best = [RECIPES[int(column.values.argmin())] for column in found.values()]
        sizes = [f"{column.detectable:.4f}" for column in found.values()]
        ranks.append([name, len(test[1]), *best, *sizes])
        for one, other in combinations(TESTED, 2):
            rho = scipy.stats.spearmanr(found[one].values, found[other].values).statistic
            seen, both, turned, names = reversals(found[one], found[other])
            text = [name, one, other, f"{rho:.2f}", seen, both, turned, "; ".join(names[:2])]
            reversed_lines.append(text)
    pairs = len(RECIPES) * (len(RECIPES) - 1) // 2
    columns = ("network", "column", "other", "Spearman", "seen", "told apart", "reverse", "such as")
    best = ("network", "test rows", *(f"best by {m}" for m in TESTED))
    best += tuple(f"detectable {m}" for m in TESTED)
    text = [
        *table(columns, [line for line in reversed_lines if tuple(line[1:3]) in NAMED], 3),
        "",
        f"Of {pairs} pairs of {len(RECIPES)} calibrators.",
        "",
        *table(best, ranks),
    ]
    seconds = f"{time.perf_counter() - start:.0f} s"
    place = f"{setting('torch', 'scipy')}; {seconds}."
    files = {"": (("network", "recipe", *SHOWN), lines), "-pairs": (columns, reversed_lines)}
    publish(QUESTION, text, place, args.out, files)


if __name__ == "__main__":
    main()
