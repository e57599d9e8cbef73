"""A view of all sweeps of a storage that a browser shows while they run, and afterwards.

``application`` is the ASGI application, ``serve`` runs it. Nothing is written: a storage that was
copied to another machine will do.
"""

from orchestrator.ui._application import application
from orchestrator.ui._book import Book
from orchestrator.ui._dashboard import optuna_storage, serve_dashboard
from orchestrator.ui._server import Address, serve

__all__ = ["Address", "Book", "application", "optuna_storage", "serve", "serve_dashboard"]
