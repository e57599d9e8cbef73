"""``calsweep run``."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli._options import Address, DryRun, Fresh, Quiet, Take
from orchestrator.cli._plan import show_plan
from trainables.common.errors import InputError
from trainables.common.paths import DEFAULT_STORAGE


def run(
    sweep: Annotated[str | None, typer.Argument(help="The sweep file.", show_default=False)] = None,
    resume: Annotated[
        str | None, typer.Option(help="Name of a sweep to go on with; needs no sweep file.")
    ] = None,
    storage: Annotated[
        str, typer.Option(help="With --resume: the folder that the sweep is stored in.")
    ] = DEFAULT_STORAGE,
    dry_run: DryRun = False,
    fresh: Fresh = False,
    address: Address = None,
    quiet: Quiet = False,
    take: Take = False,
) -> int:
    """Run a sweep file, or resume a sweep that was interrupted."""
    from orchestrator.cli._outcome import run_and_show
    from orchestrator.storage.storage import Storage
    from orchestrator.sweep.spec import load_sweep

    if (sweep is None) == (resume is None):
        raise InputError("give either a sweep file or --resume NAME")
    if address is not None and address.startswith("ray://") and not dry_run:
        return _run_on_head(address, sweep, resume, storage, fresh, quiet, take)
    spec = Storage(storage).load_spec(resume) if resume is not None else load_sweep(str(sweep))
    if dry_run:
        show_plan(spec)
        return 0
    return run_and_show(spec, resume is not None, fresh, address, quiet, take)


def _run_on_head(
    address: str,
    sweep: str | None,
    resume: str | None,
    storage: str,
    fresh: bool,
    quiet: bool,
    take: bool,
) -> int:
    """Run a sweep file, or resume a sweep whose storage only the cluster may see."""
    from orchestrator.cluster.jobs import read_portable
    from orchestrator.cluster.remote import FILE, run_on_head
    from orchestrator.sweep.spec import load_sweep

    given = {"--fresh": fresh, "--quiet": quiet, "--take": take}
    flags = [flag for flag, wanted in given.items() if wanted]
    if sweep is None:
        target, files = ["--resume", str(resume), "--storage", storage], {}
    else:
        target, files = [FILE], read_portable(Path(sweep), load_sweep(sweep))
    write = partial(typer.echo, nl=False)
    return run_on_head(address, ["run", *target, *flags], files, write)
