"""Sweeps over calibration methods: specification, search, tracking, selection and tables.

Packages from the lowest to the highest layer: ``sweep``, ``storage``, ``search``, ``tracking``,
``logits``, ``tables``, ``statistics``, ``cluster``, ``executors``, ``running``, ``replay``,
``view``, ``packages``, ``nightly``, ``cli``. Each imports only from the packages before it.
"""

import lazy_loader

# Imported when first used: `calsweep --help` must not wait for torch and MLflow.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
