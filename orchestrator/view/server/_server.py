"""Serves the view until Ctrl-C."""

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

PORT = 8720  # The default, unless another program uses it.


class Address(NamedTuple):
    """The address of a running server.

    Attributes:
        url: The URL with the token.
        open: Whether other machines can reach it.
    """

    url: str
    open: bool


def serve(book: Book, host: str, port: int | None, started: Callable[[Address], None]) -> None:
    """Serve the view of a storage until Ctrl-C; call ``started`` with the server's address.

    Without ``port``, the server listens at ``PORT``, or at a free port if ``PORT`` is in use.
    """
    token = secrets.token_urlsafe(32)
    with bound(host, port) as listening:
        name, number = listening.getsockname()[:2]
        url = f"http://{f'[{name}]' if ':' in name else name}:{number}/?token={token}"
        # No access log: it would have the token.
        config = uvicorn.Config(
            application(book, token), log_level="warning", access_log=False, server_header=False
        )
        config.timeout_graceful_shutdown = 2
        started(Address(url, open=not ip_address(name).is_loopback))
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])


def bound(host: str, port: int | None) -> socket.socket:
    """Return a listening socket at ``port``; without it, at ``PORT`` or at a free port."""
    tries = [PORT, 0] if port is None else [port]
    for number in tries:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, number), family=family)
        except (OSError, OverflowError) as error:
            reason = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
    raise InputError(f"cannot serve at {host}:{tries[-1]}: {reason}; use another --port")
