from trainables.common.later import Tensor, torch
from trainables.data.suites._base import Judgement, Outputs, Suite, SuiteData, Tensors
from trainables.metrics import REPORTED, calibration_report

# Hendrycks and Dietterich (2019), Section 4: four noises, four blurs, four weathers, three others.
CORRUPTIONS = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur"),
    *("motion_blur", "zoom_blur", "snow", "frost", "fog"),
    *("brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
SEVERITIES = 5


class CorruptionSuite(Suite):
    """The task's test images under 15 corruptions of five severities.

    A part is a corruption: all rows at severity 1, then at severity 2 and so on. Metrics are those
    of ``calibration_report``, averaged over the 75 sets of images, so ``ece`` is a mean of errors,
    not the error of all images together. ``acc`` and ``ece`` are also averaged over corruptions of
    one severity, as ``severity-1/ece``.
    """

    def judge(self, data: SuiteData, outputs: Outputs, clean: Tensor) -> Judgement:
        """Return the means and tensors to recompute them.

        The tensors are ``metrics`` (15, 5, M), M metrics in the order of ``REPORTED``, and
        ``confidence``, ``correct`` and ``nll`` of N rows, (15, 5, N). Log-probabilities are not
        stored: for 10,000 rows of 100 classes they would take 300 MB per configuration and seed.
        """
        labels = torch.from_numpy(data.labels().copy())
        table, rows = [], []
        for corruption in CORRUPTIONS:
            log_probs = outputs(data.values(corruption)).view(SEVERITIES, len(labels), -1)
            reports = (calibration_report(logits=each, labels=labels) for each in log_probs)
            table.append([list(report.values()) for report in reports])
            rows.append(_of_rows(log_probs, labels))
        metrics = torch.tensor(table, dtype=torch.float64)
        stacked = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        return _means(metrics), {"metrics": metrics, **stacked}

    def figures(self, data: SuiteData, tensors: Tensors, clean: Tensor) -> dict[str, float]:
        """Return the means; accuracy and NLL are recomputed from the stored values of rows."""
        sets = len(CORRUPTIONS), SEVERITIES
        self.check_shape(tensors, "metrics", (*sets, len(REPORTED)))
        for name in ("confidence", "correct", "nll"):
            self.check_shape(tensors, name, (*sets, len(data.labels())))
        metrics = tensors["metrics"].double().clone()
        for metric, rows in (("acc", "correct"), ("nll", "nll")):
            metrics[..., REPORTED.index(metric)] = tensors[rows].double().mean(2)
        return _means(metrics)


def _of_rows(log_probs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return confidence, correctness and NLL, (5, N) each, from log-probabilities (5, N, K)."""
    best, predicted = log_probs.max(2)
    true = log_probs.gather(2, labels.expand(SEVERITIES, -1)[..., None])
    return {"confidence": best.exp(), "correct": predicted == labels, "nll": -true.squeeze(2)}


def _means(metrics: Tensor) -> dict[str, float]:
    means = dict(zip(REPORTED, metrics.mean((0, 1)).tolist(), strict=True))
    by_severity = {
        f"severity-{number}/{name}": values[REPORTED.index(name)]
        for number, values in enumerate(metrics.mean(0).tolist(), 1)
        for name in ("acc", "ece")
    }
    return {**means, **by_severity}
