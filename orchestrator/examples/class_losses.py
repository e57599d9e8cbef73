"""CLS, Figs. 1, 3 and 4: how far the losses of classes differ, and a fit on the hardest classes.

It is the plugin of cls-classes.yaml, and draws each class of stored predictions as a dot:

calsweep package predictions cls-classes --task TASK --out FOLDER
python class_losses.py figure.svg FOLDER/*.npz
"""

from argparse import ArgumentParser
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calsweep.plugins import METRICS, OBJECTIVES, Objective, RowTerms, count
from trainables.charts.chart import Chart, amount, drawn, layer, names, tips

BINS = 15


def class_means(values: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of the values (N,) of each class that has rows, by number of class."""
    counts = labels.bincount()
    return labels.bincount(values)[counts > 0] / counts[counts > 0]


def class_losses(probs: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each class that has rows."""
    own = probs.gather(1, labels[:, None]).squeeze(1)
    return class_means(-own.clamp(min=torch.finfo(own.dtype).tiny).log(), labels)


def class_errors(probs: Tensor, labels: Tensor) -> Tensor:
    """Return the ECE of the rows of each class that has rows, with 15 bins of equal width."""
    confidence, predicted = probs.max(dim=1)
    bins = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
    gaps = confidence - (predicted == labels).to(confidence.dtype)
    sums = torch.bincount(labels * BINS + bins, gaps, BINS * (int(labels.max()) + 1))
    counts = labels.bincount()
    return sums.reshape(-1, BINS).abs().sum(1)[counts > 0] / counts[counts > 0]


@METRICS.register(
    "class_spread", better="lower", label="spread", percent=False, digits=4, bounds=(0, torch.inf)
)
def class_spread(probs: Tensor, labels: Tensor) -> Tensor:
    """Return the standard deviation of the losses of classes: CLS is meant to lower it."""
    return class_losses(probs, labels).std(correction=0)


@METRICS.register("class_r", better="neither", label="r", percent=False, digits=3, bounds=(-1, 1))
def class_r(probs: Tensor, labels: Tensor) -> Tensor:
    """Return the correlation of the losses of classes with their ECE; 0 if one does not vary."""
    losses, errors = class_losses(probs, labels), class_errors(probs, labels)
    losses, errors = losses - losses.mean(), errors - errors.mean()
    return torch.cosine_similarity(losses, errors, dim=0).clamp(-1, 1)


@OBJECTIVES.register("hardest")
class Hardest(Objective):
    """Cross-entropy of the classes alone whose loss is largest before the fit.

    Source: CLS (Jung et al., 2023), sec. 4.1. It shows what a fit on few classes does to all; not
    for networks that are to be used.

    Args:
        classes: How many classes count; all, if there are fewer.
    """

    log_loss = True
    adaptive = True

    classes: int = count(default=3)

    def per_row(self, terms: RowTerms) -> Tensor:
        """Return ``-log p_y``."""
        return -terms.log_p

    def begin(self, losses: Tensor, labels: Tensor, num_classes: int) -> None:
        """Choose the classes."""
        present = labels.unique()
        hardest = class_means(losses, labels).topk(min(self.classes, len(present))).indices
        self._chosen = present[hardest]

    def row_weights(self, losses: Tensor, labels: Tensor, num_classes: int) -> Tensor:
        """Return equal weights of the rows of these classes, and 0 of all others."""
        counted = torch.isin(labels, self._chosen)
        return counted / counted.sum().to(losses.dtype)


def chart(files: Iterable[Path]) -> Chart:
    """Return the cross-entropy of each class and the ECE of its rows, coloured by file."""
    rows = []
    for path in files:
        with np.load(path) as stored:
            logits, labels = (torch.from_numpy(stored[name]) for name in ("logits", "labels"))
        probs = logits.double().softmax(dim=1)
        found = (labels.unique(), class_losses(probs, labels), 100 * class_errors(probs, labels))
        for label, loss, error in zip(*(each.tolist() for each in found), strict=True):
            rows.append({"file": path.stem, "class": label, "loss": loss, "ece": error})
    encoding = {
        "x": amount("loss", "cross-entropy of a class"),
        "y": amount("ece", "ECE of its rows %"),
        "color": names("file", "predictions"),
        "tooltip": tips(**{"class": "class", "loss": "cross-entropy", "ece": "ECE %"}),
    }
    title = "Loss and ECE by class"
    return drawn(title, title, [layer("class", "point", encoding, filled=True)], rows)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("figure", help="path that ends in .svg, .pdf or .png")
    parser.add_argument("files", nargs="+", type=Path, help="files of `package predictions`")
    given = parser.parse_args()
    chart(given.files).save(given.figure)
