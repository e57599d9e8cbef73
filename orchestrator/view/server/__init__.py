"""Serves all sweeps of a storage to a browser, during the runs and afterwards.

``application`` is the ASGI application, and ``serve`` runs it. The server writes only notes (and
fetched files, if the storage is in a bucket), so it can show a copy of a storage.
"""

from orchestrator.view.server._application import application
from orchestrator.view.server._book import Book
from orchestrator.view.server._server import Address, serve

__all__ = ["Address", "Book", "application", "serve"]
