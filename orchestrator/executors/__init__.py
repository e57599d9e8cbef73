"""Executors compute the jobs of a loop."""

from orchestrator.executors._base import Executor
from orchestrator.executors._open import open_executor

__all__ = ["Executor", "open_executor"]
