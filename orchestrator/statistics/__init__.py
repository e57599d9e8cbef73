"""Which differences in a table are more than chance.

``compare`` puts the recipes of one task beside a baseline: differences with paired bootstrap
intervals over test rows, and noise floors; ``search_gains`` compares each with the published
default that its search began with. ``rank_comparison`` asks for differences that hold over
(dataset, model) blocks. Both need no training: they read what evaluations have stored.
"""

import lazy_loader

# Imported when first used: ranks read nothing that was stored and must not wait for torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
