"""Sweeps over calibration methods: specification, search, tracking, selection and tables.

The rooms from the bottom: ``sweep``, ``storage``, ``search``, ``tracking``, ``logits``,
``tables``, ``statistics``, ``running``, ``replay``, ``report``, ``packages``, ``ui``, ``nightly``,
``cli``. Each imports from those before it only.
"""

import lazy_loader

# Imported when first used: `calsweep --help` must not wait for torch and MLflow.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
