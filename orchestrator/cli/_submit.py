"""``calsweep submit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["submit"]


def submit(
    sweep: Annotated[Path, typer.Argument(help="The sweep file.", show_default=False)],
    address: Annotated[
        str, typer.Option(help="The cluster's dashboard.")
    ] = "http://127.0.0.1:8265",
    wait: Annotated[bool, typer.Option("--wait", help="Show its output until it ends.")] = False,
) -> int:
    """Run a sweep file on a Ray cluster as a job, which goes on when this machine is away."""
    from orchestrator.spec import load_sweep
    from orchestrator.submit import follow
    from orchestrator.submit import submit as start

    client, job = start(sweep, load_sweep(sweep), address)
    typer.echo(f"job {job}; its output: ray job logs {job} --follow --address {address}")
    if not wait:
        return 0
    return follow(client, job, lambda text: typer.echo(text, nl=False))
