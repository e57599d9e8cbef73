"""calsweep, as users import it: sweeps, losses, calibrators and metrics.

    from calsweep import build_loss, sweep

``calsweep.plugins`` has what authors of plugins need. Each name is documented where it is written;
``help(calsweep.sweep)`` shows it.
"""

import warnings
from importlib import import_module
from typing import Any

from calsweep._lazy import LazyNames

# Imported when first used: `import calsweep` must not wait for torch and MLflow.
_NAMES = LazyNames(__name__, __file__)

__all__ = list(_NAMES)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        return _moved(name)
    value = globals()[name] = _NAMES.find(name)
    return value


def _moved(name: str) -> Any:
    """Return a name of 1.0 that is in ``calsweep.plugins`` now: stored copies of plugins use it."""
    plugins = import_module("calsweep.plugins")  # `from calsweep import` asks this module first.
    if name not in plugins.__all__:
        return _NAMES.find(name)
    new = f"from calsweep.plugins import {name}"
    warnings.warn(f"calsweep.{name} has moved; use `{new}`", DeprecationWarning, stacklevel=3)
    value = globals()[name] = getattr(plugins, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
