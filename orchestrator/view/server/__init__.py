"""Serves all sweeps of a storage to a browser, during the runs and afterwards.

``application`` is the ASGI application, ``serve`` runs it. It only writes notes, so a copy of a
storage works as well.
"""

from orchestrator.view.server._application import application
from orchestrator.view.server._book import Book
from orchestrator.view.server._server import Address, serve

__all__ = ["Address", "Book", "application", "serve"]
