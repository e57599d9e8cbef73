"""Searches replayed over stored trials, to compare rules of search: nothing is trained."""

import lazy_loader

# Imported when first used: a command that only names the room must not wait for torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
