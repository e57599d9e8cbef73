"""Cross-entropy with a kernel density estimate of the calibration error."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from trainables.common.fields import check_number, checked, choice, number
from trainables.losses._base import LOSSES, VARIANTS, masked_mean
from trainables.losses._penalised import PenalisedLoss, top_label

FORMS = ("canonical", "marginal", "top_label")
BANDWIDTHS = (*(10 ** (-5 + 4 * step / 14) for step in range(15)), 0.2, 0.4, 0.6, 0.8, 1.0)
"""The candidates of ``bandwidth="loo"``."""

# Smallest distance of probabilities from 0 and 1, where the kernels have poles.
_MARGIN = 1e-9
# With at most this many classes, the reference code bounds the canonical density from below.
_BOUNDED_CLASSES = 60
_LOG_DENSITY_BOUND = math.log(1e-10)
# Replaces log 0; finite, so that a row with only masked entries does not give NaN.
_MASKED = -1e30
# A lower log of a density means that the density is a sum over no row.
_NO_DENSITY = _MASKED / 2
# Largest number of elements of a temporary tensor: on a CPU for several bandwidths and for several
# classes (to fit its cache), and on a GPU for both (for few kernel launches).
_BANDWIDTHS_AT_ONCE = 1 << 17
_CLASSES_AT_ONCE = 1 << 22
_ON_GPU = 1 << 25


def clamp_inside(probs: Tensor) -> Tensor:
    """Return the probabilities, (N, K), clamped to [1e-9, 1 - 1e-9]."""
    return probs.clamp(_MARGIN, 1 - _MARGIN)


def ece_kde(
    probs: Tensor,
    targets: Tensor,
    valid: Tensor,
    bandwidth: float | Tensor,
    *,
    p: float = 1.0,
    form: str = "canonical",
    inner: Tensor | None = None,
) -> Tensor:
    """Return the kernel density estimate of the L_p calibration error to the power p, a scalar.

    Takes O(N^2) memory; O(N^2 K) time.

    Args:
        probs: (N, K), inside (0, 1).
        targets: (N,), int64, in [0, K).
        valid: (N,), bool, False for ignored rows.
        bandwidth: Bandwidth of the Dirichlet or beta kernel, above 0; a number or scalar tensor.
        p: Exponent, at least 1.
        form: One of ``FORMS``. ``canonical`` estimates frequencies given the vector of
            probabilities, ``marginal`` given the probability of one class; both sum the errors
            over the classes. ``top_label`` uses only the largest probability.
        inner: The result of ``log_inner``, if known; only for ``canonical``.
    """
    if form == "top_label":
        probs, correct = top_label(probs, targets)
        probs, happened = probs.unsqueeze(1), correct.unsqueeze(1).to(probs.dtype)
        kernel = torch.bmm(*_beta_factors(probs, bandwidth))[0]
        kernel.masked_fill_(_excluded(valid), _MASKED)
        ratio = _Weights.apply(kernel, _NO_DENSITY) @ happened
    elif form == "marginal":
        ratio = _marginal_ratio(probs, targets, _excluded(valid), bandwidth)
    else:
        inner = log_inner(probs, valid) if inner is None else inner
        bound = _LOG_DENSITY_BOUND if probs.shape[1] <= _BOUNDED_CLASSES else _NO_DENSITY
        kernel = _dirichlet_kernel(inner, probs, bandwidth)
        ratio = _Weights.apply(kernel, bound) @ _one_hot(probs, targets)
    gaps = (ratio - probs).abs()
    return masked_mean((gaps if p == 1 else gaps.pow(p)).sum(dim=1), valid)


@torch.no_grad()
def leave_one_out_bandwidth(
    probs: Tensor, valid: Tensor, inner: Tensor, *, over_bandwidth: bool
) -> Tensor:
    """Return the bandwidth of ``BANDWIDTHS`` with the largest leave-one-out likelihood, a scalar.

    The released codes start their search at likelihood 0 and fail if all are below; here the
    largest is chosen even if it is negative. Several bandwidths are tried at once if temporary
    tensors of 131,072 elements (33 million on a GPU) can hold them.

    Args:
        probs: (N, K), inside (0, 1).
        valid: (N,), bool, False for ignored rows.
        inner: The result of ``log_inner``.
        over_bandwidth: Whether to divide each density by the bandwidth, as in the ece-kde package.
    """
    # Create the candidates on the device, without a copy from the host.
    zeros = probs.new_zeros(len(BANDWIDTHS)).unbind()
    candidates = torch.stack(torch._foreach_add(zeros, BANDWIDTHS))
    limit = _BANDWIDTHS_AT_ONCE if probs.device.type == "cpu" else _ON_GPU
    at_once = max(1, limit // max(inner.numel(), probs.numel()))
    parts = [
        _log_total(_dirichlet_kernel(inner, probs, part.view(-1, 1, 1)))
        for part in candidates.split(at_once)
    ]
    densities = torch.cat(parts)
    if over_bandwidth:
        densities -= candidates.log().unsqueeze(1)
    likelihoods = densities @ valid.to(densities.dtype)
    return candidates.gather(0, likelihoods.argmax(dim=0, keepdim=True)).squeeze(0)


def _excluded(valid: Tensor) -> Tensor:
    """Return an (N, N) mask: True at (i, j) if row j is ignored or i = j."""
    same = torch.eye(valid.shape[0], dtype=torch.bool, device=valid.device)
    return same.logical_or_(~valid)


def _one_hot(like: Tensor, targets: Tensor) -> Tensor:
    return torch.zeros_like(like).scatter_(1, targets.unsqueeze(1), 1)


def log_inner(probs: Tensor, valid: Tensor) -> Tensor:
    """Return ``sum_k p_jk log p_ik`` at (i, j), (N, N); -1e30 if row j is ignored or i = j."""
    inner = probs.log() @ probs.T
    # Hidden from autograd: masked entries have weight 0 and therefore no gradient.
    inner.detach().masked_fill_(~valid, _MASKED).fill_diagonal_(_MASKED)
    return inner


def _dirichlet_kernel(inner: Tensor, probs: Tensor, bandwidth: float | Tensor) -> Tensor:
    """Return log Dirichlet(p_i; p_j / bandwidth + 1), (N, N), from ``log_inner``.

    Several bandwidths, (M, 1, 1), give (M, N, N).
    """
    alpha = probs / bandwidth + 1
    log_beta = torch.lgamma(alpha).sum(dim=-1) - torch.lgamma(alpha.sum(dim=-1))
    return inner / bandwidth - log_beta.unsqueeze(-2)


def _beta_factors(probs: Tensor, bandwidth: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return two factors, (K, N, 3) and (K, 3, N), of the log kernel.

    The log kernel is log Beta(p_ik; p_jk / bandwidth + 1, (1 - p_jk) / bandwidth + 1), (K, N, N).
    """
    rest = (1 - probs).clamp(min=_MARGIN)
    first, second = probs / bandwidth, rest / bandwidth
    log_beta = torch.lgamma(first + 1) + torch.lgamma(second + 1)
    log_beta = log_beta - torch.lgamma(first + second + 2)
    points = torch.stack([probs.log(), rest.log(), -torch.ones_like(probs)])
    centres = torch.stack([first, second, log_beta])
    return points.permute(2, 1, 0), centres.permute(2, 0, 1)


