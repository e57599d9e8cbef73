"""Training schemes, which change the trained parameters over time, one file each."""

import lazy_loader

# Imported when first used: names and fields must not wait for torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
