"""The AURC paper's figure of gradients: the gradient of each loss by the probability of the class.

python loss_gradients.py gradients.svg (or .pdf, .png)
"""

from argparse import ArgumentParser

import torch
from torch import Tensor

from calsweep import build_loss
from trainables.charts.chart import Chart, amount, curves, drawn, layer, names, tips

LOSSES = ("ce", "fl", "flsd", "ifl", "dfl", "aurc", "au")  # With their published values.
CLASSES = 10
PROBABILITIES = torch.arange(1, 200, dtype=torch.float64) / 200


def gradients(name: str) -> Tensor:
    """Return minus the gradient in the logit of a row's class, (N,), at ``PROBABILITIES``.

    The other classes are equally likely. All rows are one batch, as ``aurc`` and ``au`` rank rows.
    """
    others = ((1 - PROBABILITIES) / (CLASSES - 1))[:, None].expand(-1, CLASSES - 1)
    logits = torch.cat((PROBABILITIES[:, None], others), dim=1).log().requires_grad_()
    loss = build_loss(name)(logits, torch.zeros(len(logits), dtype=torch.long))
    (found,) = torch.autograd.grad(loss * len(logits), logits)
    return -found[:, 0]


def chart() -> Chart:
    """Return the gradients of all losses as a chart; cross-entropy is a line from 1 to 0."""
    rows = [
        {"loss": name, "p": PROBABILITIES.tolist(), "pull": gradients(name).tolist()}
        for name in LOSSES
    ]
    encoding = {
        "x": amount("p", "probability of the row's class"),
        "y": amount("pull", "minus the gradient in its logit"),
        "color": names("loss", "loss", sort=list(LOSSES)),
        "tooltip": tips(p="probability", pull="minus the gradient"),
    }
    title, lines = "Gradients by probability", layer("loss", "line", encoding)
    return drawn(title, title, [lines], rows, transform=curves("p", "pull"))


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("figure", help="path that ends in .svg, .pdf or .png")
    chart().save(parser.parse_args().figure)
