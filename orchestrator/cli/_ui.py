"""``calsweep ui``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli._console import complain, echo, progress_bar
from orchestrator.cli._options import StorageFolder
from trainables.common.paths import DEFAULT_STORAGE

if TYPE_CHECKING:
    from orchestrator.ui import Address


def ui(
    storage: StorageFolder = DEFAULT_STORAGE,
    host: Annotated[
        str, typer.Option(help="Where to listen; only this machine reaches the default.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Default: 8720, or a free one if it is taken."),
    ] = None,
) -> None:
    """Show all sweeps of a storage in a browser while they run, and afterwards; Ctrl-C ends it."""
    from orchestrator.storage.storage import Storage
    from orchestrator.ui import Book, serve

    book = Book(Storage(storage))
    with progress_bar("reading journals") as show:
        book.read_on(show)
    serve(book, host, port, _tell)


def _tell(address: Address) -> None:
    echo(f"open {address.url}")
    echo("Ctrl-C ends it; nothing is written, and sweeps go on")
    if address.open:
        complain("other machines can reach this, and the token travels unencrypted")
