"""How far the delivery of a journal has got, kept in ``shipped.json`` beside it."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

logger = logging.getLogger(__name__)


@dataclass
class Memory:
    """What a restarted shipper need not ask the store for.

    Attributes:
        store: Digest of the store's address and experiment for which the rest is true.
        sweep_id: The sweep.
        offset: Bytes of the journal that have been delivered.
        runs: Run id of each trial (by key) and study (by name).
        ahead: About how many bytes beyond ``offset`` have been delivered; a shipper that starts
            again delivers them again.
    """

    store: str = ""
    sweep_id: str = ""
    offset: int = 0
    runs: dict[str, str] = field(default_factory=dict)
    ahead: int = 0

    @classmethod
    def load(cls, journal: Path) -> Memory:
        """Read it; a missing or damaged file is an empty memory."""
        path = _path(journal)
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return cls()
        except (ValueError, TypeError):
            logger.warning("%s is damaged; delivering from the start", path)
            return cls()

    def save(self, journal: Path) -> None:
        """Write it, whole or not at all."""
        path = _path(journal)
        draft = path.with_suffix(".tmp")
        content = {**vars(self), "runs": dict(self.runs)}  # Other threads may add runs meanwhile.
        with open(draft, "w", encoding="utf-8") as stream:
            json.dump(content, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, path)


def delivered_runs(journal: Path) -> dict[str, str]:
    """Return the run id of each trial (by key) and study (by name) that has reached the store."""
    return Memory.load(journal).runs


def delivered(journal: Path) -> tuple[int, int]:
    """Return how many bytes of a journal have been delivered, and how many there are."""
    total = journal.stat().st_size if journal.exists() else 0
    memory = Memory.load(journal)
    return min(memory.offset + memory.ahead, total), total


def _path(journal: Path) -> Path:
    return journal.with_name("shipped.json")
