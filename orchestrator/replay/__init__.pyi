from orchestrator.replay.recorded import RecordedStudy, RecordedSweep, read_sweeps
from orchestrator.replay.run import ReplayOutcome, replay
from orchestrator.replay.settings import ReplaySettings, load_replay

__all__ = [
    "RecordedStudy",
    "RecordedSweep",
    "ReplayOutcome",
    "ReplaySettings",
    "load_replay",
    "read_sweeps",
    "replay",
]
