"""Replays searches over stored trials, to compare search strategies without training."""

import lazy_loader

# Imported when first used, so that commands that do not replay need no torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
