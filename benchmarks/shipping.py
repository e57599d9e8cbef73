"""Seconds a trial to deliver a journal to SQLite, against one request a metric.

Run it as ``python benchmarks/shipping.py [TRIALS]``.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from mlflow import MlflowClient

from orchestrator.storage.events import from_fields
from orchestrator.storage.journal import Journal
from orchestrator.tracking import best_trials, sync
from orchestrator.tracking.mlflow.server import MlflowTracker

EPOCHS, METRICS, PARAMETERS = 5, 15, 20
TASK, RECIPE = "digits/convnet/digits", "mbls"
STUDY = f"{TASK}|{RECIPE}"


def write(path: Path, trials: int) -> None:
    """Write the journal of a sweep of one study."""
    numbers = random.Random(0)

    def metrics() -> dict[str, float]:
        return {f"val_m{i}": numbers.random() for i in range(METRICS)}

    with Journal(path) as journal:

        def write(event: str, **fields: object) -> None:
            journal.append(from_fields({"event": event, **fields}), durable=False)

        provenance = {"git_commit": "0" * 40, "versions": {"torch": "2.11.0"}}
        write("sweep_started", sweep="bench", sweep_id="b", spec={}, provenance=provenance)
        write("study_opened", study=STUDY, task=TASK, recipe=RECIPE, trials=trials, row=True)
        for number in range(trials):
            key = f"{number:032x}"
            configuration = {RECIPE: {f"p{i}": numbers.random() for i in range(PARAMETERS)}}
            write(
                "trial_started",
                study=STUDY,
                number=number,
                key=key,
                role="search",
                seed=0,
                stage="train",
                configuration=configuration,
            )
            for step in range(EPOCHS):
                write("epoch", key=key, step=step, metrics=metrics())
            write("trial_finished", key=key, status="finished", metrics=metrics(), seconds=1.0)
            write("trial_scored", key=key, objective=numbers.random())
        write("study_closed", study=STUDY, chosen="0" * 32, finished=trials, failed=0)
        write("sweep_ended", status="finished")


def one_request_a_metric(uri: str, trials: int) -> None:
    """Log trials of the same size the way a callback in the loop does."""
    client = MlflowClient(uri)
    experiment = client.create_experiment("one by one")
    for _ in range(trials):
        run = client.create_run(experiment).info.run_id
        for i in range(PARAMETERS):
            client.log_param(run, f"p{i}", i)
        for step in range(EPOCHS):
            for i in range(METRICS):
                client.log_metric(run, f"val_m{i}", 0.5, step=step)
        client.set_terminated(run)


def main() -> None:
    """Print the figures."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    with tempfile.TemporaryDirectory() as folder:
        journal, uri = Path(folder) / "journal.jsonl", f"sqlite:///{folder}/mlflow.db"
        write(journal, trials)
        MlflowTracker(uri)
        start = time.perf_counter()
        sync(journal, uri)
        ours = (time.perf_counter() - start) / trials
        start = time.perf_counter()
        best_trials(uri, TASK, RECIPE, sweep="bench")
        query = time.perf_counter() - start
        few = max(1, trials // 50)
        start = time.perf_counter()
        one_request_a_metric(uri, few)
        theirs = (time.perf_counter() - start) / few
    print(f"{trials} trials of {EPOCHS} x {METRICS} metrics and {PARAMETERS} parameters, SQLite")
    print(f"shipper: {ours:.4f} s a trial; one request a metric: {theirs:.4f} s a trial")
    print(f"ratio: {theirs / ours:.1f}; best run of {trials}: {query:.3f} s")


if __name__ == "__main__":
    main()
