"""Where the commands print their tables."""

from __future__ import annotations

from rich.console import Console

__all__ = ["output"]

UNBOUNDED = 10_000


def output() -> Console:
    """Return a console on standard output; one that is no terminal cuts nothing off."""
    console = Console(soft_wrap=True, highlight=False)
    if not console.is_terminal:
        console.width = UNBOUNDED
    return console
