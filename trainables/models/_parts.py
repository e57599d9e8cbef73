"""Where a network can be cut: the units it is built of and the blocks that follow each other."""

from __future__ import annotations

from torch import nn

GRANULARITIES = ("block", "stage")
_POOLING = (
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
    nn.AvgPool2d,
    nn.Flatten,
    nn.Identity,
    nn.MaxPool2d,
)


def units(module: nn.Module, granularity: str) -> list[list[nn.Module]]:
    """Return the parts of a network, grouped so that each group begins with a layer of weights.

    Normalisation, activation and pooling belong to the group before them.

    Args:
        module: The network, or its extractor.
        granularity: ``block`` opens every sequence that holds composite modules, down to single
            residual blocks, dense layers or transformer blocks; ``stage`` only sequences of
            sequences, down to runs of such blocks.
    """
    groups: list[list[nn.Module]] = []
    for part in _opened(list(module.children()), granularity):
        if not groups or _has_weights(part):
            groups.append([])
        groups[-1].append(part)
    return groups


def blocks(extractor: nn.Module) -> list[nn.Module]:
    """Return modules that, applied one after the other, are the extractor.

    The last one is the pooling that ends the extractor, perhaps the identity. An extractor that is
    no sequence, such as a library's network, is a single block.
    """
    if not isinstance(extractor, nn.Sequential):
        return [extractor, nn.Identity()]
    groups = units(extractor, "stage")
    pooling: list[nn.Module] = []
    while groups and groups[-1] and _is_pooling(groups[-1][-1]):
        pooling.insert(0, groups[-1].pop())
    return [nn.Sequential(*group) for group in [*filter(None, groups), pooling]]


def _opened(parts: list[nn.Module], granularity: str) -> list[nn.Module]:
    found = []
    for part in parts:
        children = list(part.children())
        if isinstance(part, nn.Sequential) and _opens(children, granularity):
            found += _opened(children, granularity)
        else:
            found.append(part)
    return found


def _opens(children: list[nn.Module], granularity: str) -> bool:
    if granularity == "stage":
        return bool(children) and all(isinstance(child, nn.Sequential) for child in children)
    return any(list(child.children()) for child in children)


def _has_weights(part: nn.Module) -> bool:
    return any(parameter.ndim > 1 for parameter in part.parameters())


def _is_pooling(part: nn.Module) -> bool:
    leaves = [module for module in part.modules() if not list(module.children())]
    return all(isinstance(leaf, _POOLING) for leaf in leaves)
