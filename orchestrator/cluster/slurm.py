"""SLURM: a sweep as one job with a Ray cluster of its own, which resumes when it is requeued."""

from __future__ import annotations

import json
import re
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.storage.storage import SPEC, SweepFolder
from trainables.common.errors import InputError
from trainables.common.files import write_whole
from trainables.common.sharing import writing

if TYPE_CHECKING:
    from orchestrator.sweep.spec import SweepSpec

WARNING_SECONDS = 120  # Before its end a job is told, so that the sweep stops in good order.
TIME = re.compile(r"\d+|(\d+-)?\d+(:\d+){1,2}|\d+-\d+")  # As sbatch reads it.
COMMAND_SECONDS = 60
QUEUE_TRIES = 60  # Five minutes, after which a node of an array gives up.
RAY = f"{shlex.quote(sys.executable)} -m ray.scripts.scripts"
SCRIPT, ARRAY, TOKEN, JOB = "slurm.sh", "slurm-array.sh", "ray-token", "slurm.json"
ADDRESS = "ray-address"  # Of the job's Ray cluster while it runs.


@dataclass(frozen=True)
class Allocation:
    """What a job asks of SLURM.

    Attributes:
        nodes: At least 1.
        gpus: Of each node.
        time: Limit as sbatch reads it, such as ``8:00:00``.
        array: Further nodes, each a job of its own that comes and goes.
    """

    nodes: int
    gpus: int
    time: str
    array: int = 0


