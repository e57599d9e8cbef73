"""Measures of accuracy and calibration; ``calibration_report`` gives them all at once.

``evaluation_report`` adds the debiased and the smooth error, and the noise floors. ``METRICS``
describes each metric. ``estimated_error`` estimates how large the true error is.
"""

import lazy_loader

# Imported when first used: a table needs the records of the metrics and must not wait for torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
