"""Tests whether differences in a table are more than chance.

``compare`` compares the recipes of one task with a baseline: differences with paired bootstrap
intervals over test rows, and noise floors. ``search_gains`` compares each recipe with the published
default that its search began with. ``rank_comparison`` finds differences that hold over many
combinations of data set and model. Everything is computed from stored evaluations.
"""

import lazy_loader

# Modules are imported when first used, because ranks need no torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
