"""A module with the functions of trackio and Weights & Biases that are used."""

import sys
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Self

import pytest


@dataclass
class Sent:
    """What the calls of ``init``, ``log`` and ``finish`` for one run said."""

    options: dict[str, Any]
    rows: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    finished: bool = False

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.rows.append((step, metrics))


class Project(ModuleType):
    """The module; ``runs`` has everything that was sent, and ``fault`` is raised by ``init``."""

    Error = type("Error", (Exception,), {})
    NAMES: ClassVar = {
        "trackio": {"project", "name", "group", "config", "resume", "auto_log_cpu", "auto_log_gpu"},
        "wandb": {"project", "name", "group", "config", "resume", "id"},
    }

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.__spec__ = ModuleSpec(kind, None)
        self.runs: list[Sent] = []
        self.fault: Exception | None = None

    def init(self, **options: Any) -> Sent:
        assert options.keys() == self.NAMES[self.__name__]
        if self.fault:
            raise self.fault
        sys.stdout.write("* Created new run")
        self.runs.append(Sent(options))
        return self.runs[-1]

    def finish(self) -> None:
        self.runs[-1].finished = True

    @classmethod
    def install(cls, kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Self:
        module = cls(kind)
        monkeypatch.setitem(sys.modules, kind, module)
        monkeypatch.setenv("XDG_DATA_HOME", str(folder))
        for name in ("WANDB_MODE", "WANDB_SILENT"):
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        return module
