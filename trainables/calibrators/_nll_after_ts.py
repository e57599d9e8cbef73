"""The loss of a network after temperature scaling."""

import warnings
from typing import Any

import torch
from torch import Tensor

from trainables.calibrators._base import FitWarning, check_rows
from trainables.calibrators._build import build_calibrator
from trainables.calibrators._crossfit import cross_fit


def nll_after_ts_terms(logits: Any, labels: Any) -> Tensor:
    """Return each row's NLL after a temperature fitted on other rows.

    Berta, Holzmüller, Jordan and Bach, Rethinking Early Stopping: Refine, Then Calibrate
    (arXiv:2501.19195, 2025): a proper score is calibration error plus refinement error, and since
    calibration can be mended afterwards, epochs and hyper-parameters are chosen by the loss
    after it. Cross-fitted by five folds of a fixed seed. Use it where a recipe ends in a
    calibrator; of a network that is used as it is, it says nothing about calibration.

    Args:
        logits: (N, K), unnormalised or log-probabilities, N at least 5.
        labels: (N,), whole numbers in [0, K).

    Returns:
        Terms (N,), float64, nats.

    Raises:
        InputError: If there are fewer than 5 rows, or they are none that ``Calibrator.fit`` takes.
    """
    rows, targets = check_rows(logits, labels)
    with warnings.catch_warnings():
        # Of early epochs the best temperature often is a bound: that is no one's mistake.
        warnings.simplefilter("ignore", FitWarning)
        log_probs = cross_fit(lambda: build_calibrator("ts"), rows.double(), targets)
    return -log_probs.gather(1, targets[:, None]).squeeze(1).to(torch.float64)
