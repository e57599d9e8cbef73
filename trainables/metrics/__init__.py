"""Metrics of accuracy and calibration; ``calibration_report`` computes the usual ones.

``evaluation_report`` adds the debiased and smooth errors and the noise floors. ``METRICS``
describes each metric. ``estimated_error`` estimates the true error.
"""

import lazy_loader

# Lazy imports: a table needs only ``METRICS`` and should not import torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
