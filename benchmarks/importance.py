"""How near evaluators of a parameter's importance come to the truth, and what they take.

    python benchmarks/importance.py --out page.md

Four parameters in [0, 1] move a pretended objective by known shares of its variance, the last by
none; noise has 0.3 of its deviation. Trials are drawn at random, or suggested by Optuna's TPE.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import optuna
from _page import load, options, publish, setting, table
from optuna.importance import (
    FanovaImportanceEvaluator,
    PedAnovaImportanceEvaluator,
    get_param_importances,
)

COLUMNS = ("sampler", "trials", "evaluator", "error of a share", "first is first", "ms of CPU")
SHOWN = (10, 40)
WEIGHTS = np.array([1.0, 0.5, 0.25, 0.0])
EVALUATORS: dict[str, Callable[[], object]] = {
    "fANOVA, 64 trees": lambda: FanovaImportanceEvaluator(seed=0),
    "fANOVA, 16 trees": lambda: FanovaImportanceEvaluator(n_trees=16, seed=0),
    "PED-ANOVA, best tenth": lambda: PedAnovaImportanceEvaluator(),
    "PED-ANOVA, best half": lambda: PedAnovaImportanceEvaluator(target_quantile=0.5),
}


def searched(trials: int, sampler: str, seed: int) -> tuple[optuna.Study, np.ndarray]:
    """Return a study of the pretended objective, and each parameter's true share, (4,)."""
    draw = np.random.default_rng(seed)
    best = draw.uniform(0.2, 0.8, len(WEIGHTS))

    def parts(places: np.ndarray) -> np.ndarray:
        distance = np.abs(places - best)
        return WEIGHTS * (distance if seed % 2 else 2 * distance**2)

    everywhere = parts(draw.uniform(size=(20_000, len(WEIGHTS))))
    noise = 0.3 * everywhere.sum(1).std()

    def objective(trial: optuna.Trial) -> float:
        places = [trial.suggest_float(f"p{number}", 0, 1) for number in range(len(WEIGHTS))]
        return float(parts(np.array(places)).sum() + draw.normal(0, noise))

    made = optuna.samplers.TPESampler if sampler == "tpe" else optuna.samplers.RandomSampler
    study = optuna.create_study(sampler=made(seed=seed))
    study.optimize(objective, n_trials=trials)
    shares = everywhere.var(0)
    return study, shares / shares.sum()


def measure(wanted: argparse.Namespace) -> list[Sequence[object]]:
    """Return the rows: one a sampler, number of trials and evaluator."""
    rows: list[Sequence[object]] = []
    for sampler in ("random", "tpe"):
        for trials in wanted.trials:
            studies = [searched(trials, sampler, seed) for seed in range(wanted.studies)]
            for name, evaluator in EVALUATORS.items():
                began = time.process_time()
                found = [get_param_importances(s, evaluator=evaluator()) for s, _ in studies]
                spent = 1e3 * (time.process_time() - began) / len(studies)
                given = np.array([[own[f"p{n}"] for n in range(len(WEIGHTS))] for own in found])
                true = np.array([shares for _, shares in studies])
                first = (given.argmax(1) == true.argmax(1)).mean()
                error = np.abs(given - true).mean()
                rows.append((sampler, trials, name, f"{error:.3f}", f"{first:.0%}", f"{spent:.0f}"))
    return rows


def main() -> None:
    """Print the page."""
    parser = options(__doc__)
    parser.add_argument("--trials", type=int, nargs="+", default=[10, 20, 40, 80])
    parser.add_argument("--studies", type=int, default=100)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    wanted = parser.parse_args()
    rows = measure(wanted)
    shown = table(COLUMNS, [row for row in rows if row[1] in SHOWN], 3)
    place = f"{wanted.studies} studies each; {setting('optuna')}; load average {load()}."
    publish(
        "How many trees does a report's forest need?",
        shown,
        place,
        wanted.out,
        {"": (COLUMNS, rows)},
    )


if __name__ == "__main__":
    main()
