import numpy as np
from torch import nn

from trainables.common.fields import choice, number
from trainables.models import GRANULARITIES, Network, units
from trainables.schemes._base import SCHEMES, Scheme


@SCHEMES.register("plp")
class ProgressivelyLayerPeeled(Scheme):
    """Freezes the network from the top down while it trains (PLP; Wang & Zhang, ICML 2024).

    Upper layers compress the features so strongly that calibration becomes difficult. The
    parameters are in L groups. Counted from the classifier down, group j stops learning after the
    fraction ``(j / L) ** gamma`` of the epochs, j = 1 ... L - 1; the lowest group learns to the
    end. A frozen parameter keeps its value and momentum without weight decay; batch statistics are
    still updated, as in the released code.

    The released code lists its groups by number for ResNet-18, ResNet-50 and VGG-11, and divides
    the last block in two. Here groups are the network's first layer, its blocks and its classifier.
    The released schedule stops forever if two groups are due in the same epoch, as with fewer
    epochs than groups; here both are frozen.

    Not for short trainings: with ``gamma=1``, the classifier is frozen after 1/L of the epochs.

    Args:
        gamma: Exponent of the schedule, > 0; larger values freeze earlier.
        groups: ``block``: every block is a group, and so is the classifier; ``stage``: every stage
            is a group, and the classifier belongs to the last.
    """

    freezes = True

    gamma: float = number(default=1.0, low=0.0, open_low=True)
    groups: str = choice(default="block", choices=GRANULARITIES)

    def start_epoch(self, network: Network, epoch: int, epochs: int) -> None:
        """Freeze the groups that are due and unfreeze the others."""
        groups = parameter_groups(network, self.groups)
        frozen = self.frozen_groups(len(groups), epoch, epochs)
        for position, group in enumerate(groups):
            for parameter in group:
                parameter.requires_grad_(position < len(groups) - frozen)

    def frozen_groups(self, count: int, epoch: int, epochs: int) -> int:
        """Return the number of frozen groups, from the top, in epoch ``epoch``."""
        starts = np.linspace(0, 1, count + 1)[1:-1] ** self.gamma * epochs
        return int((starts.astype(int) <= epoch).sum())


def parameter_groups(network: Network, granularity: str) -> list[list[nn.Parameter]]:
    """Return all parameters of a network in groups, from the inputs to the classifier.

    Parameters outside of all blocks, such as position embeddings, are in the first group. A
    scheme's additions to the classifier belong to the classifier. Groups without parameters are
    omitted: otherwise nothing would learn if one of them came last.
    """
    groups = [
        [parameter for part in parts for parameter in part.parameters()]
        for parts in units(network.extractor, granularity)
    ] or [[]]
    groups[0] = [*network.extractor.parameters(recurse=False), *groups[0]]
    inside = {id(parameter) for parameter in network.extractor.parameters()}
    head = [parameter for parameter in network.parameters() if id(parameter) not in inside]
    groups = [*groups[:-1], [*groups[-1], *head]] if granularity == "stage" else [*groups, head]
    return [group for group in groups if group]
