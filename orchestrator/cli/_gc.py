"""``calsweep gc``."""

from typing import Annotated

import typer

from orchestrator.cli._console import output, print_plain
from orchestrator.cli._options import Take
from trainables.common.paths import DEFAULT_STORAGE


def gc(
    storage: Annotated[str, typer.Option(help="Storage folder.")] = DEFAULT_STORAGE,
    drop: Annotated[
        list[str] | None,
        typer.Option(help="A sweep to give up, with all that only it needs; may be repeated."),
    ] = None,
    take: Take = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing; only tell.")] = False,
) -> None:
    """Remove stored outcomes that no kept sweep needs, and say how much."""
    from orchestrator.storage.garbage import collect_garbage
    from orchestrator.storage.storage import Storage

    found = collect_garbage(Storage(storage), drop or (), dry_run, take)
    rows = []
    for kind in found:
        figures = (kind.removed, kind.bytes_removed / 1e6, kind.kept, kind.bytes_kept / 1e6)
        rows.append([kind.kind, *(f"{n:.1f}" if isinstance(n, float) else str(n) for n in figures)])
    print_plain(("kind", "removed", "MB", "kept", "MB"), rows, ("kind",))
    freed = sum(kind.bytes_removed for kind in found) / 1e6
    output().print(f"{freed:.1f} MB {'would be' if dry_run else 'were'} freed")
