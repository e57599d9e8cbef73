"""Names for authors of plugins: base classes, registries and declarations of arguments.

    from calsweep.plugins import LOSSES, RowLoss, number

docs/methods.md explains each kind of part.
"""

from typing import Any

from calsweep._lazy import LazyNames

_NAMES = LazyNames(__name__, __file__)

__all__ = list(_NAMES)


def __getattr__(name: str) -> Any:
    value = globals()[name] = _NAMES.find(name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
