"""Checks of calibrators; each takes a function that returns a new, unfitted calibrator."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from trainables.calibrators import Calibrator, load_calibrator, save_calibrator
from trainables.contracts.require import require

Make = Callable[[], Calibrator]


def draw_rows(
    rows: int = 600, classes: int = 5, temperature: float = 2.0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Return random logits (N, K), float64, and labels (N,) drawn from softmax(logits / T)."""
    draw = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, classes, generator=draw, dtype=torch.float64)
    labels = torch.multinomial((logits / temperature).softmax(1), 1, generator=draw).squeeze(1)
    return logits, labels


def gives_log_probabilities(make: Make) -> None:
    """Outputs are log-probabilities, and a second fit on the same rows gives the same outputs."""
    logits, labels = draw_rows()
    first = make().fit(logits.float().numpy(), labels.numpy())
    second = make().fit(logits.float(), labels)
    out = first(logits.float())
    require(out.shape == logits.shape, f"{tuple(logits.shape)} become {tuple(out.shape)}")
    require(out.dtype == torch.float32, f"float32 becomes {out.dtype}")
    total = out.double().exp().sum(1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-6)
    require(torch.equal(out, second(logits.float().numpy())), "a second fit differs")
    require(first.report is not None and first.report.converged, "the fit does not converge")
    require(first.summary() == second.summary(), "the summary of a second fit differs")
    finite = all(torch.tensor(value).isfinite() for value in first.summary().values())
    require(finite, f"the summary is not finite: {first.summary()}")


def leaves_rows_alone(make: Make) -> None:
    """Fitting and mapping neither change rows nor keep references to them."""
    logits, labels = draw_rows()
    kept = logits.clone(), labels.clone()
    fitted = make().fit(logits, labels)
    before = fitted(logits)
    same = torch.equal(logits, kept[0]) and torch.equal(labels, kept[1])
    require(same, "the rows are changed")
    logits.zero_()
    labels.zero_()
    require(torch.equal(fitted(kept[0]), before), "changing the rows after the fit changes the map")


def keeps_the_argmax(make: Make) -> None:
    """A calibrator with ``preserves_accuracy`` keeps the position of every row's first maximum."""
    logits, labels = draw_rows()
    calibrator = make().fit(logits, labels)
    if calibrator.preserves_accuracy:
        tied = torch.cat([logits, logits.round(), torch.zeros_like(logits[:1])]).float()
        found = torch.from_numpy(calibrator(tied).numpy().argmax(1))
        expected = torch.from_numpy(tied.numpy().argmax(1))
        require(torch.equal(found, expected), "the prediction of a row changes")


def survives_its_folder(make: Make) -> None:
    """A saved and loaded calibrator has the same outputs, parameters and summary."""
    logits, labels = draw_rows()
    calibrator = make().fit(logits, labels)
    with TemporaryDirectory() as folder:
        loaded = load_calibrator(save_calibrator(calibrator, Path(folder) / "kept"))
    require(torch.equal(loaded(logits), calibrator(logits)), "the loaded calibrator differs")
    require(loaded.parameters() == calibrator.parameters(), "its parameters differ")
    require(loaded.summary() == calibrator.summary(), "its summary differs")


def misses_a_class(make: Make) -> None:
    """Log-probabilities are finite even if a class is missing from the fitting rows."""
    logits, labels = draw_rows()
    present = labels != 3
    out = make().fit(logits[present], labels[present])(logits)
    require(bool(out.isfinite().all()), "some log-probability is not finite")


def forgets_an_earlier_fit(make: Make) -> None:
    """A second fit of the same calibrator does not depend on the first one."""
    logits, labels = draw_rows()
    again, fresh = make(), make()
    again.fit(3 * logits[:200, :4], labels[:200].clamp(max=3))
    same = torch.equal(again.fit(logits, labels)(logits), fresh.fit(logits, labels)(logits))
    require(same and again.summary() == fresh.summary(), "the second fit depends on the first")


CALIBRATOR_CHECKS: tuple[Callable[[Make], None], ...] = (
    gives_log_probabilities,
    leaves_rows_alone,
    keeps_the_argmax,
    survives_its_folder,
    misses_a_class,
    forgets_an_earlier_fit,
)
