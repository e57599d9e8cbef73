"""A champion as MLflow loads it: ``mlflow.pyfunc.load_model("models:/NAME@champion")``."""

from typing import Any

import numpy as np

from trainables.stages.export import load_chain


class Champion:
    """Maps rows to probabilities."""

    def __init__(self, folder: str) -> None:
        self._log_probs = load_chain(folder)

    def predict(self, rows: Any, params: Any = None) -> np.ndarray:
        """Return probabilities (N, K), float32, of rows as ``load_chain`` takes them."""
        found: np.ndarray = self._log_probs(np.asarray(rows)).exp().numpy()
        return found


def _load_pyfunc(folder: str) -> Champion:
    """Return what MLflow wraps: this name and its argument are MLflow's."""
    return Champion(folder)
