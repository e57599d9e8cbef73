"""Reads the reference values of losses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Goldens:
    """The cases and arrays of one reference file."""

    def __init__(self, folder: Path, name: str) -> None:
        index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        self.cases: list[dict[str, Any]] = index["files"][name]
        self._arrays = np.load(folder / name)

    def tensor(self, name: str) -> Tensor:
        values = torch.from_numpy(self._arrays[name])
        return values.double() if values.is_floating_point() else values

    def of(self, loss: str) -> list[dict[str, Any]]:
        return [case for case in self.cases if case.get("loss") == loss]
