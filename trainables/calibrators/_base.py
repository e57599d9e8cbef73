"""The base of all calibrators: checks, blocks of rows, kept argmax, report and state."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from trainables.calibrators._registry import CALIBRATORS as CALIBRATORS
from trainables.calibrators.objectives import Objective, build_objective
from trainables.common.errors import InputError
from trainables.common.fields import CheckedFields
from trainables.common.logit_rows import LogitScale, check_logits, check_rows, row_blocks
from trainables.data import DataNote

TIE_GAP = 4.0
UNMOVED, WATCHED_ROWS = 1e-6, 512
IMPOSSIBLE = -1e4  # The log-probability of a masked class.
UNMOVED_DOUBT = "the fit did not change the probabilities of the fitting rows"


@dataclass(frozen=True)
class FitReport:
    """The result of a fit besides its parameters.

    Attributes:
        converged: Whether the stopping rule was met within the allowed iterations; true if the
            fit has no such rule.
        iterations: Passes over the fitting rows, iterations of the solver, or candidates tried.
        objective: Final value of the fitting objective, or the largest residual of ``spline``; nan
            if the fit has neither.
        note: A remark, for example about a parameter that ended on its bound.
        doubt: Why the fit should not be trusted, or empty. ``fit`` also shows it as a
            ``FitWarning``.
    """

    converged: bool
    iterations: int
    objective: float
    note: str = ""
    doubt: str = ""

    def after(self, first: Self) -> Self:
        """Return one report of the ``first`` fit and this one, with the doubt of the first."""
        return replace(
            self,
            converged=first.converged and self.converged,
            iterations=first.iterations + self.iterations,
            note="; ".join(filter(None, (first.note, self.note))),
            doubt=first.doubt,
        )


class FitWarning(UserWarning):
    """A fit ignored rows or should not be trusted, for example because it did not converge."""


class Calibrator(CheckedFields, ABC):
    """A map from logits to calibrated log-probabilities, fitted on held-out rows.

    A subclass declares its arguments and its fitted tensors as fields and implements ``_fit``,
    which returns the report and sets the tensors, ``_transform``, which maps a block of rows, and
    ``_summary``. ``_transform`` gets and returns float64, on the device of the logits.

    ``_fit`` and ``_transform`` get logits divided by the unit of ``logit_scale``; all masked logits
    of a row have the same value. The result for a masked class is the log-probability -10,000.

    Attributes:
        name: The name in recipes.
        takes_objective: Whether the fitting objective can be chosen.
        preserves_accuracy: Whether the first largest entry of every row stays the first largest. If
            this depends on an argument, the instance has its own value.
        fits_on_training: Whether it is fitted on the network's training rows, as in some papers,
            instead of held-out rows. This may depend on an argument as well.
        transfers: Whether a fitted calibrator may apply to rows with another number of classes.
        report: The report of the fit; None before the fit.
        num_classes: K of the fitting rows; 0 before the fit.
        logit_scale: The scale of the fitting logits; masked and huge logits are detected with it.

    Raises:
        ValueError: If an argument is out of its range.
    """

    name = ""
    takes_objective = False
    preserves_accuracy = False
    fits_on_training = False
    transfers = False

    report: FitReport | None = field(default=None, init=False)
    num_classes: int = field(default=0, init=False)
    logit_scale: LogitScale = field(default=LogitScale(), init=False)

    @property
    def state_names(self) -> tuple[str, ...]:
        """Return the names of the fitted tensors."""
        return tuple(f.name for f in fields(self) if f.metadata.get("fitted"))

    def fit(self, logits: Any, labels: Any) -> Self:
        """Fit on held-out rows and return the calibrator; the same rows give the same parameters.

        If the fit should not be trusted, for example because it did not converge or ended on a
        bound, a ``FitWarning`` is shown and the report has the reason as ``doubt``.

        Args:
            logits: (N, K), torch or NumPy, any floating dtype, finite or, for a masked class, -inf;
                N >= 1, K >= 2.
            labels: (N,), whole numbers in [0, K). Rows whose label is masked are ignored, with a
                ``FitWarning``.

        Raises:
            InputError: If shapes, values or labels are wrong, every label is masked, or a
                constraint such as ``accuracy`` of ``meta-acc`` cannot be met on these rows.
        """
        rows, targets = check_rows(logits, labels)
        self.num_classes, self.logit_scale = rows.shape[1], LogitScale.of(rows)
        try:
            with torch.no_grad():
                rows, targets, lost = self._possible(rows, targets)
                report = self._fit(rows, targets)
                doubt = self._doubt(report, rows)
        except BaseException:
            self.num_classes = 0  # A failed fit leaves the calibrator unfitted.
            raise
        unit = self.logit_scale.unit
        note = "" if unit == 1 else f"the fit divided all logits by {unit:g}"
        note = "; ".join(filter(None, (report.note, note)))
        self.report = replace(report, note=note, doubt=doubt)
        if warning := "; ".join(filter(None, (lost, doubt))):
            warnings.warn(f"{self.name}: {warning}", FitWarning, stacklevel=2)
        return self

    def _possible(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, str]:
        """Return the rows whose label is not masked, their labels, and a message.

        The rows have passed ``LogitScale.level``. The message is empty if no row was left out.
        """
        rows, masked = self.logit_scale.level(rows)
        if masked is None:
            return rows, labels, ""
        kept = ~masked.gather(1, labels.unsqueeze(1)).squeeze(1)
        lost, first = int((~kept).sum()), int(kept.int().argmin())
        if not lost:
            return rows, labels, ""
        text = f"the label's class is masked in {lost} of {len(labels)} rows"
        if lost == len(labels):
            raise InputError(f"labels: {text}; check labels and masks")
        text += f", the first is row {first}: the fit ignores them"
        return rows[kept], labels[kept], text

    def _doubt(self, report: FitReport, rows: Tensor) -> str:
        if not report.converged:
            return f"not converged: {report.note}"
        block = rows[:WATCHED_ROWS].double()
        ratios = (self._transform(block) - block.log_softmax(1)).exp()
        moved = float((ratios - 1).abs().amax())
        return "; ".join(filter(None, (report.doubt, UNMOVED_DOUBT if moved < UNMOVED else "")))

    def __call__(self, logits: Any) -> Tensor:
        """Return calibrated log-probabilities, (N, K), in the dtype of the logits.

        A ``DataNote`` is shown if the rows have another number of classes than the fitting rows.

        Args:
            logits: (N, K), torch or NumPy; the result for half precision is float32.

        Raises:
            InputError: If the calibrator is not fitted or does not transfer to this K, or ``fit``
                would reject the logits.
        """
        self.require_fitted()
        rows = check_logits(logits)
        if rows.shape[1] != self.num_classes:
            self._note_transfer(rows.shape[1])
        out = torch.empty_like(rows, memory_format=torch.contiguous_format)
        with torch.no_grad():
            for part in row_blocks(rows):
                values = self._mapped(rows[part].double()).to(rows.dtype)
                out[part] = keep_argmax(rows[part], values) if self.preserves_accuracy else values
        return out

    def _takes(self, classes: int) -> bool:
        """Return True if the fitted parameters apply to rows with this number of classes."""
        return self.transfers

    def _note_transfer(self, classes: int) -> None:
        text = f"logits: {classes} classes, but this {self.name} was fitted on {self.num_classes}"
        if not self._takes(classes):
            others = [name for name in CALIBRATORS.names() if CALIBRATORS.get(name).transfers]
            names = ", ".join(others)
            raise InputError(f"{text}; calibrators for other numbers of classes: {names}")
        warnings.warn(f"{text}; its parameters apply to both", DataNote, stacklevel=3)

    def _mapped(self, rows: Tensor) -> Tensor:
        """Return log-probabilities of a block of rows; those of masked classes are -10,000."""
        leveled, masked = self.logit_scale.level(rows)
        values = self._transform(leveled)
        if masked is None:
            return values
        shares = values.masked_fill(masked, -math.inf).log_softmax(1)
        return shares.masked_fill(masked, IMPOSSIBLE)

    @abstractmethod
    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        """Fit on checked rows; gradients are disabled."""

    @abstractmethod
    def _transform(self, logits: Tensor) -> Tensor:
        """Return log-probabilities of a block of rows, float64 to float64."""

    def summary(self) -> dict[str, float]:
        """Return the main fitted parameters by name.

        Raises:
            InputError: If the calibrator is not fitted.
        """
        self.require_fitted()
        found, unit = self._summary(), self.logit_scale.unit
        return {k: v * unit if k.startswith("temperature") else v for k, v in found.items()}

    @abstractmethod
    def _summary(self) -> dict[str, float]:
        """Return the ``summary`` of a fitted calibrator."""

    def parameters(self) -> dict[str, Any]:
        """Return the constructor arguments of this calibrator."""
        return self._arguments()

    def require_fitted(self) -> None:
        """Raise ``InputError`` unless the calibrator has been fitted or loaded."""
        if self.num_classes == 0:
            raise InputError(f"this {self.name} is not fitted: call fit(logits, labels) first")

    def state_dict(self) -> dict[str, Tensor]:
        """Return the fitted tensors, number of classes and scale of the logits, on the CPU."""
        self.require_fitted()
        state = {name: getattr(self, name).detach().cpu() for name in self.state_names}
        if self.logit_scale.typical:
            state["logit_scale"] = torch.tensor(self.logit_scale.typical, dtype=torch.float64)
        return {**state, "num_classes": torch.tensor(self.num_classes)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Load the result of ``state_dict``.

        Raises:
            InputError: If a tensor is missing or unknown.
        """
        expected = {*self.state_names, "num_classes"}
        if {*state} - {"logit_scale"} != expected:
            raise InputError(
                f"{self.name}: state has {', '.join(sorted(state)) or 'nothing'}, "
                f"expected {', '.join(sorted(expected))}"
            )
        for name in self.state_names:
            setattr(self, name, state[name].clone())
        self.num_classes = int(state["num_classes"])
        self.logit_scale = LogitScale(float(state.get("logit_scale", 0.0)))


