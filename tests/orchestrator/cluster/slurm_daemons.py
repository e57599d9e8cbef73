"""SLURM's real daemons on the loopback: a controller and two nodes, in a temporary folder."""

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch")
NODES = ("one", "two")


def found(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@contextmanager
def daemons_of_slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Run the daemons; yield the variables by which SLURM's commands find them."""
    folder.chmod(0o755)
    key, munge = folder / "munge.key", folder / "munge.socket"
    key.write_bytes(secrets.token_bytes(64))
    key.chmod(0o400)
    conf = folder / "slurm.conf"
    conf.write_text(_conf(folder, munge))
    (folder / "cgroup.conf").write_text("CgroupPlugin=autodetect\n")
    for name in ("state", *NODES):
        (folder / name).mkdir()
    env = os.environ | {"SLURM_CONF": str(conf)}
    commands = [
        ["munged", "--foreground", "--force", f"--socket={munge}", f"--key-file={key}"]
        + [f"--{what}-file={folder}/munge.{what}" for what in ("pid", "log", "seed")],
        ["slurmctld", "-D", "-f", str(conf)],
        *(["slurmd", "-D", "-f", str(conf), "-N", node] for node in NODES),
    ]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            log = (folder / f"{command[0]}{len(started)}.log").open("wb")
            program = found(command[0])
            assert program is not None
            started.append(
                subprocess.Popen([program, *command[1:]], env=env, stdout=log, stderr=log)
            )
            time.sleep(0.5)
        _wait_for_nodes(env)
        yield {"SLURM_CONF": str(conf)}
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(20)


def queue() -> str:
    command = ["squeue", "--noheader", "--states=PENDING,RUNNING,COMPLETING"]
    return subprocess.run(command, capture_output=True, text=True).stdout


def cancel_all() -> None:
    """Take every job out of the queue, and wait until the nodes are free."""
    subprocess.run(["scancel", f"--user={getpass.getuser()}"], check=False)
    end = time.monotonic() + 40
    while (left := queue()) and time.monotonic() < end:
        time.sleep(0.2)
    assert not left


def _conf(folder: Path, munge: Path) -> str:
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 "
        f"Port={free_port()} CPUs=1 State=UNKNOWN"
        for node in NODES
    )
    return f"""
ClusterName=loopback
SlurmctldHost={socket.gethostname()}(127.0.0.1)
SlurmUser={getpass.getuser()}
SlurmctldPort={free_port()}
AuthType=auth/munge
AuthInfo=socket={munge},cred_expire=5
CredType=cred/munge
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
KillWait=10
MinJobAge=300
InactiveLimit=0
JobRequeue=1
ReturnToService=2
{nodes}
PartitionName=all Nodes={",".join(NODES)} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def _wait_for_nodes(env: dict[str, str]) -> None:
    end = time.monotonic() + 40
    while True:
        told = subprocess.run(
            ["sinfo", "--noheader", "--format=%D %T"], env=env, capture_output=True, text=True
        )
        if told.stdout.split() == ["2", "idle"]:
            return
        assert time.monotonic() < end, told.stdout + told.stderr
        time.sleep(0.5)