def submit_to_slurm(sweep: Path, spec: SweepSpec, wanted: Allocation) -> str:
    """Hand a sweep to SLURM; return the job's number at once.

    The folder of the sweep gets the script, the sweep file, the token of the job's Ray cluster,
    which only its owner can read, and the job's output.

    Raises:
        InputError: If the sweep cannot run on several machines, or SLURM refuses it.
    """
    # They take PyTorch.
    from orchestrator.cluster.jobs import read_portable, write_files
    from orchestrator.storage.plugins import keep_plugins, pin_plugins

    files, folder = read_portable(sweep, spec), SweepFolder.of(spec)
    if not TIME.fullmatch(wanted.time):
        raise InputError(f"--time {wanted.time!r} is no limit of SLURM's, such as 8:00:00 or 2-0")
    if job := queued_job(folder):
        raise InputError(f"sweep {spec.name!r} is SLURM's job {job} already")
    with writing(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.require_own()
        token = folder.path / TOKEN
        token.touch(0o600)
        token.chmod(0o600)
        token.write_text(secrets.token_hex(32), encoding="ascii")
        keep_plugins(spec)
        folder.write_spec(pin_plugins(spec))  # As the job does; status finds what waits.
        write_files(folder.path, {f"submitted-{SPEC}": files.pop(SPEC), **files})
        write_whole(folder.path / SCRIPT, script(folder, wanted))
        write_whole(folder.path / ARRAY, array_script(folder, wanted))
    job = _submitted(folder.path / SCRIPT)
    write_whole(folder.path / JOB, json.dumps({"job": job}))
    if wanted.array:
        _submitted(folder.path / ARRAY, f"--dependency=after:{job}", f"--array=1-{wanted.array}")
    return job


def _submitted(path: Path, *options: str) -> str:
    return _slurm(["sbatch", "--parsable", *options, str(path)]).partition(";")[0]


def script(folder: SweepFolder, wanted: Allocation) -> str:
    """Return the job's script: Ray's head, its workers, and the sweep, in one job.

    USR1 comes before the end of the time: the sweep stops and the job is queued again. TERM, by
    ``scancel`` or a preemption, stops it too; what then becomes of the job is SLURM's to say.
    """
    place, python = folder.path, shlex.quote(sys.executable)
    file = shlex.quote(str(place / ADDRESS))
    workers = f"""
srun --relative=1 --nodes={wanted.nodes - 1} --ntasks={wanted.nodes - 1} \\
    {RAY} start --address="$address" --num-cpus="$cpus" --block &"""
    return f"""{_beginning(folder, wanted, wanted.nodes, "slurm-%j.out")}
again= driver=
queue() {{ if [ -n "$again" ]; then scontrol requeue "$SLURM_JOB_ID"; fi; }}
stop() {{ if [ -n "$driver" ]; then kill -TERM "$driver"; else queue; exit 1; fi; }}
trap 'again=yes; stop' USR1
trap stop TERM
cpus=$SLURM_CPUS_ON_NODE
port=$((20000 + SLURM_JOB_ID % 10000))
ip=$(hostname --ip-address | cut -d ' ' -f 1)
case $ip in  # So Debian's /etc/hosts calls its own machine: no other node reaches that.
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
wait "$driver"; code=$?  # Its own; a trap ends the waits above with another.
rm -f {file}
kill -TERM $head; wait $head
if [ $code = 130 ]; then queue; fi
exit $code
"""


def array_script(folder: SweepFolder, wanted: Allocation) -> str:
    """Return the script of a node that joins the Ray cluster of a sweep's job, again and again.

    Each is queued again after its time and when it is preempted; they end once the job has.
    """
    file, job = (shlex.quote(str(folder.path / name)) for name in (ADDRESS, JOB))
    return f"""{_beginning(folder, wanted, 1, "slurm-%A_%a.out")}
ray=
stop() {{ if [ -n "$ray" ]; then kill -TERM $ray; wait $ray; fi; }}
trap 'stop; scontrol requeue "$SLURM_JOB_ID"; exit' USR1
trap 'stop; exit' TERM
job=$(tr -cd '0-9' < {job})
queued() {{  # Does not take a busy controller for the end of the job.
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
        {RAY} start --address="$address" --num-cpus="$SLURM_CPUS_ON_NODE" --block &
        ray=$!
        wait $ray
        ray=
    fi
    sleep 5 & wait $!
done
"""


def _beginning(folder: SweepFolder, wanted: Allocation, nodes: int, output: str) -> str:
    options = {
        "job-name": f"calsweep-{folder.name}",
        "nodes": nodes,
        "ntasks-per-node": 1,
        **({"gpus-per-node": wanted.gpus} if wanted.gpus else {}),
        "time": wanted.time,
        "signal": f"B:USR1@{WARNING_SECONDS}",
        "open-mode": "append",
        "output": shlex.quote(f"{folder.path}/{output}"),
    }
    asked = "\n".join(f"#SBATCH --{name}={value}" for name, value in options.items())
    return f"""#!/bin/bash
{asked}
#SBATCH --requeue --exclusive
export RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=token
export RAY_AUTH_TOKEN_PATH={shlex.quote(str(folder.path / TOKEN))}"""


def outputs(folder: SweepFolder) -> dict[str, Path]:
    """Return the outputs of a sweep's jobs, such as ``slurm-12``, in the order of their names."""
    return {path.stem: path for path in sorted(folder.path.glob("slurm-*.out"))}


def queued_job(folder: SweepFolder) -> str:
    """Return the number of a sweep's job that waits or runs; empty for none.

    Raises:
        InputError: If SLURM does not answer.
    """
    if not (folder.path / JOB).exists():
        return ""
    job = str(json.loads((folder.path / JOB).read_text(encoding="utf-8"))["job"])
    return job if job in _slurm(["squeue", "--noheader", "--format=%i", "--me"]).split() else ""


def cancel_job(job: str) -> None:
    """Take a job out of SLURM's queue.

    Raises:
        InputError: If SLURM refuses.
    """
    _slurm(["scancel", job])


def _slurm(command: Sequence[str]) -> str:
    """Return what a command of SLURM's says."""
    if shutil.which(command[0]) is None:
        raise InputError(f"SLURM's {command[0]} is not on this machine: run it on a login node")
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": COMMAND_SECONDS}
    try:
        done = subprocess.run(command, check=True, **options)
    except subprocess.TimeoutExpired as error:
        text = f"SLURM's {command[0]} has not answered within {COMMAND_SECONDS} s"
        raise InputError(text) from error
    except subprocess.CalledProcessError as error:
        told = " ".join(error.stderr.split())
        raise InputError(f"SLURM's {command[0]} refuses: {told}") from error
    return done.stdout.strip()
