"""The stages of a trial (train or given, refine, calibrate) and the measurement on test data."""

import lazy_loader

# Lazy imports, so that a sweep file is checked without torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
