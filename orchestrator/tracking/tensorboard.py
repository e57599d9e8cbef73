"""Shows the figures of runs in TensorBoard: ``tensorboard --logdir FOLDER/events``."""

import re
import struct
from collections.abc import Sequence
from pathlib import Path

from orchestrator.tracking._changes import Change, Point
from orchestrator.tracking.folder import FolderTracker, translated
from trainables.common.files import make_folders

LONGEST = 60  # Characters of a run's name that are kept in the name of its folder.


class TensorboardTracker(FolderTracker):
    """A folder of runs whose metrics are also event files, ``events/EXPERIMENT/NAME-ID/``.

    Runs are read from their JSON files, which also have the tags and parameters.
    """

    def log(self, run_id: str, change: Change) -> None:
        metrics = self._record(run_id)["metrics"]
        known = {(name, *point) for name, points in metrics.items() for point in points}
        super().log(run_id, change)
        news = [
            point
            for point in dict.fromkeys(change.points)
            if (point.name, point.step, point.time, point.value) not in known
        ]
        if news:
            _append(self._events(run_id), news)

    def _events(self, run_id: str) -> Path:
        file = self._file(run_id)
        title = re.sub(r"[^\w .,=+#-]", "-", self._record(run_id)["name"])[:LONGEST]
        folder = self._folder / "events" / file.parents[1].name / f"{title}-{run_id[:8]}"
        return folder / "events.out.tfevents.0.calsweep"


def _append(file: Path, points: Sequence[Point]) -> None:
    """Append points to an event file in one write; the first event of a file is its version."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    events = [] if file.exists() else [Event(file_version="brain.Event:2")]
    for point in points:
        value = Summary.Value(tag=point.name, simple_value=point.value)
        figures = Summary(value=[value])
        events.append(Event(wall_time=point.time / 1000, step=point.step, summary=figures))
    with translated(file):
        make_folders(file.parent)
        with file.open("ab") as stream:
            stream.write(b"".join(_framed(event.SerializeToString()) for event in events))


def _framed(content: bytes) -> bytes:
    """Return a record of TensorFlow's format: length, its checksum, content, its checksum."""
    from tensorboardX.record_writer import masked_crc32c

    length = struct.pack("<Q", len(content))
    sums = (struct.pack("<I", masked_crc32c(part)) for part in (length, content))
    return b"".join((length, next(sums), content, next(sums)))