class ObjectiveCalibrator(Calibrator):
    """A calibrator that is fitted with any fitting objective.

    Attributes:
        objective: The objective that the fit minimises; ``ce`` by default.
        objective_name: The objective's name.
        objective_parameters: The objective's hyper-parameters.
    """

    objective: Objective = field(init=False)
    objective_name: str = field(init=False)
    objective_parameters: dict[str, Any] = field(init=False)

    takes_objective = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.set_objective("ce")

    def set_objective(self, name: str, **parameters: Any) -> None:
        """Set the objective of the fit; see ``build_objective`` for arguments and errors."""
        self.objective = build_objective(name, **parameters)
        self.objective_name, self.objective_parameters = name, parameters

    def summary(self) -> dict[str, float]:
        """Return the main fitted parameters and the objective's own fitted values."""
        return {**super().summary(), **self.objective.state()}


def spread(name: str, values: Tensor) -> dict[str, float]:
    """Return the smallest, mean and largest of some values, for a summary."""
    found = {"min": values.min(), "mean": values.mean(), "max": values.max()}
    return {f"{name}_{key}": float(value) for key, value in found.items()}


def matrix_summary(matrix: Tensor, bias: Tensor) -> dict[str, float]:
    """Return the mean diagonal, root mean square off the diagonal, and largest absolute bias."""
    diagonal = matrix.diagonal()
    outside = matrix - torch.diag(diagonal)
    pairs = len(matrix) * (len(matrix) - 1)
    return {
        "diagonal_mean": float(diagonal.mean()),
        "offdiagonal_rms": float((outside.square().sum() / pairs).sqrt()),
        "bias_max": float(bias.abs().max()),
    }


