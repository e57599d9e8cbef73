"""``calsweep submit``."""

from typing import Annotated

import typer

from orchestrator.cli._options import SweepFile


def submit(
    sweep: SweepFile,
    address: Annotated[
        str, typer.Option(help="The cluster's dashboard.")
    ] = "http://127.0.0.1:8265",
    wait: Annotated[bool, typer.Option("--wait", help="Show its output until it ends.")] = False,
) -> int:
    """Run a sweep file on a Ray cluster as a job, which goes on when this machine is away."""
    from orchestrator.cluster.jobs import follow
    from orchestrator.cluster.jobs import submit as start
    from orchestrator.sweep.spec import load_sweep

    client, job = start(sweep, load_sweep(sweep), address)
    typer.echo(f"job {job}; its output: ray job logs {job} --follow --address {address}")
    if not wait:
        return 0
    return follow(client, job, lambda text: typer.echo(text, nl=False))
