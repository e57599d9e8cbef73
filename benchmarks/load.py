"""Two hundred trials that report every second to one driver, which tracks on a team's server.

Run it as

    python benchmarks/load.py [--trials 200] [--reports 300] [--mlflow PATH] [--out FILE]

It starts PostgreSQL and MLflow with logins as deploy/README.md says, Ray on this machine, and one
sweep through the driver's own path whose trials compute nothing. ``--mlflow`` names the ``mlflow``
of an installation with ``mlflow[auth]``. Afterwards every metric that was sent is looked for on the
server. Logins are tried first, by the commands that a user types.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from _forked_workers import forked_workers
from _load_watch import SENT, Watch
from _noop_sweep import JUDGED, NoOpSweep, run_no_ops, stage_report
from _page import load, options, publish, setting
from _servers import postgres_here
from _team_server import TeamServer, team_server

from orchestrator.cluster.local import join_cluster
from orchestrator.storage.journal import read_events

METRICS = 15
NICENESS = 10
"""Of the trials, which would run on other machines."""

PAUSE = 10.0
"""Seconds between two reports of a trial that waits for the others."""
TRAVEL = (
    "## How reports travel",
    "",
    "A trial reports when an epoch ends and two seconds have passed since its last report "
    "(with ASHA: after every epoch), so that 200 real trials report at most half as often as "
    "these. With each report the driver writes one line an epoch into the journal: key, step, "
    "time, all metrics; it does not wait for the disk, since a resumed trial would say it "
    "again. At a trial's end it writes the last metrics, status, cost and artifact, forces "
    "all of it to the disk, then the score. The shipper reads the journal once a second, at "
    "most 4 MB at a time, and sends what has come for a run as one request (of at most 1,000 "
    "values), four runs at once. What it reads counts as delivered when the server has "
    "confirmed all of it. The further it is behind, the more goes into a request.",
)
SWEEP = """
name: load
tasks: [{{dataset: digits, model: convnet, protocol: digits}}]
recipes: [acls]
search: {{trials: {trials}, sampler: random, accuracy_tolerance: null, parallel_trials: {trials}}}
tracking: {{uri: "{uri}"}}
storage: {storage}
"""
TEAM_SWEEP = """
name: {name}
tasks: [{{dataset: digits, model: convnet, protocol: {{base: digits, epochs: 2}}}}]
recipes: [ce, ce+ts]
search: {{trials: 2}}
tracking: {{uri: "{uri}"}}
storage: {storage}
"""
TEAM = ("ada", "emmy")
Points = Counter[tuple[str, int, float]]


def expected(number: int, step: int) -> dict[str, float]:
    """Return what a trial reports, as numbers that are the same in every representation."""
    numbered = {f"val_m{k}": number + step / 1024 + k / 16 for k in range(METRICS - 3)}
    return {**numbered, **JUDGED}


def no_op_trainable(folder: Path, trials: int, reports: int) -> type:
    """Return a trainable that reports once a second, from the moment at which all are there."""
    from ray import tune

    go, sent, metrics = str(folder / "go"), SENT, expected

    class ReportsEverySecond(tune.Trainable):
        def setup(self, config: dict[str, Any], **_: Any) -> None:
            self.number, self.count, self.tick = config["job"].number, 0, 0.0
            self.mark = f"{folder}/ready-{self.number}"
            Path(self.mark).touch()

        def step(self) -> dict[str, Any]:
            if not self.tick and not self.begun():
                return stage_report([], JUDGED, False)
            self.tick += 1.0
            time.sleep(max(0.0, self.tick - time.monotonic()))
            self.count += 1
            figures = {**metrics(self.number, self.count), sent: time.time()}
            done = self.count == reports
            if done:
                Path(self.mark).write_text(str(self.count), encoding="utf-8")
            return stage_report([self.count], figures, done)

        def begun(self) -> bool:
            end = time.monotonic() + PAUSE
            while time.monotonic() < end:
                if os.path.exists(go):
                    # Seconds begin at another moment in each trial.
                    self.tick = time.monotonic() + self.number / trials
                    return True
                time.sleep(0.5)
            return False

    return ReportsEverySecond


@dataclass
class Outcome:
    """What the run left behind.

    Attributes:
        sweep: Times and the driver's growth.
        watch: The records made meanwhile.
        received: Reports that the driver took.
    """

    sweep: NoOpSweep
    watch: Watch
    received: int


def run_load(folder: Path, server: TeamServer, trials: int, reports: int) -> Outcome:
    """Run the sweep with its trials side by side."""
    watch = Watch(trials, reports, folder, server)
    sweep = SWEEP.format(trials=trials, uri=server.uri, storage=folder / "storage")
    # More logical than real processors: the trials sleep nearly all of the time.
    settings = {"RAY_OVERRIDE_RESOURCES": json.dumps({"CPU": trials}), "OPENBLAS_NUM_THREADS": "1"}
    os.environ.update({**settings, "RAY_worker_niceness": str(NICENESS)})
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, server.login()))
        with forked_workers(folder):
            stack.enter_context(join_cluster(None))
        received = stack.enter_context(_reports_counted())
        done = run_no_ops(no_op_trainable(folder, trials, reports), sweep, watch.start)
        watch.stop()
    return Outcome(done, watch, sum(received))


@contextmanager
def _reports_counted() -> Iterator[list[int]]:
    """Yield the numbers of epochs in each report that the driver's loop takes."""
    from orchestrator.loop import Loop

    taken: list[int] = []
    take = Loop.take

    def counted(self: Loop, job: Any, report: Any) -> None:
        taken.append(len(report.history))
        take(self, job, report)

    with mock.patch.object(Loop, "take", counted):
        yield taken