def by_block(rows: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function to blocks of rows and join the results.

    Results are written directly to the output, because collecting them in a list would fragment
    the memory between freed temporary tensors.
    """
    first, *others = row_blocks(rows)
    values = function(rows[first])
    out = values.new_empty(rows.shape[0], *values.shape[1:])
    out[first] = values
    for part in others:
        out[part] = function(rows[part])
    return out


def first_argmax(rows: Tensor) -> Tensor:
    """Return the index of the first largest entry of each row, (N,), even if entries tie."""
    order = torch.arange(rows.shape[1], device=rows.device)

    def of_block(block: Tensor) -> Tensor:
        largest = block.amax(1, keepdim=True)
        return torch.where(block == largest, order, block.shape[1]).amin(1)

    return by_block(rows, of_block)


def keep_argmax(before: Tensor, after: Tensor) -> Tensor:
    """Return ``after``, corrected such that its first largest entries are those of ``before``.

    Rounding can make entries of a monotone map equal. Entries before the winner are limited to a
    few units in the last place below it, enough to keep the order after exponentiation. Entries
    after the winner are limited to its value.
    """
    winner = first_argmax(before).unsqueeze(1)
    top = after.gather(1, winner)
    gap = TIE_GAP * torch.finfo(after.dtype).eps * top.abs().clamp(min=1.0)
    in_front = torch.arange(after.shape[1], device=after.device) < winner
    return torch.minimum(after, torch.where(in_front, top - gap, top))
