"""Time and memory of a table and of the best configuration, against all runs in a DataFrame.

The peer is what one would write without this project: ``mlflow.search_runs`` into a DataFrame, then
pandas. Both are asked about the same store in the same run, each in a fresh process, and must give
the same runs and figures. Run it as

    python benchmarks/aggregate.py [--runs 1000,10000,100000]
        [--stores sqlite:100000,http:100000,postgres:10000]
        [--peer sqlite:100000,http:100000,postgres:10000] [--out benchmarks/results/aggregate.md]

where each number is the largest store of that kind, and the largest at which the peer is asked.
PostgreSQL takes part where ``initdb``, ``postgres`` and ``psycopg2`` are found; as root it runs as
``nobody``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from _page import load, options, publish, setting, table
from _servers import mlflow_server, postgres_here, postgres_server

SWEEP, TASK, RECIPE = "bench", "cifar10/resnet50/mukhoti2020", "mbls"
METRICS = ("acc", "ece", "aece", "cwece", "nll")
WARM = 3
SLOW_PEER = 60.0  # Seconds after which the peer is not asked a second time.
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "900",  # A page of the peer's may take minutes.
}
Answer = list[Any]


def our_table(uri: str) -> Answer:
    """Return recipe, task, runs and test figures of every row, as ``calsweep table`` has them."""
    from orchestrator.tracking import study_results

    return sorted(
        [r.recipe, r.task, sorted(r.run_ids), sorted([row[m] for m in METRICS] for row in r.test)]
        for r in study_results(uri, SWEEP)
    )


def our_best(uri: str) -> Answer:
    """Return run and objective of the best configuration, as ``calsweep best`` finds it."""
    from orchestrator.tracking import best_trials

    return [[found.trial.run_id, found.trial.objective] for found in best_trials(uri, TASK, RECIPE)]


def everything(uri: str) -> Any:
    """Return all runs of the store as a DataFrame."""
    import mlflow

    mlflow.set_tracking_uri(uri)
    return mlflow.search_runs(search_all_experiments=True)


def peer_table(frame: Any) -> Answer:
    """Select from the DataFrame what ``our_table`` returns."""
    studies = frame[
        (frame["tags.calsweep.kind"] == "study") & (frame["tags.calsweep.row"] == "true")
    ]
    latest = studies.sort_values("start_time").iloc[-1]["tags.calsweep.sweep_id"]
    used = frame[
        (frame["tags.calsweep.sweep_id"] == latest) & (frame["tags.calsweep.evaluated"] == "true")
    ]
    columns = [f"metrics.test_{metric}" for metric in METRICS]
    return sorted(
        [recipe, task, sorted(rows["run_id"]), sorted(rows[columns].to_numpy().tolist())]
        for (recipe, task), rows in used.groupby(["tags.calsweep.recipe", "tags.calsweep.task"])
    )


def peer_best(frame: Any) -> Answer:
    """Select from the DataFrame what ``our_best`` returns."""
    trials = frame[
        (frame["tags.calsweep.task"] == TASK)
        & (frame["tags.calsweep.recipe"] == RECIPE)
        & (frame["tags.calsweep.role"] == "search")
        & (frame["status"] == "FINISHED")
    ]
    first = trials.sort_values(["metrics.objective", "metrics.trial_number"]).iloc[0]
    return [[first["run_id"], first["metrics.objective"]]]


def timed(action: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """Return wall seconds and seconds of this process's CPU, and what the action returned."""
    wall, work = time.perf_counter(), time.process_time()
    answer = action()
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - work}, answer


def in_this_process(who: str, uri: str) -> dict[str, Any]:
    """Ask once cold and a few times warm; libraries are imported before the clock starts."""
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401

    import orchestrator.tracking.mlflow.server  # noqa: F401

    base = _peak()
    found: dict[str, Any] = {"base_mb": base}
    if who == "peer":
        cold, frame = timed(lambda: everything(uri))
        again = cold["wall"] < SLOW_PEER
        warm = timed(lambda: everything(uri))[0] if again else cold
        for name, select in (("table", peer_table), ("best", peer_best)):
            more, answer = timed(lambda select=select: select(frame))
            found[name] = {
                "cold": {k: cold[k] + more[k] for k in cold},
                "warm": {k: warm[k] + more[k] for k in warm},
                "digest": _digest(answer),
            }
    else:
        ask = {"table": our_table, "best": our_best}[who]
        cold, answer = timed(lambda: ask(uri))
        rounds = [timed(lambda: ask(uri))[0] for _ in range(WARM)]
        warm = min(rounds, key=lambda each: each["wall"])
        found[who] = {"cold": cold, "warm": warm, "digest": _digest(answer)}
    return {**found, "peak_mb": _peak()}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _digest(answer: Answer) -> str:
    return hashlib.sha256(json.dumps(answer).encode()).hexdigest()