@dataclass
class Readback:
    """The contents of the journal and of the server.

    Attributes:
        sent: Reports by the trials' own count.
        journaled: Steps in the journal.
        runs: Runs of trials on the server, by status.
        keys: Trials on the server.
        points: Values of the trials' metrics on the server.
        missing: Values that were sent and are not there.
        extra: Values that nobody sent, or that are there twice.
        by_client: Values that MLflow's client gave back for one trial.
        driver_lags: Seconds between report and journal.
        server_lags: Seconds between journal and server, by the minute.
        alive: Trials whose report came, for each second.
        bytes: Of the journal.
    """

    sent: int
    journaled: int
    runs: dict[str, int]
    keys: int
    points: int
    missing: int
    extra: int
    by_client: int
    driver_lags: list[float]
    server_lags: dict[int, list[float]]
    alive: list[int]
    bytes: int


def read_back(outcome: Outcome, server: TeamServer, folder: Path, reports: int) -> Readback:
    """Look for everything that was sent."""
    from mlflow import MlflowClient

    events = read_events(outcome.sweep.journal)[0]
    numbers = {e.key: e.number for e in events if e.event == "trial_started"}
    epochs = defaultdict(list)
    for event in events:
        if event.event == "epoch":
            epochs[event.key].append(event)
    with mock.patch.dict(os.environ, server.login()):
        client = MlflowClient(server.uri)
        experiment = client.get_experiment_by_name("load").experiment_id
        found = client.search_runs([experiment], "tags.`calsweep.kind` = 'trial'", max_results=5000)
        history = client.get_metric_history(found[0].info.run_id, SENT)
    runs = {run.info.run_id: run.data.tags["calsweep.key"] for run in found}
    statuses = [run.info.status for run in found]
    points, missing, extra = 0, 0, 0
    with closing(server.connect()) as database:
        for run_id, key in runs.items():
            wanted = _wanted(numbers[key], epochs[key], reports)
            there = _stored(database, run_id)
            points += there.total()
            missing += (wanted - there).total()
            extra += (there - wanted).total()
    return Readback(
        sum(int(mark.read_text() or 0) for mark in folder.glob("ready-*")),
        sum(map(len, epochs.values())),
        {status: statuses.count(status) for status in set(statuses)},
        len(set(runs.values())),
        points,
        missing,
        extra,
        len(history),
        [e.time / 1e3 - e.metrics[SENT] for found in epochs.values() for e in found],
        _server_lags(outcome.watch, epochs, runs),
        _alive(outcome.watch, epochs.values()),
        outcome.sweep.journal.stat().st_size,
    )


def _wanted(number: int, epochs: list[dict[str, Any]], reports: int) -> Points:
    """Return what must be there: all that the trial computes, and when the journal says it did."""
    times = {epoch["step"]: epoch["metrics"][SENT] for epoch in epochs}
    return Counter(
        (name, step, value)
        for step in range(1, reports + 1)
        for name, value in {**expected(number, step), SENT: times.get(step, -1.0)}.items()
    )


