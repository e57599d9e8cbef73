"""Loads a champion for ``mlflow.pyfunc.load_model("models:/NAME@champion")``."""

from typing import Any

import numpy as np

from trainables.stages.export import load_chain


class Champion:
    """Maps rows to probabilities."""

    def __init__(self, folder: str) -> None:
        self._log_probs = load_chain(folder)

    def predict(self, rows: Any, params: Any = None) -> np.ndarray:
        """Return probabilities (N, K), float32; see ``load_chain`` for the rows."""
        probabilities: np.ndarray = self._log_probs(np.asarray(rows)).exp().numpy()
        return probabilities


def _load_pyfunc(folder: str) -> Champion:
    """Load a champion; MLflow requires this name and argument."""
    return Champion(folder)