class _Weights(torch.autograd.Function):
    """The share of each other row j in the density at row i, (N, N).

    Rows sum to 1 with two exceptions. If the log of the density is below ``bound``, the bound
    replaces it and the sum is less than 1. If no other row is valid, the sum is 0.
    """

    @staticmethod
    def forward(ctx: Any, log_kernel: Tensor, bound: float) -> Tensor:
        # Do not subtract the density's log from the kernel: both may be huge, the difference small.
        shares = log_kernel.log_softmax(dim=1)
        largest, place = log_kernel.max(dim=1, keepdim=True)
        short = (largest - shares.gather(1, place) - bound).clamp_(max=0)
        weights = shares.add_(short).exp_()
        ctx.save_for_backward(weights, short >= 0)
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        weights, dense = ctx.saved_tensors
        mean = (grad * weights).sum(dim=1, keepdim=True).mul_(dense)
        return (grad - mean).mul_(weights), None


def _log_total(log_values: Tensor) -> Tensor:
    """Return the log-sum-exp over the last dimension.

    Uses ``log_softmax``: on a CPU, the exponential in ``torch.logsumexp`` is many times slower if
    it underflows, as it does for most kernels.
    """
    largest, place = log_values.max(dim=-1, keepdim=True)
    return (largest - log_values.log_softmax(dim=-1).gather(-1, place)).squeeze(-1)


