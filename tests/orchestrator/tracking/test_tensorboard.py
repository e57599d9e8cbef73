import struct
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

from orchestrator.tracking import open_tracker
from orchestrator.tracking._changes import Change, Point
from trainables.common.errors import InputError


def events(folder: Path) -> list[Event]:
    """Read the one event file in a folder, whose checksums must hold."""
    (file,) = folder.rglob("events.out.tfevents.*")
    content, found = file.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        sums = struct.unpack("<I", content[8:12]) + struct.unpack("<I", content[12 + length :][:4])
        record = content[12:][:length]
        assert sums == (masked_crc32c(content[:8]), masked_crc32c(record))
        found.append(Event.FromString(record))
        content = content[16 + length :]
    return found


def test_each_figure_is_one_event(tmp_path: Path) -> None:
    tracker = open_tracker(f"tensorboard:{tmp_path}/board", create=True)
    experiment = tracker.open_experiment("a/b", tmp_path)[0].id
    run_id = tracker.create_run(experiment, "mbls on a/b: ../c", {}, 1_000)
    points = [Point("val_ece", 0.5, 2_000, 0), Point("val_ece", 0.25, 3_500, 1)]
    for _ in range(2):
        tracker.log(run_id, Change("k", points))
    tracker.log(run_id, Change("k", [points[1], Point("loss", 1.5, 4_000, 1)]))
    place = tmp_path / "board" / "events" / experiment / f"mbls on a-b- ..-c-{run_id[:8]}"
    version, *figures = events(place)
    assert version.file_version == "brain.Event:2"
    assert [
        (value.tag, value.simple_value, event.wall_time, event.step)
        for event in figures
        for value in event.summary.value
    ] == [("val_ece", 0.5, 2.0, 0), ("val_ece", 0.25, 3.5, 1), ("loss", 1.5, 4.0, 1)]
    assert tracker.run(run_id).metrics == {"val_ece": 0.25, "loss": 1.5}


def test_an_address_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="names no folder; use tensorboard:FOLDER"):
        open_tracker("tensorboard:", create=True)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file is not a folder that can be written"):
        open_tracker(f"tensorboard:{tmp_path}/file/board", create=True)
    with pytest.raises(InputError, match="the folder does not exist"):
        open_tracker(f"tensorboard:{tmp_path}/absent")
