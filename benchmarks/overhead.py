"""Measures the overhead per trial, compared with Ray Tune plus OptunaSearch and MLflow.

Run ``python benchmarks/overhead.py --trials 300 3000 --out benchmarks/results/overhead.md``. Trials
compute nothing; every trial reports five epochs of fifteen metrics and has twenty parameters.
calsweep reports the epochs of two seconds in one call, as usual. The first peer is function
trainables with ``OptunaSearch`` and ``MLflowLoggerCallback`` over an HTTP server, as in tutorials.
It is measured on fewer trials; its cost per trial does not fall with more trials. The second peer
is Tune itself: reused class actors, a random search, no tracking; with a call per epoch, as usual
for Tune's trainables, and with a single call per trial.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median_high
from typing import Any

from _noop_sweep import JUDGED, memory, run_no_ops, stage_report
from _page import Table, options, publish, setting, table
from _servers import mlflow_server

from orchestrator.cluster.local import join_cluster

QUESTION = "How much time does a trial cost that computes nothing?"
REPORTS, METRICS, PARAMETERS = 5, 15, 20
FIGURES = {f"val_m{number}": 0.5 for number in range(METRICS - len(JUDGED))} | JUDGED
SPACE = {f"p{number}": (0.0, 1.0) for number in range(PARAMETERS)}
SWEEP = """
name: overhead-{trials}
tasks: [{{dataset: digits, model: convnet, protocol: digits}}]
recipes: [acls]
search: {{trials: {trials}, sampler: random, accuracy_tolerance: null, parallel_trials: 8}}
tracking: {{uri: "{uri}"}}
storage: {storage}
"""


def no_op_trainable(calls: int) -> type:
    """Return a trainable that reports like ours and computes nothing.

    Args:
        calls: Number of calls in which a trial's epochs are reported.
    """
    from ray import tune

    class NoOpTrainable(tune.Trainable):
        def setup(self, config: dict[str, Any], **_: Any) -> None:
            self.count = 0

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.count = 0
            return True

        def step(self) -> dict[str, Any]:
            steps = [self.count + number for number in range(1, REPORTS // calls + 1)]
            self.count = steps[-1]
            return stage_report(steps, FIGURES, self.count == REPORTS)

    return NoOpTrainable


def ours(folder: Path, trials: int, uri: str) -> dict[str, float]:
    """Run a calsweep sweep of trials that compute nothing, with journal and tracking."""
    latencies: list[float] = []
    done = run_no_ops(
        no_op_trainable(calls=1),
        SWEEP.format(trials=trials, uri=uri, storage=folder),
        lambda state, _: time_answers(state, latencies),
    )
    return {
        "search": done.searched / trials,
        "delivered": done.delivered / trials,
        "memory": done.grown,
        "first": median_high(latencies[: trials // 10]),
        "last": median_high(latencies[-trials // 10 :]),
    }


def time_answers(state: Any, latencies: list[float]) -> None:
    """Append the seconds of each later call of ``state.next_trial`` to ``latencies``."""
    answer = state.next_trial

    def next_trial() -> Any:
        started = time.perf_counter()
        found = answer()
        if found is not None:
            latencies.append(time.perf_counter() - started)
        return found

    state.next_trial = next_trial


def tune_alone(folder: Path, trials: int, calls: int) -> tuple[float, float]:
    """Return the cost of Tune itself: reused actors, random search, no tracking.

    Returns:
        Seconds per trial, and the growth of the driver's memory in megabytes.
    """
    from ray import tune

    before, started = memory(), time.monotonic()
    tune.Tuner(
        tune.with_resources(no_op_trainable(calls), {"cpu": 1}),
        param_space={name: tune.uniform(*bounds) for name, bounds in SPACE.items()},
        tune_config=tune.TuneConfig(
            num_samples=trials, reuse_actors=True, max_concurrent_trials=os.cpu_count()
        ),
        run_config=tune.RunConfig(
            name=f"alone-{trials}-{calls}",
            storage_path=str(folder),
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    ).fit()
    return (time.monotonic() - started) / trials, memory() - before


def tune_in_a_process(trials: int, calls: int) -> tuple[float, float]:
    """Return the result of ``tune_alone`` in a new process."""
    command = [sys.executable, __file__, "--tune-alone", str(trials), str(calls)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds, grown = found.split()[-2:]
    return float(seconds), float(grown)


def glue(folder: Path, trials: int, uri: str) -> float:
    """Return the seconds per trial of function trainables with OptunaSearch and MLflow."""
    from optuna.distributions import FloatDistribution
    from ray import tune
    from ray.air.integrations.mlflow import MLflowLoggerCallback
    from ray.tune.search.optuna import OptunaSearch

    def trial(config: dict[str, Any]) -> None:
        from ray import tune

        for _ in range(REPORTS):
            tune.report(dict(FIGURES))

    space = {name: FloatDistribution(*bounds) for name, bounds in SPACE.items()}
    started = time.monotonic()
    tune.Tuner(
        tune.with_resources(trial, {"cpu": 1}),
        tune_config=tune.TuneConfig(
            num_samples=trials,
            search_alg=OptunaSearch(space=space, metric="val_nll", mode="min"),
            max_concurrent_trials=os.cpu_count(),
        ),
        run_config=tune.RunConfig(
            name="glue",
            storage_path=str(folder),
            verbose=0,
            callbacks=[MLflowLoggerCallback(tracking_uri=uri, experiment_name="glue")],
        ),
    ).fit()
    return (time.monotonic() - started) / trials


def main() -> None:
    """Print the figures."""
    parser = options(__doc__)
    parser.add_argument("--trials", type=int, nargs="+", default=[300, 3000])
    parser.add_argument("--peer-trials", type=int, default=40)
    parser.add_argument("--tune-alone", type=int, nargs=2, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.tune_alone:
        print_tune_alone(*wanted.tune_alone)
        return
    measure(wanted.trials, wanted.peer_trials, wanted.out)


def print_tune_alone(trials: int, calls: int) -> None:
    """Print the outcome of ``tune_alone``."""
    with tempfile.TemporaryDirectory() as name, join_cluster(None):
        warm_up(Path(name))
        seconds, grown = tune_alone(Path(name), trials, calls)
    sys.stdout.write(f"{seconds} {grown}\n")


def measure(sizes: list[int], peer_trials: int, out: Path | None) -> None:
    """Measure calsweep at every size, then both peers, and publish the page."""
    rows = []
    with tempfile.TemporaryDirectory() as name, join_cluster(None):
        folder = Path(name)
        database, served = f"sqlite:///{folder}/server.db", f"{folder}/served"
        words = ["--backend-store-uri", database, "--artifacts-destination", served]
        with mlflow_server(folder, *words, "--workers", "1") as (uri, _):
            warm_up(folder)
            for trials in sizes:
                own = ours(folder, trials, uri)
                alone = {calls: tune_in_a_process(trials, calls) for calls in (REPORTS, 1)}
                rows.append((trials, own, alone))
            peer = glue(folder, peer_trials, uri)
    report(rows, peer, peer_trials, out)


def warm_up(folder: Path) -> None:
    """Start actors and import modules, so that no measurement includes this time."""
    tune_alone(folder, 4, REPORTS)


Row = tuple[int, dict[str, float], dict[int, tuple[float, float]]]


def report(rows: list[Row], peer: float, peer_trials: int, out: Path | None) -> None:
    """Publish the page."""
    columns = ["trials", "calsweep's search", "calsweep until all is in MLflow"]
    columns += [f"function + OptunaSearch + MLflow callback (n = {peer_trials})"]
    columns += ["callback / calsweep"]
    shown = []
    for trials, own, _ in rows:
        seconds = f"{own['search']:.3f}", f"{own['delivered']:.3f}", f"{peer:.2f}"
        shown.append((trials, *seconds, f"{peer / own['delivered']:.1f}x"))
    said = (
        f"A trial has {REPORTS} epochs x {METRICS} metrics and {PARAMETERS} parameters; two run at "
        "once; the MLflow server is reached over HTTP on the same machine. Times are seconds per "
        "trial. calsweep reports short epochs in one call, as in its real trials."
    )
    files = {"-tune": _tune_table(rows), "-growth": _growth_table(rows)}
    place = f"{setting('ray', 'optuna', 'mlflow')}."
    publish(QUESTION, [*table(columns, shown), "", said], place, out, files)


def _tune_table(rows: list[Row]) -> Table:
    columns = ["trials", "calsweep's search", f"Tune alone, {REPORTS} calls a trial"]
    columns += ["Tune alone, one call", f"calsweep : {REPORTS} calls", "calsweep : one call"]
    return columns, [
        [
            trials,
            *(f"{seconds:.3f}" for seconds in (own["search"], *each)),
            *(f"{own['search'] / seconds:.2f}x" for seconds in each),
        ]
        for trials, own, alone in rows
        for each in [(alone[REPORTS][0], alone[1][0])]
    ]


def _growth_table(rows: list[Row]) -> Table:
    columns = ["trials", "calsweep's driver grew, MB", "Tune alone grew, MB"]
    columns += ["a suggestion, ms: first tenth of the trials", "last tenth"]
    return columns, [
        [
            trials,
            *(f"{grown:.0f}" for grown in (own["memory"], alone[REPORTS][1])),
            *(f"{1e3 * own[part]:.1f}" for part in ("first", "last")),
        ]
        for trials, own, alone in rows
    ]


if __name__ == "__main__":
    main()
