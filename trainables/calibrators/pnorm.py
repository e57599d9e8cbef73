import torch
from torch import Tensor

from trainables.calibrators._base import CALIBRATORS, FitReport, by_block
from trainables.calibrators._temperature import TemperatureCalibrator, fit_temperature
from trainables.common.fields import fitted
from trainables.common.logit_rows import find_masked, mean_allowed

ORDERS = range(10)
TINY = 1e-12


@CALIBRATORS.register("pnorm")
class NormalisedTemperatureScaling(TemperatureCalibrator):
    """Divides each row by the p-norm of its centred logits and by a common temperature.

    Cattelan and Silva, How to fix a broken confidence estimator, UAI 2024, arXiv 2305.15508: the
    logits minus their mean, divided by their p-norm, rank confidences better than the logits do.
    In the paper p, from 0 to 9, minimises the AURC; here p and T together minimise the fitting
    objective, because the results are probabilities. Order 0 is plain ``ts``, so the fit is never
    worse than ``ts`` on the fitting rows. Norms are divided by their mean over the fitting rows, so
    that T is about as large as in ``ts``.
    """

    temperature: Tensor = fitted()
    order: Tensor = fitted()
    mean_norm: Tensor = fitted()

    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        fits = {order: self._fit_order(order, logits, labels) for order in ORDERS}
        best = min(fits, key=lambda order: fits[order].objective)
        return self._fit_order(best, logits, labels)

    def _fit_order(self, order: int, logits: Tensor, labels: Tensor) -> FitReport:
        self.order = torch.tensor([float(order)], dtype=torch.float64)
        norms = by_block(logits, lambda rows: norms_of(rows.double(), order))
        self.mean_norm = norms.mean().reshape(1)
        scaled = logits / (norms / self.mean_norm).unsqueeze(1).to(logits.dtype)
        self.temperature, report = fit_temperature(scaled, labels, self.objective)
        return report

    def _temperatures(self, logits: Tensor) -> Tensor:
        scale = self.temperature / self.mean_norm
        return scale.to(logits.device) * norms_of(logits, int(self.order))

    def _summary(self) -> dict[str, float]:
        return {"temperature": float(self.temperature), "order": float(self.order)}


def norms_of(logits: Tensor, order: int) -> Tensor:
    """Return the p-norm, p = ``order``, of each row of centred logits, (N,); 1 for order 0."""
    if order == 0:
        return torch.ones_like(logits[:, 0])
    masked = find_masked(logits)
    centred = logits - mean_allowed(logits, masked).unsqueeze(1)
    if masked is not None:
        centred = centred.masked_fill(masked, 0)
    return torch.linalg.vector_norm(centred, order, dim=1).clamp(min=TINY)
