"""The ``calsweep`` command."""

from orchestrator.cli._app import main

__all__ = ["main"]
