"""Networks by name, each split into feature extractor and classifier."""

import lazy_loader

# Imported when first used, because commands that compute nothing must not import torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
