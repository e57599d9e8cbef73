import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.cluster import slurm
from orchestrator.cluster.slurm import QUEUE_TRIES, Allocation, array_script, script
from orchestrator.cluster.slurm_queue import job_number, queued_job
from orchestrator.running.run import run_sweep
from orchestrator.storage.ledger import read_ledger
from orchestrator.storage.results import results_of
from orchestrator.storage.status import sweep_status
from orchestrator.storage.storage import Storage
from orchestrator.sweep.spec import load_sweep
from tests.orchestrator.cluster.slurm_daemons import (
    NEEDED,
    cancel_all,
    daemons_of_slurm,
    found,
    queue,
)
from tests.orchestrator.one_process import one_process

SWEEP = """
name: far
tasks:
  - {name: t, dataset: digits, model: convnet, protocol: {base: digits, epochs: 40},
     split: {train_limit: 300, test_limit: 150}}
recipes: [ls, ls+ts]
search: {trials: 3, parallel_trials: 2}
"""
ABSENT = [program for program in NEEDED if found(program) is None]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    if ABSENT:
        pytest.skip(f"SLURM is not here: {', '.join(ABSENT)} (slurm-wlm)")
    with daemons_of_slurm(tmp_path_factory.mktemp("slurm")) as variables:
        yield variables


@pytest.fixture
def daemons(started: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    yield
    cancel_all()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """Return the table of the same sweep without SLURM."""
    folder = tmp_path_factory.mktemp("alone")
    path = folder / "alone.yaml"
    path.write_text(f"{SWEEP}storage: {folder}/alone\n")
    with one_process():
        run_sweep(load_sweep(str(path)))
    return table(folder / "alone" / "sweeps" / "far")


def written(folder: Path, storage: str) -> Path:
    path = folder / f"{storage}.yaml"
    path.write_text(f"{SWEEP}storage: {folder}/{storage}\ntracking: {{uri: http://127.0.0.1:9}}\n")
    return path


def wait_until(there: Callable[[], bool], output: Path, seconds: float = 150.0) -> None:
    end = time.monotonic() + seconds
    while not there():
        told = "".join(path.read_text() for path in output.glob("slurm-*.out"))
        queue = subprocess.run(["squeue"], capture_output=True, text=True).stdout
        assert time.monotonic() < end, f"waited in vain: {queue}{told}"
        time.sleep(0.5)


def table(folder: Path) -> list[object]:
    rows = results_of(read_ledger(folder / "journal.jsonl"))
    return [(row.recipe, row.status, row.configuration, row.validation, row.test) for row in rows]


PROGRAM = """#!/bin/bash
words=$*
echo "$SLURMD_NODENAME: $words" >> {log}
case $words in
    *" start --head "*) ip=${{words#*--node-ip-address=}}; port=${{words#*--port=}}
        exec {python} -m http.server --bind "${{ip%% *}}" "${{port%% *}}" ;;
    *" start "*) exec sleep 600 ;;
    *" run "*) trap 'kill $!; exit 130' TERM
        until [ "$(grep -c . {log})" = 6 ]; do sleep 0.1 & wait; done ;;
esac
"""
"""Stands in for Ray, and for a sweep that is there until all has been started twice."""


def test_job_starts_ray_on_its_nodes_and_is_queued_again(daemons, tmp_path, monkeypatch, capsys):
    program, log = tmp_path / "python", tmp_path / "log"
    words = {"log": shlex.quote(str(log)), "python": shlex.quote(sys.executable)}
    program.write_text(PROGRAM.format(**words))
    program.chmod(0o755)
    log.touch()
    monkeypatch.setattr(slurm, "RAY", f"{shlex.quote(str(program))} -m ray.scripts.scripts")
    monkeypatch.setattr(sys, "executable", str(program))
    path, storage = written(tmp_path, "here"), str(tmp_path / "here")
    assert main(["submit", "--slurm", "--nodes", "2", "--time", "10", str(path)]) == 0
    told = capsys.readouterr().out
    far = Storage(storage).sweep("far")
    job = queued_job(far)
    assert told.startswith(f"SLURM job {job}; calsweep status far --storage ")
    assert (far.path / "ray-token").stat().st_mode & 0o777 == 0o600
    assert main(["submit", "--slurm", str(path)]) == 2
    assert f"already waits or runs as SLURM job {job}" in capsys.readouterr().err
    wait_until(lambda: log.read_text().count("\n") == 3, far.path)
    assert main(["status", "far", "--storage", storage]) == 0
    assert f"SLURM job {job}; its output: {far.path}/slurm-{job}.out" in capsys.readouterr().out
    assert main(["logs", "far", "--storage", storage]) == 0
    assert f"slurm-{job}: " in capsys.readouterr().out
    address = (far.path / "ray-address").read_text().strip()
    once = [
        f"one: -m orchestrator run {far.path}/submitted-sweep.yaml --address {address}",
        f"one: -m ray.scripts.scripts start --head --node-ip-address={address.partition(':')[0]}",
        f"two: -m ray.scripts.scripts start --address={address} --num-cpus=1 --block",
    ]
    subprocess.run(["scancel", "--batch", "--signal=USR1", job], check=True)
    wait_until(lambda: not queued_job(far), far.path)
    lines = sorted(line.partition(" --port")[0] for line in log.read_text().splitlines())
    assert lines == sorted([*once, *once])


@pytest.mark.long
def test_requeued_sweep_gives_the_same_table(daemons, alone, tmp_path, capsys):
    path = written(tmp_path, "here")
    assert main(["submit", "--slurm", "--nodes", "2", "--time", "10", str(path)]) == 0
    far = Storage(str(tmp_path / "here")).sweep("far")
    job = queued_job(far)
    output = far.path / f"slurm-{job}.out"
    wait_until(lambda: far.journal.exists() and sweep_status(far).ended >= 1, far.path)
    wait_until(lambda: output.read_text().count("Ray runtime started") == 2, far.path)
    assert main(["logs", "far", f"slurm-{job}", "--storage", str(tmp_path / "here")]) == 0
    assert "joining Ray at " in capsys.readouterr().out
    subprocess.run(["scancel", "--batch", "--signal=USR1", job], check=True)
    wait_until(lambda: sweep_status(far).state == "interrupted", far.path)
    assert sweep_status(far).ended < sweep_status(far).trials, "it was not in the middle"
    wait_until(lambda: sweep_status(far).state == "finished", far.path)
    wait_until(lambda: not queued_job(far), far.path)
    assert table(far.path) == alone


@pytest.mark.long
def test_nodes_of_an_array_come_and_go(daemons, alone, tmp_path, monkeypatch):
    # For how long a node looks for the head that has ended; a minute unless told otherwise.
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "10")
    path = written(tmp_path, "here")
    assert main(["submit", "--slurm", "--slurm-array", "1", "--time", "10", str(path)]) == 0
    far = Storage(str(tmp_path / "here")).sweep("far")
    job = int(queued_job(far))
    output = far.path / f"slurm-{job + 1}_1.out"
    wait_until(lambda: far.journal.exists() and sweep_status(far).ended >= 1, far.path)
    wait_until(lambda: output.exists() and "Ray runtime started" in output.read_text(), far.path)
    subprocess.run(["scontrol", "requeue", f"{job + 1}_1"], check=True)
    wait_until(lambda: sweep_status(far).state == "finished", far.path)
    wait_until(lambda: not queue(), far.path)
    assert table(far.path) == alone


