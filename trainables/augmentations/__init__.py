"""Batch augmentations that change the training step, one file each; they work with any loss."""

import lazy_loader

# Lazy imports: names and fields do not need torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
