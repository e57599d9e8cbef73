"""Serves the view until somebody ends it."""

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import NamedTuple

import uvicorn

from orchestrator.view.server._application import application
from orchestrator.view.server._book import Book
from trainables.common.errors import InputError

PORT = 8720  # Where it serves unless another program does.


class Address(NamedTuple):
    """Where a view is served.

    Attributes:
        url: What to open, with the token.
        open: Whether other machines can reach it.
    """

    url: str
    open: bool


def serve(book: Book, host: str, port: int | None, started: Callable[[Address], None]) -> None:
    """Serve the view of a storage until Ctrl-C; ``started`` hears where.

    A port of None is ``PORT``, or a free one where that is taken.
    """
    token = secrets.token_urlsafe(32)
    with bound(host, port) as listening:
        found = listening.getsockname()
        shown = f"[{found[0]}]" if ":" in found[0] else found[0]
        url = f"http://{shown}:{found[1]}/?token={token}"
        # No access log: it would hold the token.
        config = uvicorn.Config(
            application(book, token), log_level="warning", access_log=False, server_header=False
        )
        config.timeout_graceful_shutdown = 2
        started(Address(url, open=not ip_address(found[0]).is_loopback))
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])


def bound(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens: at a port, or else at ``PORT`` or, if taken, a free one."""
    tries = [PORT, 0] if port is None else [port]
    for number in tries:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, number), family=family)
        except (OSError, OverflowError) as error:
            reason = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
    raise InputError(f"nothing can be served at {host}:{tries[-1]}: {reason}; give another --port")
