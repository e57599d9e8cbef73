"""Logits computed elsewhere as the rows of a data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from trainables.common.errors import InputError
from trainables.common.later import Tensor, torch
from trainables.common.logit_rows import LogitScale
from trainables.data._feature_arrays import feature_files
from trainables.data._inputs import DatasetInfo, Inputs, InputShape
from trainables.data._logit_arrays import ArrayFiles, split_address
from trainables.data._logit_files import KINDS, LogitRows, is_zero_shot, read_logits
from trainables.data._rows import ALL, RowArrays
from trainables.data._source import SOURCES, Outline, OutlinedReader, PathReader


@dataclass(frozen=True)
class LogitShape(InputShape):
    """The form of given logits: ``width`` is K, the number of classes."""

    kind: ClassVar[str] = "logits"

    width: int

    def blank(self, device: torch.device) -> Tensor:
        return torch.zeros(1, self.width, device=device)


@dataclass(frozen=True)
class GivenLogits(Inputs, kind="logits"):
    """Logits (N, K), stored as float32; ``width`` is K."""

    dtype: ClassVar[np.dtype] = np.dtype(np.float32)
    trains: ClassVar[bool] = False

    width: int
    augmentation: str = "none"

    @property
    def row(self) -> tuple[int]:
        return (self.width,)

    @property
    def shape(self) -> LogitShape:
        return LogitShape(self.width)


@SOURCES.register("logits")
class LogitsReader(PathReader, OutlinedReader):
    """``logits:PATH``: a file of logits or probabilities (``kind``); see ``read_logits``."""

    kind = GivenLogits
    noun = "rows"
    accepts = ("kind",)
    validation = ALL
    edition = 1  # Since 1, labels may be names of classes.

    def adjust(self, settings: Mapping[str, Any]) -> None:
        super().adjust(settings)
        if settings.get("kind", KINDS[0]) not in KINDS:
            raise InputError(
                f"dataset {self.name!r}: inputs.kind={settings['kind']!r} is not one of "
                f"{', '.join(KINDS)}"
            )

    def read(self, download: bool) -> tuple[DatasetInfo, RowArrays, RowArrays | None]:
        """Return the rows to fit on and to test on; all rows and None if the file has no parts."""
        file = read_logits(self.path, self.settings.get("kind"))
        test = None if file.fit is None else self._rows(file.rows)
        train = self._rows(file.rows if file.fit is None else file.fit)
        (classes,) = train.shape
        info = DatasetInfo(
            name=self.name,
            classes=tuple(map(str, range(classes))),
            inputs=GivenLogits(classes),
            split_rule="the file's own test rows, else a stratified draw",
            source=str(self.path),
        )
        return info, train, test

    def _rows(self, rows: LogitRows) -> RowArrays:
        """Return rows as finite float32; -inf becomes a finite value that is still masked."""
        deepest = rows.logits.amax(1, keepdim=True) - 2 * LogitScale.of(rows.logits).depth
        values = rows.logits.float()
        values = values.where(~values.isneginf(), deepest.float())
        if not bool(values.isfinite().all()):
            raise InputError(f"{self.path}: a logit is outside the range of float32")
        return RowArrays(values.numpy(), rows.labels.numpy())

    def outline(self) -> Outline:
        info, train, test = self.read(download=False)
        return info.classes, train.labels, None if test is None else test.labels

    def instruction(self) -> str:
        return "use the path of a file of logits"

    def files(self) -> list[Path]:
        place, _ = split_address(self.path)
        if place.suffix == ".npy" and place.is_file():
            return ArrayFiles(place).files
        if is_zero_shot(place):
            return feature_files(place).files
        return [place]

    def test_paths(self) -> list[Path]:
        return self.files()
