"""Sweeps over calibration methods: specification, search, tracking, selection and tables.

The rooms from the bottom: ``sweep``, ``storage``, ``search``, ``tracking``, ``logits``,
``tables``, ``statistics``, ``running``, ``replay``, ``report``, ``packages``, ``ui``, ``nightly``,
``cli``. Each imports from those before it only.
"""

import lazy_loader

# Imported when first used: `calsweep --help` must not wait for torch and MLflow.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "running.run": ["SweepOutcome", "run_sweep"],
        "sweep.spec": ["SweepSpec", "load_sweep"],
        "tables.make": ["comparison_table"],
        "tracking.best": ["BestConfig", "best_config"],
    },
)