def _marginal_ratio(
    probs: Tensor, targets: Tensor, excluded: Tensor, bandwidth: float | Tensor
) -> Tensor:
    """Return the estimated frequency of each class at each row's probability for it, (N, K)."""
    points, centres = _beta_factors(probs, bandwidth)
    limit = _CLASSES_AT_ONCE if probs.device.type == "cpu" else _ON_GPU
    classes = max(1, limit // excluded.numel())
    totals = [
        checkpoint(_beta_total, *part, excluded, use_reentrant=False, preserve_rng_state=False)
        for part in zip(points.split(classes), centres.split(classes), strict=True)
    ]
    # Only the kernel of a row's own class enters the numerator: (N, N), not (N, N, K).
    own = -torch.cat(totals).T.index_select(1, targets)
    for point, centre in zip(points.unbind(dim=2), centres.unbind(dim=1), strict=True):
        of_own_class = centre.T.gather(1, targets.unsqueeze(1)).squeeze(1)
        own = own + point.T.index_select(1, targets) * of_own_class
    return torch.exp(own.masked_fill(excluded, -math.inf)) @ _one_hot(probs, targets)


def _beta_total(points: Tensor, centres: Tensor, excluded: Tensor) -> Tensor:
    """Return the log of the summed kernel over the other rows, (K, N)."""
    return _log_total(torch.bmm(points, centres).masked_fill(excluded, _MASKED))


def _check_bandwidth(name: str, value: float | str) -> float | str:
    if value == "loo":
        return value
    if isinstance(value, str):
        raise ValueError(f"{name}={value!r} is not loo or a number in (0, inf)")
    return check_number(name, value, 0.0, open_low=True)


@LOSSES.register("kde-xe")
class KDEXELoss(PenalisedLoss):
    """Cross-entropy plus a kernel density estimate of the calibration error (KDE-XE).

    Each row's outcome frequency is estimated from the other rows of the batch, weighted by a
    Dirichlet kernel (a beta kernel for single classes) around their probabilities. Not for batches
    of many thousand rows, because memory grows with the square; for pixels, it uses a sample of
    512. Not for batches with fewer rows than classes, where most estimated frequencies are 0.

    Source: Popordanoska et al., A Consistent and Differentiable Lp Canonical Calibration Error
    Estimator, NeurIPS 2022, and its package ece-kde.

    Args:
        weight: Factor of the penalty, at least 0.
        bandwidth: The kernel's bandwidth, above 0, or ``loo``: each batch chooses from
            ``BANDWIDTHS`` by leave-one-out likelihood.
        p: Exponent of the error, at least 1.
        form: ``canonical``, ``marginal`` or ``top_label``; see ``ece_kde``.
        variant: ``paper`` has a penalty with a gradient and, as in the authors' package, divides
            each density by the bandwidth when it searches the bandwidth. ``released`` is the code
            of CalibWeightedRisk, whose penalty has no gradient, so that it trains like plain
            cross-entropy, and whose search does not divide. The default is ``paper``, because
            ``released`` has no effect.
    """

    most_pixels = 512
    weight: float = number(default=0.3, low=0.0)
    bandwidth: float | str = checked(default="loo", check=_check_bandwidth)
    p: float = number(default=1.0, low=1.0)
    form: str = choice(default="canonical", choices=FORMS)
    variant: str = choice(default="paper", choices=VARIANTS)

    def penalty(self, logits: Tensor, probs: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
        """Return the estimated calibration error, without gradient for ``variant="released"``."""
        released = self.variant == "released"
        probs = clamp_inside(probs.detach() if released else probs)
        bandwidth: float | str | Tensor = self.bandwidth
        inner: Tensor | None = None
        if isinstance(bandwidth, str):
            inner = log_inner(probs, valid)
            bandwidth = leave_one_out_bandwidth(probs, valid, inner, over_bandwidth=not released)
        return ece_kde(probs, targets, valid, bandwidth, p=self.p, form=self.form, inner=inner)
