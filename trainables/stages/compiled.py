import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor

from trainables.models import Network

BACKEND: str | Callable[..., Any] = "inductor"
MOST_GRAPHS = 8  # Of one training: each takes a minute or more.


def as_written() -> AbstractContextManager[object]:
    """Return a context within which compiled networks run as they were written."""
    # It takes a second to import what compiles; where nobody has, nothing is compiled.
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


class CompiledFeatures:
    """``Network.features`` as one graph for batches of one size; put in that method's place.

    Batches of another size, such as a short last one, run as the network is written, which is the
    same up to rounding: a second graph would take minutes for one step an epoch. So does everything
    after something that no graph can hold, or after more changes of what learns than graphs are
    made for: ``refused`` says then why; it is empty while the network is compiled.
    """

    # Graphs are kept for the next network of the same form, but none knows what learnt then.
    learning: ClassVar[tuple[bool, ...]] = ()

    def __init__(self, network: Network, batch_size: int) -> None:
        self._written = network.features
        self._weights = list(network.parameters())
        self._batch_size = batch_size
        self._graphs = 1
        self._compiled = torch.compile(
            network.features, fullgraph=True, dynamic=False, backend=BACKEND
        )
        self.refused = ""

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the features (N, D) of inputs (N, ...)."""
        if self.refused or len(inputs) != self._batch_size:
            return self._written(inputs)
        # Not imported with this module: it takes a second, and few trainings are compiled.
        from torch._dynamo.exc import FailOnRecompileLimitHit, Unsupported

        learning = tuple(weight.requires_grad for weight in self._weights)
        if learning != self.learning:
            self._forget_graphs()
            CompiledFeatures.learning = learning
        try:
            return self._compiled(inputs)
        except FailOnRecompileLimitHit:
            self._forget_graphs()
        except Unsupported as error:
            self.refused = str(error).strip().splitlines()[0]
        return self(inputs)

    def _forget_graphs(self) -> None:
        torch.compiler.reset()
        self._graphs += 1
        if self._graphs > MOST_GRAPHS + 1:
            self.refused = f"what learns changed more than {MOST_GRAPHS} times"
