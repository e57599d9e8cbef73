"""``calsweep submit``."""

from typing import Annotated

import typer

from orchestrator.cli._options import SweepFile
from trainables.common.errors import InputError


def submit(
    sweep: SweepFile,
    address: Annotated[
        str, typer.Option(help="The cluster's dashboard.")
    ] = "http://127.0.0.1:8265",
    wait: Annotated[bool, typer.Option("--wait", help="Show its output until it ends.")] = False,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="As a job of SLURM with a Ray cluster of its own.")
    ] = False,
    nodes: Annotated[int, typer.Option(min=1, help="With --slurm: nodes.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=0, help="With --slurm: GPUs of each.")] = 0,
    slurm_array: Annotated[
        int, typer.Option(min=0, help="With --slurm: further nodes that come and go, a job each.")
    ] = 0,
    time: Annotated[
        str, typer.Option(help="With --slurm: its limit; the job is queued again after it.")
    ] = "8:00:00",
) -> int:
    """Run a sweep file on a cluster as a job, which keeps running when this machine is away."""
    from orchestrator.sweep.spec import load_sweep

    spec = load_sweep(sweep)
    if slurm:
        from orchestrator.cluster.size import ClusterSize
        from orchestrator.cluster.slurm import Allocation, submit_to_slurm
        from orchestrator.sweep.plan import make_plan

        if wait:
            raise InputError("--wait is for Ray jobs; `calsweep status` shows one of SLURM's")
        ClusterSize(nodes, gpus_per_node).require_room(make_plan(spec))
        job = submit_to_slurm(sweep, spec, Allocation(nodes, gpus_per_node, time, slurm_array))
        typer.echo(f"SLURM job {job}; calsweep status {spec.name} --storage {spec.storage}")
        return 0
    from orchestrator.cluster.jobs import follow
    from orchestrator.cluster.jobs import submit as start

    client, job = start(sweep, spec, address)
    typer.echo(f"job {job}; its output: ray job logs {job} --follow --address {address}")
    if not wait:
        return 0
    return follow(client, job, lambda text: typer.echo(text, nl=False))
