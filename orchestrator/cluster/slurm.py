"""Runs a sweep as a SLURM job with its own Ray cluster; a requeued job resumes the sweep."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cluster.slurm_queue import EXIT, JOB, call_slurm, job_name, queued_job
from orchestrator.storage.storage import SPEC, SweepFolder
from trainables.common.errors import InputError
from trainables.common.files import write_whole, writing
from trainables.common.paths import control_fault

if TYPE_CHECKING:
    from orchestrator.sweep.spec import SweepSpec

WARNING_SECONDS = 120  # SLURM signals a job this long before its end, so that the sweep can stop.
TIME = re.compile(r"\d+|(\d+-)?\d+(:\d+){1,2}|\d+-\d+", re.ASCII)  # The formats of sbatch.
WORDS = re.compile(r"[A-Za-z0-9_.,-]+")  # The names of partitions and accounts.
QUEUE_TRIES = 60  # Failures of squeue in a row, over five minutes, until an array's node gives up.
RAY = f"{shlex.quote(sys.executable)} -m ray.scripts.scripts"
SCRIPT, ARRAY, TOKEN = "slurm.sh", "slurm-array.sh", "ray-token"
ADDRESS = "ray-address"  # The file with the address of the job's Ray cluster, while it runs.


@dataclass(frozen=True)
class Allocation:
    """The resources that a job requests from SLURM.

    Attributes:
        gpus: Number of GPUs per node.
        time: Limit in a format of sbatch, such as ``8:00:00``.
        array: Number of further nodes; each is a separate job that may join and leave.
        cpus: Number of CPUs per node; 0 for all.
        partition, account: Names; None for SLURM's default.
    """

    nodes: int
    gpus: int
    time: str
    array: int = 0
    cpus: int = 0
    partition: str | None = None
    account: str | None = None


def submit_to_slurm(sweep: Path, spec: SweepSpec, wanted: Allocation) -> str:
    """Submit a sweep to SLURM with a script in the sweep's folder; return the job's number."""
    # These modules import PyTorch.
    from orchestrator.cluster.jobs import read_portable, write_files
    from orchestrator.storage.provenance import keep_plugins, pin_plugins

    files, folder = read_portable(sweep, spec), SweepFolder.of(spec)
    check_words(folder, wanted)
    if job := queued_job(folder):
        raise InputError(f"sweep {spec.name!r} already waits or runs as SLURM job {job}")
    with writing(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.require_own()
        token = folder.path / TOKEN
        token.touch(0o600)
        token.chmod(0o600)
        token.write_text(secrets.token_hex(32), encoding="ascii")
        keep_plugins(spec)
        folder.write_spec(pin_plugins(spec))  # The job also does it, but `status` needs it now.
        write_files(folder.path, {f"submitted-{SPEC}": files.pop(SPEC), **files})
        write_whole(folder.path / SCRIPT, script(folder, wanted))
        write_whole(folder.path / ARRAY, array_script(folder, wanted))
    job = _submitted(folder.path / SCRIPT, wanted)
    write_whole(folder.path / JOB, json.dumps({"job": job}))
    if wanted.array:
        _submitted(
            folder.path / ARRAY, wanted, f"--dependency=after:{job}", f"--array=1-{wanted.array}"
        )
    return job


def show_scripts(sweep: Path, spec: SweepSpec, wanted: Allocation) -> str:
    """Return the text of the scripts that ``submit_to_slurm`` would submit, without writing it."""
    from orchestrator.cluster.jobs import read_portable

    read_portable(sweep, spec)
    folder = SweepFolder.of(spec)
    check_words(folder, wanted)
    return script(folder, wanted) + (array_script(folder, wanted) if wanted.array else "")


def check_words(folder: SweepFolder, wanted: Allocation) -> None:
    """Raise ``InputError`` if an option or a path cannot be part of a script."""
    if not TIME.fullmatch(wanted.time):
        raise InputError(f"--time: expected a limit such as 8:00:00 or 2-0, got {wanted.time!r}")
    for option, value in (("--partition", wanted.partition), ("--account", wanted.account)):
        if value is not None and not WORDS.fullmatch(value):
            raise InputError(
                f"{option}: expected letters, digits, '_', '-', '.', ',', got {value!r}"
            )
    for name, path in (("storage", str(folder.path)), ("Python", sys.executable)):
        if fault := control_fault(path):
            raise InputError(f"{name}: {path!r} cannot be in a script of SLURM: {fault}")
    if "\\" in str(folder.path):
        raise InputError(
            f"storage: SLURM cannot write output to {str(folder.path)!r} because of the "
            "backslash; use another folder"
        )


def _submitted(path: Path, wanted: Allocation, *options: str) -> str:
    # Variables of sbatch take precedence over the script, so remove those that an option replaces.
    given = {"SBATCH_PARTITION": wanted.partition, "SBATCH_ACCOUNT": wanted.account}
    env = {name: it for name, it in os.environ.items() if given.get(name) is None}
    command = ["sbatch", "--parsable", *options, str(path)]
    return call_slurm(command, env=env).partition(";")[0]


def script(folder: SweepFolder, wanted: Allocation) -> str:
    """Return the script of the job, which starts Ray's head, Ray's workers and the sweep.

    SLURM sends USR1 before the time limit: the sweep stops and the job is queued again. TERM, sent
    by ``scancel`` or a preemption, also stops the sweep, but SLURM decides what follows.
    """
    place, python = folder.path, shlex.quote(sys.executable)
    file, end = (shlex.quote(str(place / name)) for name in (ADDRESS, EXIT))
    share = f" --cpus-per-task={wanted.cpus}" if wanted.cpus else ""
    workers = f"""
