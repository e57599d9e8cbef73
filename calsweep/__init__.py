"""calsweep's public names: sweeps, losses, calibrators and metrics.

    from calsweep import build_loss, sweep

``calsweep.plugins`` has the names for authors of plugins. ``help(calsweep.sweep)`` shows the
documentation of a name.
"""

import warnings
from importlib import import_module
from typing import Any

from calsweep._lazy import LazyNames

# Names are imported on first use, so that `import calsweep` does not load torch and MLflow.
_NAMES = LazyNames(__name__, __file__)

__all__ = list(_NAMES)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        return _moved(name)
    value = globals()[name] = _NAMES.find(name)
    return value


def _moved(name: str) -> Any:
    """Return a name that calsweep 1.0 had here, because stored copies of plugins still use it."""
    plugins = import_module("calsweep.plugins")  # `from calsweep import plugins` comes here first.
    if name not in plugins.__all__:
        return _NAMES.find(name)
    new = f"from calsweep.plugins import {name}"
    warnings.warn(f"calsweep.{name} has moved; use `{new}`", DeprecationWarning, stacklevel=3)
    value = globals()[name] = getattr(plugins, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