def test_job_whose_time_ends_before_its_sweep_begins_is_queued_again(tmp_path: Path) -> None:
    text = script(Storage(str(tmp_path)).sweep("far"), Allocation(1, 0, "10"))
    beginning, _, _ = text.partition("cpus=")
    asked = tmp_path / "scontrol"
    asked.write_text(f"#!/bin/bash\necho $* > {tmp_path}/asked\n")
    asked.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "SLURM_JOB_ID": "7"}
    subprocess.run(["bash", "-c", beginning + "kill -USR1 $$\nsleep 30"], env=variables)
    assert (tmp_path / "asked").read_text() == "requeue 7\n"


def test_job_is_queued_again_however_quickly_its_sweep_stops(tmp_path: Path) -> None:
    text = script(Storage(str(tmp_path)).sweep("far"), Allocation(1, 0, "10"))
    traps = text[text.index("again=") : text.index("cpus=")]
    slow = """kill() { builtin kill "$@"; local code=$?; command sleep 0.2; return $code; }
scontrol() { echo "$*"; }
sleep 30 & head=$!
(trap 'exit 130' TERM; while :; do command sleep 0.01; done) &
driver=$!
(command sleep 0.3; builtin kill -USR1 $$) &
"""
    told = subprocess.run(
        ["bash", "-c", traps + slow + text[text.index("driver=$!") :].partition("\n")[2]],
        env={**os.environ, "SLURM_JOB_ID": "7"},
        capture_output=True,
        text=True,
    )
    assert (told.stdout, told.returncode) == ("requeue 7\n", 130), told.stderr


@pytest.mark.parametrize(
    ("named", "address"),
    [("10.0.0.7 10.1.0.7", "10.0.0.7"), ("127.0.1.1", "192.0.2.7"), ("127.0.0.1", "127.0.0.1")],
)
def test_head_is_at_an_address_that_other_nodes_reach(tmp_path, named, address):
    hostname = tmp_path / "hostname"
    hostname.write_text(
        f'#!/bin/bash\n[ $1 = --ip-address ] && echo "{named}" || echo "192.0.2.7 10.1.0.7"\n'
    )
    hostname.chmod(0o755)
    text = script(Storage(str(tmp_path)).sweep("far"), Allocation(2, 0, "10"))
    part = text[text.index("port=") : text.index("\n", text.index("address=$ip"))]
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    told = subprocess.run(
        ["bash", "-c", f"{part}; echo $address"],
        env={**os.environ, "PATH": path, "SLURM_JOB_ID": "7"},
        capture_output=True,
        text=True,
    )
    assert told.stdout == f"{address}:20007\n", told.stderr


