"""The losses as their authors' code computes them, written out plainly: what ours are compared to.

Pairs of rows and pairs of classes are laid out in full, classes and rows are looped over in Python
and values are fetched from the device wherever the released codes do so. Hyper-parameters are the
defaults of the package's losses, and all results are means over the batch, so that values agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.special import digamma
from torch import Tensor
from torch.nn import functional as F

Reference = Callable[[Tensor, Tensor], Tensor]
EPSILON = 1e-9


def _true_prob(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    log_prob = F.log_softmax(logits, dim=1).gather(1, targets.view(-1, 1)).view(-1)
    return log_prob, log_prob.exp()


def _clamped_softmax(logits: Tensor) -> Tensor:
    return torch.clamp(F.softmax(logits, dim=1), EPSILON, 1 - EPSILON)


def ce(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy."""
    return F.cross_entropy(logits, targets)


def ls(logits: Tensor, targets: Tensor) -> Tensor:
    """Label smoothing against a dense target."""
    soft = torch.full_like(logits, 0.05 / logits.shape[1])
    soft.scatter_(1, targets.view(-1, 1), 1 - 0.05 + 0.05 / logits.shape[1])
    return (-soft * F.log_softmax(logits, dim=1)).sum(dim=1).mean()


def fl(logits: Tensor, targets: Tensor) -> Tensor:
    """Focal loss."""
    log_prob, prob = _true_prob(logits, targets)
    return (-1 * (1 - prob) ** 3.0 * log_prob).mean()


def flsd(logits: Tensor, targets: Tensor) -> Tensor:
    """Sample-dependent focal loss: the exponent of each row is looked up in Python."""
    log_prob, prob = _true_prob(logits, targets)
    gammas = []
    for row in range(len(prob)):
        value = prob[row].item()
        gammas.append(5.0 if value < 0.2 else 3.0)
    exponents = torch.tensor(gammas, device=logits.device)
    return (-1 * (1 - prob) ** exponents * log_prob).mean()


def dfl(logits: Tensor, targets: Tensor) -> Tensor:
    """Dual focal loss: the competitor is the largest probability below the true one."""
    log_prob, _ = _true_prob(logits, targets)
    probs = F.softmax(logits, dim=1)
    prob = probs.gather(1, targets.view(-1, 1)).view(-1)
    below = probs * (probs < prob.view(-1, 1))
    rival = below.topk(1, dim=1).values.squeeze(1)
    return (-1 * (1 - prob + rival) ** 5.0 * log_prob).mean()


def ifl(logits: Tensor, targets: Tensor) -> Tensor:
    """Inverse focal loss."""
    log_prob, prob = _true_prob(logits, targets)
    return (-1 * (1 + prob.clamp(EPSILON, 1 - EPSILON)) ** 2.0 * log_prob).mean()


def brier(logits: Tensor, targets: Tensor) -> Tensor:
    """Brier score against a one-hot matrix."""
    one_hot = torch.zeros_like(logits).scatter_(1, targets.view(-1, 1), 1)
    return torch.sum((one_hot - F.softmax(logits, dim=1)) ** 2) / logits.shape[0]


def ecp(logits: Tensor, targets: Tensor) -> Tensor:
    """Entropy penalty, averaged over rows and classes."""
    probs = F.softmax(logits, dim=1)
    clipped = torch.clamp(probs, 1e-10, 1 - 1e-10)
    return F.cross_entropy(logits, targets) - 0.1 * (-clipped * torch.log(clipped)).mean()


def mbls(logits: Tensor, targets: Tensor) -> Tensor:
    """Margin penalty on the distances to the largest logit."""
    largest = logits.max(dim=1).values.unsqueeze(1).repeat(1, logits.shape[1])
    return F.cross_entropy(logits, targets) + 0.1 * F.relu(largest - logits - 6.0).mean()


def acls(logits: Tensor, targets: Tensor) -> Tensor:
    """Adaptive and conditional penalty with an indicator matrix of the predicted class."""
    largest = logits.max(dim=1).values.unsqueeze(1).repeat(1, logits.shape[1])
    predicted = (largest.clone().detach() == logits.clone().detach()).float()
    positive = predicted * F.relu(largest - 6.0) ** 2
    negative = (1.0 - predicted) * F.relu(largest.clone().detach() - logits - 6.0) ** 2
    rows, classes = logits.shape
    penalty = positive.sum() / rows + 0.1 * (negative.sum() / (rows * (classes - 1.0)))
    return F.cross_entropy(logits, targets) + 0.1 * penalty


