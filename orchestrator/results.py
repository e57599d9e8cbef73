"""What one study came to: the record that tables are made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["STATUSES", "StudyResult"]

STATUSES = ("finished", "failed", "running")


@dataclass(frozen=True)
class StudyResult:
    """One study: the search for one recipe's hyper-parameters on one task, and its outcome.

    Attributes:
        sweep: Name of the sweep.
        task: ``dataset/model/protocol``, or the name that the sweep file gives it.
        recipe: Such as ``mbls+macal+ts``.
        status: ``finished``, ``failed`` (no trial finished) or ``running``.
        configuration: Part of the recipe to its parameters, of the chosen trial.
        validation: Metrics of the chosen trial on validation data, fractions.
        test: Metrics of the chosen configuration on test data, one mapping a seed, with the keys of
            ``calibration_report``, fractions.
        trials_finished: Search trials that finished.
        trials_failed: Search trials that failed.
        reason: Why the study, or the last failed trial, failed; else empty.
        run_ids: MLflow runs of the chosen configuration, one a seed; empty from a journal.
        sweep_id: Identifies the sweep for good; several may have borne the same name.
        dataset: Short name, such as ``cifar10``, or the stem of an npz file or folder.
        model: Name of the network.
        protocol: Name of the protocol.
        fingerprint: Hash (hex) of the content of the data and of how they were split.
        code: Git commit that the chosen trial ran with, with ``-dirty`` for local changes.
        started: When the study was opened, seconds since 1970.
        predictions: Keys of the ``evaluate`` artifacts, one a seed, aligned with ``test``.
        seconds: What the chosen chain of stages cost to compute, one a seed, aligned with ``test``;
            stages that were reused count what they cost at first. Empty where that is not known.
        rule: How the choice was made: ``objective``, ``accuracy_tolerance``, ``epoch``, ``tie``.
        subset: Limits on the images, such as ``train_limit 5000, test_limit 1000``; empty where the
            whole data set took part.

    What older sweeps did not write down is left at its default.

    Raises:
        ValueError: If ``status`` is none of the three, or a count is negative.
    """

    sweep: str
    task: str
    recipe: str
    status: str
    configuration: dict[str, dict[str, Any]] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)
    test: tuple[dict[str, float], ...] = ()
    trials_finished: int = 0
    trials_failed: int = 0
    reason: str = ""
    run_ids: tuple[str, ...] = ()
    sweep_id: str = ""
    dataset: str = ""
    model: str = ""
    protocol: str = ""
    fingerprint: str = ""
    code: str = ""
    started: float = 0.0
    predictions: tuple[str, ...] = ()
    seconds: tuple[float, ...] = ()
    rule: dict[str, str] = field(default_factory=dict)
    subset: str = ""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status={self.status!r} is not one of {', '.join(STATUSES)}")
        for name in ("trials_finished", "trials_failed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} is outside [0, inf)")
