"""``calsweep ui``: pages of a storage or of a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli._console import complain, echo, progress_bar
from orchestrator.cli._options import StorageFolder
from trainables.common.paths import DEFAULT_STORAGE

if TYPE_CHECKING:
    from orchestrator.storage.storage import Storage
    from orchestrator.view.server import Address


Port = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="Default: a fixed port, or a free one if it is taken."),
]


def ui(
    file: Annotated[
        Path | None,
        typer.Argument(help="A file .calsweep to show instead of a storage.", show_default=False),
    ] = None,
    storage: StorageFolder = DEFAULT_STORAGE,
    host: Annotated[
        str, typer.Option(help="Address to listen on; only this machine can reach the default.")
    ] = "127.0.0.1",
    port: Port = None,
) -> None:
    """Show the sweeps of a storage, or of a .calsweep file, in a browser; Ctrl-C ends it."""
    from orchestrator.storage.storage import Storage

    if file is not None:
        from orchestrator.packages.frozen import opened_file

        with opened_file(file) as place:
            _serve(place, host, port)
    else:
        _serve(Storage(storage), host, port)


def _serve(storage: Storage, host: str, port: int | None) -> None:
    from orchestrator.view.server import Book, serve

    book = Book(storage)
    with progress_bar("reading journals") as show:
        book.read_on(show)
    for name in book.outside:
        complain(f"sweep {name!r} is not shown: it has pipes, or links to files elsewhere")
    serve(book, host, port, _announce)


def _announce(address: Address) -> None:
    echo(f"open {address.url}")
    echo("Ctrl-C ends it; only notes are written, and sweeps keep running")
    if address.open:
        complain("other machines can reach this server, and the token is sent unencrypted")
