"""Run a fixed benchmark every night and judge whether its results got worse."""

import lazy_loader

# Imported on first use: not all parts need SciPy, and only running nights needs torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
