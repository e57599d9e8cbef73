"""A view of all sweeps of a storage that a browser shows while they run, and afterwards.

``application`` is the ASGI application, ``serve`` runs it. Nothing but notes is
written: a storage that was copied to another machine will do.
"""

from orchestrator.view.server._application import application
from orchestrator.view.server._book import Book
from orchestrator.view.server._server import Address, serve

__all__ = ["Address", "Book", "application", "serve"]
