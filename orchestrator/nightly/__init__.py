"""Run a fixed benchmark every night and judge whether its results got worse."""

import lazy_loader

# Imported on first use: commands that judge no night do not need SciPy, those that run none do not
# need torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
