from torch import Tensor, nn
from torch.nn import functional as F

from trainables.data import TextShape
from trainables.models._base import Network, register_model

EMBEDDING, WIDTH, KERNEL, POOLED = 100, 128, 5, 5
SPREAD = 0.05  # As in Keras; with torch's default, training takes several times as long.


class LargestOfText(nn.Module):
    """``AdaptiveMaxPool1d(1)`` and ``Flatten``, with a gradient that is deterministic on GPUs."""

    def forward(self, values: Tensor) -> Tensor:
        """Return the largest values (N, C)."""
        return values.max(dim=2).values


class Embedding(nn.Module):
    """Vectors of words, with the axes in the order of convolutions.

    Args:
        shape: The form of the texts. If it has vectors, they are used and fixed; if not, vectors
            are learnt.

    Attributes:
        width: Length of a vector, D.
    """

    weight: Tensor

    def __init__(self, shape: TextShape) -> None:
        super().__init__()
        vectors = shape.vectors
        if vectors is None:
            learnt = nn.Embedding(shape.tokens, EMBEDDING, padding_idx=0).weight
            nn.init.uniform_(learnt.data[1:], -SPREAD, SPREAD)
            self.weight = learnt
        else:
            self.register_buffer("weight", vectors)
        self.width = self.weight.shape[1]

    def forward(self, texts: Tensor) -> Tensor:
        """Map word numbers (N, L) to vectors (N, D, L); return vectors (floats) unchanged."""
        if texts.is_floating_point():
            return texts
        return F.embedding(texts, self.weight, padding_idx=0).transpose(1, 2)


def _convolution(inputs: int, pooling: nn.Module) -> nn.Sequential:
    convolution = nn.Conv1d(inputs, WIDTH, KERNEL, padding=KERNEL // 2)
    return nn.Sequential(convolution, nn.ReLU(inplace=True), pooling)


@register_model("gpool-cnn", takes=TextShape)
def gpool_cnn(num_classes: int, shape: TextShape) -> Network:
    """Return the global-pooling CNN of Mukhoti et al. (2020) and MbLS (2022) for texts.

    It has embeddings (fixed, or learnt with 100 dimensions), three convolutions of 128 filters and
    width 5 with max pooling between them, the global maximum and a hidden layer of 128. The papers
    do not describe the layers; these are from MbLS's released code with two changes: pooling has
    stride 5 instead of 1, which takes a fifth of the time, and ends are padded, so that any length
    is allowed.
    """
    embedding = Embedding(shape)
    layers = [
        embedding,
        _convolution(embedding.width, nn.MaxPool1d(POOLED, ceil_mode=True)),
        _convolution(WIDTH, nn.MaxPool1d(POOLED, ceil_mode=True)),
        _convolution(WIDTH, LargestOfText()),
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)),
    ]
    return Network(nn.Sequential(*layers), nn.Linear(WIDTH, num_classes))
