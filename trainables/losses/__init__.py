"""Training losses, one file each; ``build_loss`` makes one by its name in recipes."""

import lazy_loader

# Lazy imports: names and fields do not need torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
