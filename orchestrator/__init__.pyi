from .running.run import SweepOutcome, run_sweep
from .sweep.spec import SweepSpec, load_sweep
from .tables.make import comparison_table
from .tracking.best import BestConfig, best_config

__all__ = [
    "BestConfig",
    "SweepOutcome",
    "SweepSpec",
    "best_config",
    "comparison_table",
    "load_sweep",
    "run_sweep",
]
