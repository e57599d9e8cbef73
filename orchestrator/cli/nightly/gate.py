"""``calsweep nightly gate``: a change against the revision that it builds on."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from orchestrator import nightly
from orchestrator.cli._console import echo
from orchestrator.cli._options import Quiet
from orchestrator.cli.nightly.common import File, RepositoryFolder, load
from trainables.common.errors import InputError
from trainables.common.paths import local_path


def gate(
    revision: Annotated[
        str, typer.Argument(metavar="REV", help="The revision to compare with, such as main.")
    ],
    file: File = None,
    out: Annotated[Path | None, typer.Option(help="Write the comparison as Markdown.")] = None,
    repository: RepositoryFolder = None,
    quiet: Quiet = False,
) -> int:
    """Run the benchmark on a revision and on the working tree: exit 0 fine, 3 worse."""
    benchmark = load(file)
    place = local_path(out, "--out") if out else None
    console = None if quiet else Console(stderr=True)
    found = nightly.gate(benchmark, revision, repository, console)
    if place is not None:
        try:
            place.write_text(found.markdown, encoding="utf-8")
        except OSError as error:
            raise InputError(f"--out {place}: cannot be written: {error.strerror}") from error
    echo(found.title)
    for group in nightly.grouped(found.verdict.alarms):
        echo(f"  {nightly.told(group)}")
    return found.verdict.code
