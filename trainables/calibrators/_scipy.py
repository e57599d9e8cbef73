"""The one door to SciPy's minimiser, whose type stubs cannot follow solver options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy


def scipy_minimize(
    function: Callable[[np.ndarray], Any], start: np.ndarray, **settings: Any
) -> scipy.optimize.OptimizeResult:
    """Call ``scipy.optimize.minimize`` with its keyword arguments and return its result."""
    run: Any = scipy.optimize.minimize
    return run(function, start, **settings)