def ask(who: str, uri: str) -> dict[str, Any]:
    """Do it in a fresh process."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", who, "--uri", uri],
        capture_output=True,
        text=True,
        env={**os.environ, **QUIET},
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def measure(store: str, runs: int, with_peer: bool, folder: Path) -> dict[str, Any]:
    """Fill a store of one kind and ask both."""
    from _tracking_store import fill, sweep_events

    server = postgres_server(folder) if store == "postgres" else nullcontext("")
    with server as address:
        database = address or f"sqlite:///{folder / 'mlflow.db'}"
        if not (folder / "mlflow.db").exists():
            fill(database, SWEEP, sweep_events(SWEEP, runs, seed=1, code="c0de"))
        if store == "postgres":
            _analyze(database)
        words = ["--backend-store-uri", database, "--workers", "1"]
        front = mlflow_server(folder, *words, **QUIET) if store == "http" else nullcontext()
        with front as served:
            uri = served[0] if served else database
            found = {who: ask(who, uri) for who in ("table", "best")}
            if with_peer:
                found["peer"] = ask("peer", uri)
                for who in ("table", "best"):
                    same = found["peer"][who]["digest"] == found[who][who]["digest"]
                    assert same, f"{store}, {runs} runs: {who} is not what pandas finds"
    return found


def _analyze(database: str) -> None:
    """Let PostgreSQL know its tables, as its own housekeeping does within a minute."""
    from sqlalchemy import create_engine, text

    engine = create_engine(database, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("VACUUM ANALYZE"))
    engine.dispose()


def rows(store: str, runs: int, found: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the report."""
    peer = found.get("peer")
    for who in ("table", "best"):
        ours = found[who]
        cells = [store, f"{runs:,}", who]
        for when in ("cold", "warm"):
            own = ours[who][when]
            theirs = peer[who][when] if peer else None
            cells.append(f"{own['wall']:.3f} ({own['cpu']:.3f})")
            cells.append(f"{theirs['wall']:.1f} ({theirs['cpu']:.1f})" if theirs else "not asked")
            cells.append(f"{theirs['wall'] / own['wall']:.0f}x" if theirs else "–")
        cells.append(f"{ours['peak_mb'] - ours['base_mb']:.0f}")
        cells.append(f"{peer['peak_mb'] - peer['base_mb']:.0f}" if peer else "–")
        yield "| " + " | ".join(cells) + " |"


def report(lines: list[str]) -> str:
    """Return the whole report."""
    heading = [
        "store", "runs", "asked", "cold, s", "peer cold, s", "ratio",
        "warm, s", "peer warm, s", "ratio", "MB", "peer MB",
    ]  # fmt: skip
    return "\n".join(
        [
            "# A table and the best configuration, against all runs in a DataFrame",
            "",
            f"{setting('mlflow', 'sqlalchemy', 'pandas')}. Load averages at the end: {load()}.",
            "One sweep of 20 studies; a run has 20 parameters and 15 validation metrics. Seconds "
            "are wall (CPU of the asking process). Cold is the first question of a fresh process, "
            f"warm the best of {WARM} more (of the peer: the second). MB is what the peak resident "
            "memory grew by. Where both were asked, runs and figures were identical.",
            "",
            *table(heading, (), len(heading)),
            *lines,
            "",
        ]
    )


def main() -> None:
    """Measure and print, or answer for one process."""
    parser = options(__doc__)
    parser.add_argument("--runs", default="1000,10000,100000")
    parser.add_argument("--stores", default="sqlite:100000,http:100000,postgres:10000")
    parser.add_argument("--peer", default="sqlite:100000,http:100000,postgres:10000")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--uri", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.one:
        print(json.dumps(in_this_process(wanted.one, wanted.uri)))
        return
    os.environ.update(QUIET)
    lines: list[str] = []
    for runs in map(int, wanted.runs.split(",")):
        with tempfile.TemporaryDirectory(prefix="aggregate-") as place:
            for store, largest in _sizes(wanted.stores).items():
                if runs > largest:
                    continue
                if store == "postgres" and not postgres_here():
                    lines.append(f"| postgres | {runs:,} | skipped: it is not installed here |")
                    continue
                peer = runs <= _sizes(wanted.peer).get(store, 0)
                lines += rows(store, runs, measure(store, runs, peer, _folder(Path(place), store)))
                print("\n".join(lines[-2:]), flush=True)
    text = report(lines)
    publish(text, wanted.out)


def _sizes(text: str) -> dict[str, int]:
    pairs = (item.split(":") for item in text.split(",") if item)
    return {store: int(largest) for store, largest in pairs}


def _folder(place: Path, store: str) -> Path:
    """SQLite and the server in front of it share a database."""
    folder = place / ("postgres" if store == "postgres" else "sqlite")
    folder.mkdir(exist_ok=True)
    return folder


if __name__ == "__main__":
    main()
