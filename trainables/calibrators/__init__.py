"""Post-hoc calibrators, one file each: logits to log-probabilities, fitted on held-out rows."""

import lazy_loader

# Lazy imports: names and fields do not need torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
