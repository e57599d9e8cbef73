"""Compare the loss and the calibrator with their special cases."""

import calsweep_example  # noqa: F401 - registers them
import torch

from calsweep import build_calibrator, build_loss


def test_a_small_q_is_cross_entropy() -> None:
    logits, targets = torch.randn(8, 3, dtype=torch.float64), torch.arange(8) % 3
    expected = build_loss("ce")(logits, targets)
    torch.testing.assert_close(build_loss("gce", q=1e-9)(logits, targets), expected)


def test_it_mixes_temperature_scaling_with_the_uniform_distribution() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 5, generator=generator, dtype=torch.float64) * 3
    labels = torch.multinomial((logits / 2).softmax(1), 1, generator=generator).squeeze(1)
    found = build_calibrator("floored", floor=0.2).fit(logits, labels)(logits).exp()
    scaled = build_calibrator("ts").fit(logits, labels)(logits).exp()
    torch.testing.assert_close(found, 0.8 * scaled + 0.2 / 5)
