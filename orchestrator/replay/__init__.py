"""Searches replayed over what a storage holds: the same choices are made, nothing is trained.

It is how rules of search are compared: an outcome of a replay is a study of searches, never a row
of a table, and nothing of it enters a journal.
"""

import lazy_loader

# Imported when first used: a command that only names the room must not wait for torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