def _stored(database: Any, run_id: str) -> Points:
    with database.cursor() as cursor:
        cursor.execute(
            "SELECT key, step, value FROM metrics WHERE run_uuid = %s AND key LIKE 'val%%'",
            (run_id,),
        )
        return Counter(cursor.fetchall())


def _server_lags(
    watch: Watch, epochs: dict[str, list[dict[str, Any]]], runs: dict[str, str]
) -> dict[int, list[float]]:
    """Return how long each step in the journal was not on the server yet, by the minute."""
    lags = defaultdict(list)
    for run_id, key in runs.items():
        waiting = sorted(epochs[key], key=lambda epoch: epoch["step"], reverse=True)
        for seen, reached in watch.reached:
            while waiting and waiting[-1]["step"] <= reached.get(run_id, 0):
                written = waiting.pop()["time"] / 1e3
                lags[int((written - watch.began) // 60)].append(seen - written)
        if waiting:
            raise RuntimeError(f"steps of run {run_id} were never seen on the server")
    return dict(lags)


def _alive(watch: Watch, epochs: Iterable[list[dict[str, Any]]]) -> list[int]:
    """Return of how many trials a report was journaled in each second of the measurement."""
    keys: dict[int, set[str]] = defaultdict(set)
    for found in epochs:
        for epoch in found:
            keys[int(epoch["time"] / 1e3 - watch.began)].add(epoch["key"])
    return [len(keys[second]) for second in range(2, int(watch.seconds) - 1)]


def spread(values: list[float]) -> str:
    """Return median, 95th percentile and maximum in seconds."""
    ordered = sorted(values)
    high = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return f"{statistics.median(ordered):.2f} | {high:.2f} | {ordered[-1]:.2f}"


def lines_of(outcome: Outcome, found: Readback, server: TeamServer, reports: int) -> list[str]:
    """Return the measurements as Markdown."""
    watch, sweep = outcome.watch, outcome.sweep
    seconds = watch.seconds
    asked, errors = server.requests(watch.began, watch.began + seconds)
    last = watch.reached[-1][0] - watch.began
    statuses = ", ".join(f"{count} {status}" for status, count in found.runs.items())
    lost = found.missing + found.extra + abs(found.sent - found.journaled)
    at_server = [lag for lags in found.server_lags.values() for lag in lags]
    first, after = watch.driver_memory
    return [
        f"- Trials at once: {watch.workers[0]} processes of trials halfway, with "
        f"{watch.workers[1] / 1e3:.1f} GB together (shared pages counted once); in each second "
        f"reports of {min(found.alive)} to {max(found.alive)} trials were journaled "
        f"(median {statistics.median(found.alive):.0f}).",
        f"- Reports: {found.sent:,} sent by the trials' own count, {outcome.received:,} received "
        f"by the driver, {found.journaled:,} in the journal ({found.bytes / 1e6:.0f} MB).",
        f"- On the server: {found.keys} trials, {sum(found.runs.values())} runs ({statuses}); "
        f"{found.points:,} values of {METRICS} metrics x {reports} steps, {found.missing} missing, "
        f"{found.extra} that nobody sent or that are there twice; MLflow's client gave back "
        f"{found.by_client} steps of a trial.",
        f"- **{'Nothing lost.' if lost == 0 else f'LOST OR DOUBLE: {lost}.'}**",
        f"- Requests to the server: {asked.total() / seconds:.1f} a second ("
        + ", ".join(f"{name} {count}" for name, count in asked.most_common(4))
        + f"), {errors} answered with an error.",
        f"- The driver grew from {first:.0f} to {after:.0f} MB in the {seconds:.0f} s.",
        f"- All was delivered {last - seconds:.0f} s after the {seconds:.0f} s; the whole sweep, "
        f"with starting and ending {watch.trials} processes, took {sweep.delivered:.0f} s.",
        "",
        "| lag, s | median | 95 % | most |",
        "| --- | --- | --- | --- |",
        f"| report to driver and journal | {spread(found.driver_lags)} |",
        f"| journal to server (sampled every second) | {spread(at_server)} |",
        *(
            f"| ... written in minute {minute + 1} | {spread(lags)} |"
            for minute, lags in sorted(found.server_lags.items())
        ),
        "",
        "| processor time | cores |",
        "| --- | --- |",
        *(f"| {who} | {share:.2f} |" for who, share in watch.shares.items()),
    ]


def try_logins(folder: Path, server: TeamServer) -> list[str]:
    """Try both, and two sweeps at once; return the results as Markdown."""
    storage = folder / "team"
    for name in TEAM:
        text = TEAM_SWEEP.format(name=name, uri=server.uri, storage=storage)
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    wrong, right = server.login("not the password"), server.login()
    lines = ["## Logins", ""]
    for what, environment in (("a wrong password", wrong), ("the right one", right)):
        code, out, _ = _wait(_doctor(folder, server, environment))
        (line,) = [text for text in out.splitlines() if " tracking: " in text]
        lines.append(f"- `calsweep doctor` with {what}: exit code {code}, `{_plain(line, server)}`")
    code, out, err = _wait(_run(folder, TEAM[0], wrong))
    lines.append(
        f"- `calsweep run` with a wrong password: exit code {code}, "
        f"{len((out + err).splitlines())} line, `{_plain(err.strip(), server)}`; storage "
        f"{'made' if storage.exists() else 'not made'}"
    )
    both = [_run(folder, name, right) for name in TEAM]
    codes = [_wait(process)[0] for process in both]
    lines.append(
        f"- Two `calsweep run` at once with the right one: exit codes {codes}; on the server "
        + " and ".join(_runs(name, server) for name in TEAM)
    )
    return lines


def _doctor(folder: Path, server: TeamServer, environment: dict[str, str]) -> subprocess.Popen[str]:
    options = ["--tracking-uri", server.uri, "--storage", str(folder / "nothing")]
    return _start(["doctor", *options], environment)


def _run(folder: Path, name: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    return _start(["run", str(folder / f"{name}.yaml"), "--quiet"], environment)


def _start(arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "orchestrator", *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _wait(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


def _plain(text: str, server: TeamServer) -> str:
    return text.replace(server.uri, "http://127.0.0.1:5000")


def _runs(name: str, server: TeamServer) -> str:
    from mlflow import MlflowClient

    with mock.patch.dict(os.environ, server.login()):
        client = MlflowClient(server.uri)
        experiment = client.get_experiment_by_name(name)
        runs = client.search_runs([experiment.experiment_id], max_results=1000)
    kinds = Counter(f"{run.data.tags['calsweep.kind']} {run.info.status}" for run in runs)
    return f"{name}: " + ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items()))


def heading(trials: int, reports: int) -> list[str]:
    """Return the settings and the hardware."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return [
        "# Many trials that report every second, and a team's tracking server",
        "",
        f"{memory:.0f} GB, {setting('ray', 'optuna', 'mlflow', 'psycopg2-binary')}. "
        f"{trials} trials at once in one sweep, {reports} reports each, one a second, "
        f"of {METRICS} metrics; they compute nothing. Trials, driver, shipper, PostgreSQL and "
        "MLflow (4 workers, logins on, as deploy/README.md starts it) share the machine. The clock "
        "starts when all trials are there. Trials, which would run on other machines, are "
        f"{NICENESS} nicer than the rest, as the shipper is. Load averages at the start: "
        f"{load()}.",
        "",
    ]


def main() -> None:
    """Run, print and write the report."""
    parser = options(__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--reports", type=int, default=300)
    parser.add_argument("--mlflow", default=str(Path(sys.executable).with_name("mlflow")))
    parser.add_argument("--without-logins", action="store_true")
    wanted = parser.parse_args()
    if not postgres_here():
        raise SystemExit("PostgreSQL (initdb, postgres) or psycopg2 is not installed here")
    first = heading(wanted.trials, wanted.reports)
    with tempfile.TemporaryDirectory(prefix="load-") as name:
        folder = Path(name)
        with team_server(folder, wanted.mlflow) as server:
            logins = [] if wanted.without_logins else try_logins(folder, server)
            outcome = run_load(folder, server, wanted.trials, wanted.reports)
            found = read_back(outcome, server, folder, wanted.reports)
            measured = lines_of(outcome, found, server, wanted.reports)
    lines = [*first, *measured, "", *logins]
    text = "\n".join([*lines, "", *TRAVEL, "", f"Load averages at the end: {load()}.", ""])
    publish(text, wanted.out)


if __name__ == "__main__":
    main()
