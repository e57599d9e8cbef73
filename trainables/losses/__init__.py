"""Training losses, one file each; ``build_loss`` makes one by the name that recipes use."""

import lazy_loader

# Imported when first used: names and fields must not wait for torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
