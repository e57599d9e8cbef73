from orchestrator.running.run import SweepOutcome, run_sweep
from orchestrator.sweep.spec import SweepSpec, load_sweep
from orchestrator.tables.make import comparison_table
from orchestrator.tracking.best import BestConfig, best_config

__all__ = [
    "BestConfig",
    "SweepOutcome",
    "SweepSpec",
    "best_config",
    "comparison_table",
    "load_sweep",
    "run_sweep",
]
