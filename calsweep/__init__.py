"""calsweep, as users import it: sweeps, losses, calibrators, metrics, and bases of one's own.

    from calsweep import build_loss, load_sweep, run_sweep

Each name is documented where it is written; ``help(calsweep.run_sweep)`` shows it.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any


def _homes() -> dict[str, str]:
    """Return the module of each name, as the stub has them; ``lazy_loader`` reads its own only."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = (node for node in stub.body if isinstance(node, ast.ImportFrom))
    return {each.name: str(node.module) for node in imports for each in node.names}


# Imported when first used: `import calsweep` must not wait for torch and MLflow.
_HOMES = _homes()

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'calsweep' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(_HOMES)