def aurc(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy weighted by rank: softmax twice, weights from a list made with SciPy."""
    rows = len(logits)
    scores = _clamped_softmax(_clamped_softmax(logits)).max(dim=1).values
    losses = F.cross_entropy(logits, targets, reduction="none")
    with torch.no_grad():
        ranks = torch.argsort(torch.argsort(scores, stable=True))
        listed = [digamma(rows + 1) - digamma(rows - rank + 1) for rank in range(1, rows + 1)]
        weights = torch.tensor(listed, dtype=logits.dtype, device=logits.device)[ranks]
    return (losses * weights).mean()


class SelectiveAU:
    """Selective-risk weights from an accumulated histogram."""

    def __init__(self) -> None:
        self.edges = torch.linspace(0, 1, 65)
        self.counts = torch.zeros(64)
        self.total = torch.tensor(0.0)

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Count the batch, then weigh its cross-entropy."""
        for name in ("edges", "counts", "total"):
            setattr(self, name, getattr(self, name).to(logits.device))
        losses = F.cross_entropy(logits, targets, reduction="none")
        scores = _clamped_softmax(_clamped_softmax(logits)).max(dim=1).values
        if torch.isnan(scores).any():
            scores = torch.where(torch.isnan(scores), torch.zeros_like(scores), scores)
        place = (torch.bucketize(scores.detach(), self.edges, right=True) - 1).clamp(0, 63)
        self.counts += torch.bincount(place, minlength=64)
        self.total += float(len(scores))
        quantile = torch.quantile(scores, 0.9)
        rows = len(logits)
        low, high = 1 / (rows + 1), rows / (rows + 1)
        ranks = torch.clamp(self._cdf(scores), low, high)
        bound = torch.clamp(self._cdf(quantile), low, high)
        weights = torch.where(scores >= quantile, -torch.log(1 - bound), -torch.log(1 - ranks))
        return (losses * weights).mean()

    def _cdf(self, values: Tensor) -> Tensor:
        centres = 0.5 * (self.edges[:-1] + self.edges[1:])
        steps = torch.sigmoid((values.view(-1, 1) - centres.view(1, -1)) / 0.1)
        return (steps * self.counts.clamp_min(1e-12).view(1, -1)).sum(dim=1) / self.total


class CorrectnessRanking:
    """Ranking loss with its history in NumPy arrays on the host."""

    def __init__(self, counts: np.ndarray, indices: Tensor, epochs: int) -> None:
        self.counts = counts.copy()
        self.indices = indices
        self.epochs = epochs

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Compare each confidence with the next one, then count the batch."""
        confidence = F.softmax(logits, dim=1).max(dim=1).values
        other, second = torch.roll(confidence, -1), torch.roll(self.indices, -1)
        first, following = self._share(self.indices), self._share(second)
        sign = torch.from_numpy(np.sign(first - following)).float().to(logits.device)
        margin = torch.from_numpy(np.abs(first - following)).float().to(logits.device)
        nonzero = sign.clone()
        nonzero[nonzero == 0] = 1
        ranking = F.margin_ranking_loss(confidence, other + margin / nonzero, sign, margin=0.0)
        right = logits.argmax(dim=1) == targets
        self.counts[self.indices.cpu().numpy()] += right.cpu().numpy()
        return F.cross_entropy(logits, targets) + ranking

    def _share(self, indices: Tensor) -> np.ndarray:
        low = self.counts.min()
        return (self.counts[indices.cpu().numpy()] - low) / (self.epochs - low)


class CalibratedProbability:
    """An epoch of CaPE that calibrates, with goals and notes in NumPy arrays on the host."""

    def __init__(self, goals: np.ndarray, indices: Tensor) -> None:
        self.goals = goals
        self.confidences, self.right = np.zeros_like(goals), np.zeros_like(goals)
        self.indices = indices

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Note the batch, then fit its confidences to their goals."""
        confidence, predicted = F.softmax(logits, dim=1).max(dim=1)
        places = self.indices.cpu().numpy()
        self.confidences[places] = confidence.detach().cpu().numpy()
        self.right[places] = (predicted == targets).cpu().numpy()
        goals = torch.from_numpy(self.goals[places]).float().to(logits.device)
        return F.binary_cross_entropy(confidence, goals)


class PrunedHuber:
    """Focal loss and Huber penalty of the samples that are kept, noted in NumPy arrays."""

    def __init__(self, kept: np.ndarray, indices: Tensor) -> None:
        self.kept = kept
        self.average = np.zeros(len(kept))
        self.indices = indices

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Note the batch, leave out its pruned rows and compute the loss of the others."""
        places = self.indices.cpu().numpy()
        confidence, predicted = F.softmax(logits, dim=1).max(dim=1)
        newest = confidence.detach().cpu().numpy()
        self.average[places] = 0.3 * newest + 0.7 * self.average[places]
        kept = torch.from_numpy(self.kept[places]).to(logits.device)
        log_prob, prob = _true_prob(logits[kept], targets[kept])
        accuracy = (predicted == targets)[kept].float().mean()
        penalty = F.huber_loss(confidence[kept].mean(), accuracy, delta=0.005)
        return (-1 * (1 - prob) * log_prob).mean() + penalty


def _pairs(first: Tensor, second: Tensor) -> Tensor:
    left = first.unsqueeze(1).repeat(1, second.shape[0]).unsqueeze(2)
    right = second.unsqueeze(1).repeat(1, first.shape[0]).unsqueeze(2)
    return torch.cat([left, right.permute(1, 0, 2)], dim=2)


def _kernel(pairs: Tensor) -> Tensor:
    return torch.exp(-1.0 * torch.abs(pairs[:, :, 0] - pairs[:, :, 1]) / 0.4)


def mmce_term(logits: Tensor, targets: Tensor) -> Tensor:
    """Squared MMCE with an (N, N, 2) array of pairs."""
    confidence, predicted = F.softmax(logits, dim=1).max(dim=1)
    gap = (predicted == targets).to(confidence.dtype) - confidence
    products = torch.mm(gap.unsqueeze(1), gap.unsqueeze(0))
    return torch.sum(products * _kernel(_pairs(confidence, confidence))) / len(gap) ** 2


def mmce(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy plus squared MMCE."""
    return F.cross_entropy(logits, targets) + mmce_term(logits, targets)


def mmce_w_term(logits: Tensor, targets: Tensor) -> Tensor:
    """Weighted MMCE with three arrays of pairs; for batches with right and wrong rows."""
    confidence, predicted = F.softmax(logits, dim=1).max(dim=1)
    correct = (predicted == targets).to(confidence.dtype)
    right, wrong = int(correct.sum()), int((1 - correct).sum())
    sure = torch.topk(confidence * correct, right).values
    mistaken = torch.topk(confidence * (1 - correct), wrong).values
    terms = []
    for first, second in ((sure, sure), (mistaken, mistaken), (sure, mistaken)):
        left = 1 - first if first is sure else first
        other = 1 - second if second is sure else second
        weights = torch.mm(left.unsqueeze(1), other.unsqueeze(0))
        mean = torch.mean(_kernel(_pairs(first, second)) * weights)
        terms.append(mean / (len(first) * len(second) + 1e-5))
    return torch.sqrt(terms[0] + terms[1] - 2 * terms[2] + 1e-10)


def mmce_w(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy plus weighted MMCE."""
    return F.cross_entropy(logits, targets) + 2.0 * mmce_w_term(logits, targets)


def cpc(logits: Tensor, targets: Tensor) -> Tensor:
    """Pairwise constraints with an (N, K - 1, K - 1) array of differences."""
    rows, classes = logits.shape
    one_hot = F.one_hot(targets, classes)
    own = logits[one_hot == 1].view(rows, -1)
    rest = logits[one_hot == 0].view(rows, -1)
    discrimination = -F.logsigmoid(own - rest).sum() / (classes - 1) / rows
    difference = rest.unsqueeze(2) - rest.unsqueeze(1)
    terms = 0.5 * F.logsigmoid(difference + 1e-10) / (classes - 1) / (classes - 2) / rows
    return F.cross_entropy(logits, targets) + 0.1 * discrimination - torch.sum(terms)


def mdca(logits: Tensor, targets: Tensor) -> Tensor:
    """Difference of confidence and accuracy, class by class in Python."""
    probs = F.softmax(logits, dim=1)
    total = torch.tensor(0.0, device=logits.device)
    for label in range(logits.shape[1]):
        total = total + torch.abs(probs[:, label].mean() - (targets == label).float().mean())
    return F.cross_entropy(logits, targets) + total / logits.shape[1]


def dca(logits: Tensor, targets: Tensor) -> Tensor:
    """Difference of mean confidence and accuracy."""
    confidence, predicted = F.softmax(logits, dim=1).max(dim=1)
    gap = torch.abs(confidence.mean() - (predicted == targets).float().mean())
    return F.cross_entropy(logits, targets) + gap


def esd_term(confidence: Tensor, correct: Tensor) -> Tensor:
    """Expected squared difference with (N, N) matrices of orders and values."""
    rows = len(confidence)
    value = (correct.to(confidence.dtype) - confidence).view(1, rows)
    others = torch.ones_like(value).expand(rows, rows) - torch.eye(rows, device=value.device)
    below = confidence.expand(rows, rows) <= confidence.view(1, rows).T.expand(rows, rows)
    picked = value.expand(rows, rows) * below.to(value.dtype) * others
    mean = picked.sum(dim=1) / (rows - 1)
    spread = (picked * picked).sum(dim=1) / (rows - 2) - (rows - 1) / (rows - 2) * mean * mean
    return torch.sum(mean * mean - spread / (rows - 1)) / rows


def esd(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy plus the root of the expected squared difference."""
    confidence, predicted = F.softmax(logits, dim=1).max(dim=1)
    term = torch.sqrt(F.relu(esd_term(confidence, predicted == targets)))
    return F.cross_entropy(logits, targets) + 0.5 * term


def _dirichlet(probs: Tensor, bandwidth: Tensor) -> Tensor:
    alphas = probs / bandwidth + 1
    log_beta = torch.lgamma(alphas).sum(dim=1) - torch.lgamma(alphas.sum(dim=1))
    kernel = torch.matmul(torch.log(probs), (alphas - 1).T) - log_beta
    least = torch.finfo(torch.float).min * torch.ones(len(probs), device=probs.device)
    return kernel + torch.diag(least)


def _search_bandwidth(probs: Tensor) -> Tensor:
    spaced = torch.logspace(-5, -1, 15), torch.linspace(0.2, 1, 5)
    best, most = torch.tensor(1.0), -math.inf
    for bandwidth in torch.cat(spaced):
        log_density = torch.logsumexp(_dirichlet(probs, bandwidth), 1)
        likelihood = torch.sum(log_density - torch.log((len(probs) - 1) * bandwidth))
        if likelihood > most:
            most, best = likelihood, bandwidth
    return best


def kde_xe(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy plus canonical calibration error; class by class beyond 60 classes."""
    probs = _clamped_softmax(logits)
    with torch.no_grad():
        bandwidth = _search_bandwidth(probs)
    log_kernel = _dirichlet(probs, bandwidth)
    one_hot = F.one_hot(targets, logits.shape[1]).to(probs.dtype)
    if logits.shape[1] <= 60:
        kernel = torch.exp(log_kernel)
        ratio = (kernel @ one_hot) / kernel.sum(dim=1).clamp(min=1e-10).unsqueeze(1)
        error = torch.sum(torch.abs(ratio - probs), dim=1)
    else:
        error = _class_by_class(log_kernel, one_hot, probs)
    return F.cross_entropy(logits, targets) + 0.3 * error.mean()


def _class_by_class(log_kernel: Tensor, one_hot: Tensor, probs: Tensor) -> Tensor:
    log_label = torch.log(one_hot)
    log_total = torch.logsumexp(log_kernel, dim=1)
    error = torch.zeros_like(log_total)
    for label in range(probs.shape[1]):
        of_label = log_kernel + torch.ones_like(log_kernel[:, :1]) * log_label[:, label]
        ratio = torch.exp(torch.logsumexp(of_label, dim=1) - log_total)
        error = error + torch.abs(ratio - probs[:, label])
    return error


REFERENCES: dict[str, Reference] = {
    "ce": ce,
    "ls": ls,
    "fl": fl,
    "flsd": flsd,
    "dfl": dfl,
    "ifl": ifl,
    "brier": brier,
    "ecp": ecp,
    "mbls": mbls,
    "acls": acls,
    "aurc": aurc,
    "mmce": mmce,
    "mmce-w": mmce_w,
    "cpc": cpc,
    "mdca": mdca,
    "dca": dca,
    "esd": esd,
    "kde-xe": kde_xe,
}
"""The references without state, by the name of the loss."""
