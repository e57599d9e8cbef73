"""``calsweep nightly bisect``: the commit that an alarm is about."""

from typing import Annotated

import typer
from rich.console import Console

from orchestrator import nightly
from orchestrator.cli._console import echo
from orchestrator.cli._options import Quiet
from orchestrator.cli.nightly.common import File, RepositoryFolder, load


def bisect(
    file: File = None,
    night: Annotated[
        str | None, typer.Option(help="The night with the alarm; default: the last one.")
    ] = None,
    repository: RepositoryFolder = None,
    cell: Annotated[
        str | None,
        typer.Option(
            metavar="RECIPE on TASK: METRIC",
            help="The alarmed figure to look into; default: the worst.",
        ),
    ] = None,
    quiet: Quiet = False,
) -> int:
    """Name the commit behind an alarm of a night, by at most six partial nights."""
    console = None if quiet else Console(stderr=True)
    found = nightly.bisect_night(load(file), night, repository, console, cell)
    echo(found.text)
    return 0
