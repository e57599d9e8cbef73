"""Networks by name, each split into feature extractor and classifier."""

import lazy_loader

# Imported when first used: names and fields must not wait for torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
