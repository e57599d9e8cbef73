"""Binned errors of the clean test rows with another number of bins."""

import re
from pathlib import Path

import numpy as np

from trainables.common.later import Tensor
from trainables.data import DatasetInfo, PreparedData
from trainables.data.suites._base import SUITES, Judgement, Outputs, Part, Suite, SuiteData, Tensors
from trainables.metrics import METRICS, REPORTED, calibration_report

COUNT = re.compile(r"[1-9]\d{0,5}")


@SUITES.register("bins")
class BinsSuite(Suite):
    """``bins-N``: every binned error of the clean test rows with N bins instead of the usual 15."""

    @classmethod
    def names(cls, entry: str) -> list[str]:
        """Return the names for 10 and 20 bins; other numbers up to 999,999 are allowed."""
        return [f"{entry}-10", f"{entry}-20"]

    @classmethod
    def accepts(cls, argument: str) -> bool:
        return COUNT.fullmatch(argument) is not None

    def check(self, info: DatasetInfo) -> None:
        """Accept every task."""

    def signature(self) -> str:
        """Return the name; the folder's name already depends on the task's data."""
        return self.name

    def test_paths(self) -> list[Path]:
        """Return nothing, because the task's test rows are sealed with the task."""
        return []

    def read(self, prepared: PreparedData, download: bool) -> tuple[np.ndarray, list[Part]]:
        """Return the labels of the task's test rows, and no parts: ``judge`` uses ``clean``."""
        return np.array(prepared.test().labels), []

    def judge(self, data: SuiteData, outputs: Outputs, clean: Tensor) -> Judgement:
        return self.figures(data, {}, clean), {}

    def figures(self, data: SuiteData, tensors: Tensors, clean: Tensor) -> dict[str, float]:
        report = calibration_report(clean, labels=data.labels(), bins=int(self.argument))
        return {name: report[name] for name in REPORTED if METRICS[name].binned}