@pytest.mark.parametrize(
    ("squeue", "code", "asked"),
    [
        ("[ $count -gt 3 ] && exit 0; [ $count = 3 ] && echo 7 && exit 0; exit 1", 0, 4),
        ("exit 1", 1, QUEUE_TRIES),
        ("echo 77; exit 0", 0, 1),
    ],
)
def test_node_of_an_array_outlasts_a_queue_that_does_not_answer(tmp_path, squeue, code, asked):
    far = Storage(str(tmp_path)).sweep("far")
    far.path.mkdir(parents=True)
    (far.path / "slurm.json").write_text('{"job": "7"}')
    count = tmp_path / "count"
    count.touch()
    for name, body in {
        "squeue": f"echo >> {count}; count=$(wc -l < {count}); {squeue}",
        "sleep": "",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    variables = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    text = array_script(far, Allocation(1, 0, "10", 1))
    done = subprocess.run(["bash", "-c", text], env=variables, capture_output=True, timeout=30)
    assert (done.returncode, count.read_text().count("\n")) == (code, asked), done.stderr


def test_waiting_job_is_found_and_cancelled(daemons, tmp_path, capsys):
    subprocess.run(
        ["sbatch", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 300"],
        check=True,
        env=os.environ,
        capture_output=True,
    )
    path, storage = written(tmp_path, "here"), str(tmp_path / "here")
    assert main(["submit", "--slurm", "--gpus-per-node", "0", str(path)]) == 0
    far = Storage(storage).sweep("far")
    job = queued_job(far)
    assert job
    assert main(["status", "far", "--storage", storage]) == 0
    told = capsys.readouterr().out
    assert re.search(r"^far: queued( \(\w+\))?, trials 0/", told, re.MULTILINE)
    assert f"SLURM job {job}" in told
    assert main(["cancel", "far", "--storage", storage]) == 0
    assert capsys.readouterr().out.startswith("far left SLURM's queue; ")
    wait_until(lambda: not queued_job(far), far.path)
    assert main(["status", "far", "--storage", storage]) == 0
    assert "far: CANCELLED, trials 0/" in capsys.readouterr().out
    assert main(["cancel", "far", "--storage", storage]) == 2
    assert main(["submit", "--slurm", "--time", "soon", str(path)]) == 2
    assert "--time: expected a limit such as 8:00:00 or 2-0, got 'soon'" in capsys.readouterr().err


ENDING = """#!/bin/bash
case "$*" in
    *" start --head "*) echo "Ray: the last line"
        exec {python} -c 'import socket, sys, time
head = dict(word.split("=") for word in sys.argv if "=" in word)
server = socket.create_server((head["--node-ip-address"], int(head["--port"])))
time.sleep(60)' "$@" ;;
    *" run "*) echo "calsweep: digits-far: no such data" >&2; exit {code} ;;
esac
"""


@pytest.mark.parametrize("code", [2, 130])
def test_job_that_ends_before_its_sweep_begins(daemons, tmp_path, monkeypatch, capsys, code):
    program = tmp_path / "python"
    program.write_text(ENDING.format(python=shlex.quote(sys.executable), code=code))
    program.chmod(0o755)
    monkeypatch.setattr(slurm, "RAY", f"{shlex.quote(str(program))} -m ray.scripts.scripts")
    monkeypatch.setattr(sys, "executable", str(program))
    path, storage = written(tmp_path, "my%20project"), str(tmp_path / "my%20project")
    options = ["--partition", "all", "--cpus-per-task", "1", "--time", "10"]
    assert main(["submit", "--slurm", *options, str(path)]) == 0
    far = Storage(storage).sweep("far")
    job = job_number(far)
    wait_until(lambda: not queued_job(far), far.path)
    error = "digits-far: no such data (SLURM: FAILED, NonZeroExitCode)"
    capsys.readouterr()
    assert main(["status", "far", "--storage", storage]) == 0
    state = "failed" if code == 2 else "CANCELLED"
    first, *others, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"far: {state}, trials 0/")
    assert others == ([error] if code == 2 else [])
    assert last == f"SLURM job {job}; its output: {far.path}/slurm-{job}.out"
    assert (far.path / "slurm-exit").read_text() == f"{job} {code}\n"
    (far.path / "slurm-exit").unlink()
    assert main(["logs", "far", "--storage", storage]) == 0
    shown = f"failed: {error}" if code == 2 else "CANCELLED"
    assert capsys.readouterr().out == f"slurm-{job}: {shown}\n"
