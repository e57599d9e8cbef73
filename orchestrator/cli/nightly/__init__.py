"""``calsweep nightly``: a fixed benchmark, run every night."""

import typer

from orchestrator.cli.nightly.accept import accept
from orchestrator.cli.nightly.bisect import bisect
from orchestrator.cli.nightly.gate import gate
from orchestrator.cli.nightly.history import history
from orchestrator.cli.nightly.install import install, uninstall
from orchestrator.cli.nightly.run import run
from orchestrator.cli.nightly.status import status

nightly = typer.Typer(
    help="Run a fixed benchmark every night, and tell people when something got worse.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for command in (run, install, uninstall, status, history, accept, gate, bisect):
    nightly.command()(command)
