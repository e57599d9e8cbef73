"""The one door to SciPy's minimiser, whose type stubs cannot follow solver options."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import optimize


def scipy_minimize(
    function: Callable[[np.ndarray], Any], start: np.ndarray, **settings: Any
) -> optimize.OptimizeResult:
    """Call ``scipy.optimize.minimize`` with its keyword arguments and return its result."""
    run: Any = optimize.minimize
    return run(function, start, **settings)
