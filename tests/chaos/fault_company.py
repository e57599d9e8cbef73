"""Servers that are away, sweeps beside each other, drivers and nodes that die."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from harness import Cluster
from lab import WRONG_INPUT, Lab, Row, cluster, fault, one_line, server
from sweeps import Command, Done, Sweep, dump, gone, tracked


@fault
def tracking_away(lab: Lab) -> Iterator[Row]:
    """Have no tracking server from before the start until after the end."""
    row = Row("tracking server away", "down from before the start until after the end")
    with server() as (there, folder):
        there.wait()
        usual = lab.sweep(tracking=there.uri)
        with_server = usual.start().wait()
        expected = tracked(folder / "mlflow.db")
    with server() as (away, folder):
        away.kill()
        sweep = lab.sweep(tracking=away.uri)
        done = sweep.start().wait()
        row.happened.append(
            f"exit code {done.code} after {done.seconds:.0f} s ({with_server.seconds:.0f} s with "
            "the server there)"
        )
        row.expect(exit_code_0=done.code == 0)
        row.wrong += sweep.faults(usual)
        away.start()
        away.wait()
        first, once = _synced(sweep, done, folder)
        second, twice = _synced(sweep, done, folder)
        row.happened.append(
            f"one line names `calsweep sync`, which delivers {len(tracked(folder / 'mlflow.db'))} "
            f"runs in {first:.0f} s, the same as with the server there; again ({second:.0f} s): "
            "not a byte of the store changes"
        )
        row.expect(
            delivered_what_the_other_did=tracked(folder / "mlflow.db") == expected,
            second_sync_changes_nothing=once == twice,
        )
    yield row


def _synced(sweep: Sweep, done: Done, folder: Path) -> tuple[float, str]:
    delivered = sweep.obey(done.line("calsweep sync"))
    assert delivered.code == 0, delivered
    return delivered.seconds, dump(folder / "mlflow.db")


@fault
def two_at_once(lab: Lab) -> Iterator[Row]:
    """Run two sweeps on one cluster, one storage and one tracking server, and one sweep twice."""
    yield _two_sweeps(lab)
    yield started_twice(lab)


def _two_sweeps(lab: Lab) -> Row:
    row = Row("two sweeps at once", "one cluster, storage and tracking server, shared recipes")
    recipes = {"first": "ce, mbls, ce+ts", "second": "ce, mbls, mbls+ts, ce+macal"}
    with cluster(lab) as ray, server() as (tracking, folder):
        tracking.wait()
        place = lab.place() / "storage"
        sweeps = [
            lab.sweep(place, tracking=tracking.uri, name=name, recipes=chosen)
            for name, chosen in recipes.items()
        ]
        environment = {k: v for k, v in ray.environment.items() if os.environ.get(k) != v}
        commands = [it.start("--address", ray.address, **environment) for it in sweeps]
        ends = [command.wait() for command in commands]
        runs = Counter((run[0], run[1], run[2]) for run in tracked(folder / "mlflow.db"))
    row.happened.append(", ".join(f"exit code {done.code}" for done in ends))
    for sweep, (name, chosen) in zip(sweeps, recipes.items(), strict=True):
        row.wrong += [f"{name}: {w}" for w in sweep.faults(lab.calm(name=name, recipes=chosen))]
    row.happened.append("both tables are those of the sweeps run alone")
    row.expect(
        exit_codes_0=all(done.code == 0 for done in ends),
        no_run_twice_in_a_sweep=max(runs.values()) <= len(sweeps),
    )
    return row


def started_twice(lab: Lab) -> Row:
    row = Row("one sweep started twice", "the second while the first runs")
    sweep = lab.sweep()
    first = sweep.start()
    lab.wait(sweep, first, most=0.3)
    second = sweep.start().wait()
    done = first.wait()
    owner = ("root" if os.getuid() == 0 else " on ", os.uname().nodename, str(first.process.pid))
    row.happened.append(
        f"second: exit code {second.code} after {second.seconds:.0f} s, "
        "one line names user, host, process and since when; "
        f"first: exit code {done.code}"
    )
    row.expect(
        second_refused=second.code == WRONG_INPUT and one_line(second),
        owner_named=all(part in second.errors for part in (*owner, "since")),
        first_undisturbed=done.code == 0,
    )
    row.wrong += sweep.faults(lab.calm())
    return row


@fault
def suggestions(lab: Lab) -> Iterator[Row]:
    """Kill a driver again and again and compare what Optuna suggested."""
    row = Row("Optuna goes on", "three kills of the driver at random moments, 12 trials a study")
    changes: dict[str, Any] = {
        "recipes": "ce, mbls",
        "trials": 12,
        "epochs": 6,
        "resources": ", concurrent: 2",
    }
    calm, sweep = lab.calm(**changes), lab.sweep(**changes)
    command, kills = sweep.start(), 0
    for _ in range(3):
        before = len(sweep.events("trial_started"))
        if sweep.wait_for_trials(command, before + 1):
            time.sleep(lab.random.uniform(0.5, 4))
            kills += command.running()
            command.process.kill()
        command.process.wait()
        gone(command)
        command = sweep.resume()
    done = command.wait()
    row.happened.append(
        f"{kills} kills; {len(sweep.suggestions())} suggestions, the same as undisturbed; "
        f"{len(sweep.finished())} trials ended, each once"
    )
    row.expect(resumed=done.code == 0, killed=kills > 0)
    row.wrong += sweep.faults(calm)
    yield row


@fault
def nodes(lab: Lab) -> Iterator[Row]:
    """Spread over two nodes with GPUs that only Ray sees; kill one, add another."""
    row = Row("nodes come and go", "0.5 of a GPU a training on nodes whose GPU only Ray sees")
    changes: dict[str, Any] = {"recipes": "ce, mbls, ls, mbls+ts", "trials": 6, "epochs": 60}
    with cluster(lab) as ray, server() as (tracking, _):
        tracking.wait()
        shares = ", train: {gpu: 0.5}"
        sweep = lab.sweep(**changes, resources=shares, tracking=tracking.uri)
        environment = {k: v for k, v in ray.environment.items() if os.environ.get(k) != v}
        command = sweep.start("--address", ray.address, **environment)
        placed = _watched(lab, ray, sweep, command)
        done = command.wait()
    told = [line for line in done.errors.splitlines() if "torch sees no GPU" in line]
    row.happened += [
        f"seconds of processor a node: {', '.join(f'{s:.0f}' for s in placed.values())} (one "
        "of the first two was killed and the third added in the middle)",
        f"{len(told)} notices such as `{told[0] if told else ''}`",
        f"exit code {done.code} after {done.seconds:.0f} s",
    ]
    row.expect(finished=done.code == 0, three_nodes_worked=len(placed) == 3, told=bool(told))
    if done.code == 0:
        row.wrong += sweep.faults(lab.calm(**changes))
    yield row


def _watched(lab: Lab, ray: Cluster, sweep: Sweep, command: Command) -> dict[int, float]:
    """Return the processor time of trials below each raylet; exchange a node meanwhile."""
    spent: dict[int, dict[int, float]] = {}
    half = len(sweep.suggestions())
    exchanged = False
    while command.running():
        for process in ray.workers():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                spent.setdefault(process.ppid(), {})[process.pid] = times.user + times.system
        if not exchanged and len(sweep.finished()) > half + 4 and len(spent) == 2:
            ray.command(f"kill {lab.random.randrange(2)}")
            ray.command("add")
            exchanged = True
        time.sleep(0.5)
    return {node: sum(times.values()) for node, times in spent.items()}
