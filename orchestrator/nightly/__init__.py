"""Nightly runs of a fixed benchmark, and the verdict on each."""

import lazy_loader

# Imported when first used: a command that judges nothing needs no SciPy, one that runs nothing no
# torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
