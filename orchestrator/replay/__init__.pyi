from .recorded import RecordedStudy, RecordedSweep, read_sweeps
from .run import ReplayOutcome, replay
from .settings import ReplaySettings, load_replay

__all__ = [
    "RecordedStudy",
    "RecordedSweep",
    "ReplayOutcome",
    "ReplaySettings",
    "load_replay",
    "read_sweeps",
    "replay",
]