srun --relative=1 --nodes={wanted.nodes - 1} --ntasks={wanted.nodes - 1}{share} \\
    {RAY} start --address="$address" --num-cpus="$cpus" --block &"""
    return f"""{_beginning(folder, wanted, wanted.nodes, "slurm-%j.out")}
rm -f {end}  # An earlier run of this job may have left it.
left= told=
leave() {{ echo "$SLURM_JOB_ID $1" > {end}; }}
trap 'leave "${{left:-$?}}"' EXIT
again= driver=
queue() {{
    if [ -n "$again" ]; then
        left=requeued; leave requeued
        scontrol requeue "$SLURM_JOB_ID" || left=
    fi
}}
stop() {{ if [ -n "$driver" ]; then kill -TERM "$driver"; else queue; exit 130; fi; }}
trap 'again=yes; stop' USR1
trap 'told=yes; stop' TERM
cpus={cpus_of(wanted)}
port=$((20000 + SLURM_JOB_ID % 10000))
ip=$(hostname --ip-address | cut -d ' ' -f 1)
case $ip in  # Debian's /etc/hosts gives a machine this address, which other nodes cannot reach.
    127.0.1.*) ip=$(hostname --all-ip-addresses | cut -d ' ' -f 1) ;;
esac
address=$ip:$port
{RAY} start --head --node-ip-address="$ip" --port=$port \\
    --ray-client-server-port=$((port + 10000)) --num-cpus="$cpus" \\
    --include-dashboard=false --block &
head=$!
until (: <"/dev/tcp/$ip/$port") 2>/dev/null; do kill -0 $head && sleep 1 || exit 1; done
echo "$address" > {file}
{workers if wanted.nodes > 1 else ""}
{python} -m orchestrator run {shlex.quote(str(place / f"submitted-{SPEC}"))} \\
    --address "$address" &
driver=$!
while kill -0 "$driver" 2>/dev/null; do wait "$driver"; done
wait "$driver"; code=$?  # The driver's exit code: a trap ends the waits above with another one.
rm -f {file}
kill -TERM $head; wait $head
if [ $code = 130 ]; then queue; fi
if [ $code = 130 ] && [ -z "$again$told" ]; then  # After calsweep cancel, cancel the job as well.
    trap '' TERM; leave 130; scancel "$SLURM_JOB_ID"
fi
exit $code
"""


def array_script(folder: SweepFolder, wanted: Allocation) -> str:
    """Return the script of a further node: it joins the Ray cluster until the sweep's job ends."""
    file, job = (shlex.quote(str(folder.path / name)) for name in (ADDRESS, JOB))
    return f"""{_beginning(folder, wanted, 1, "slurm-%A_%a.out")}
ray= cpus={cpus_of(wanted)}
stop() {{ if [ -n "$ray" ]; then kill -TERM $ray; wait $ray; fi; }}
trap 'stop; scontrol requeue "$SLURM_JOB_ID"; exit' USR1
trap 'stop; exit' TERM
job=$(tr -cd '0-9' < {job})
queued() {{  # If squeue fails, the controller may be busy: the job need not have ended.
    for try in {{1..{QUEUE_TRIES}}}; do
        if jobs=$(squeue --noheader --me --format=%i); then
            grep --quiet --line-regexp "$job" <<< "$jobs"; return
        fi
        sleep 5 & wait $!
    done
    echo "squeue has failed {QUEUE_TRIES} times in a row: this node leaves the sweep" >&2
    exit 1
}}
while queued; do
    address=$(cat {file} 2>/dev/null)
    if [ -n "$address" ]; then
        {RAY} start --address="$address" --num-cpus="$cpus" --block &
        ray=$!
        wait $ray
        ray=
    fi
    sleep 5 & wait $!
done
"""


def cpus_of(wanted: Allocation) -> str:
    """Return the number of CPUs that Ray uses on a node, as a word of a script."""
    return str(wanted.cpus or "$SLURM_CPUS_ON_NODE")


def _beginning(folder: SweepFolder, wanted: Allocation, nodes: int, output: str) -> str:
    options = {
        "job-name": job_name(folder),
        **({"partition": wanted.partition} if wanted.partition else {}),
        **({"account": wanted.account} if wanted.account else {}),
        "nodes": nodes,
        "ntasks-per-node": 1,
        **({"cpus-per-task": wanted.cpus} if wanted.cpus else {}),
        **({"gpus-per-node": wanted.gpus} if wanted.gpus else {}),
        "time": wanted.time,
        "signal": f"B:USR1@{WARNING_SECONDS}",
        "open-mode": "append",
        # SLURM replaces %j by the number of the job, so other percent signs are doubled.
        "output": shlex.quote(f"{str(folder.path).replace('%', '%%')}/{output}"),
    }
    asked = "\n".join(f"#SBATCH --{name}={value}" for name, value in options.items())
    return f"""#!/bin/bash
{asked}
#SBATCH --requeue --exclusive
export RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=token
export RAY_AUTH_TOKEN_PATH={shlex.quote(str(folder.path / TOKEN))}"""
