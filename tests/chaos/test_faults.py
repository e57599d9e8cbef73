import os
import signal
import socket
from dataclasses import dataclass

import pytest
from lab import Lab, check_full_disk
from sweeps import Command, Done, Sweep, gone, statuses

from tests.orchestrator.disks import require_mounts

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(900)]
SIZE = {"recipes": "ce, ce+ts", "trials": 1, "epochs": 60}


@dataclass(frozen=True)
class Story:
    """One sweep and what became of it."""

    sweep: Sweep
    first: Command
    second: Done
    stopped: Done
    left: list[str]
    ended: Done


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("faults"), **SIZE)


@pytest.fixture(scope="module")
def story(lab: Lab) -> Story:
    """Start a sweep twice without a tracking server, stop it by Ctrl-C, do as it says."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{probe.getsockname()[1]}"
    sweep = lab.sweep(tracking=away)
    first = sweep.start()
    assert sweep.wait_for_trials(first), first.errors
    second = sweep.start().wait()
    first.send(signal.SIGINT)
    stopped = first.wait()
    left = first.left_behind()
    return Story(sweep, first, second, stopped, left, sweep.obey(stopped.line("resume it with")))


def test_a_second_start_of_a_sweep_names_the_process_that_runs_the_first(story: Story) -> None:
    assert story.second.code == 2
    line = story.second.line("calsweep: ")
    owner = f"on {os.uname().nodename}, process {story.first.process.pid}, since 2"
    assert owner in line
    assert "Traceback" not in story.second.errors


def test_ctrl_c_stops_a_sweep_and_leaves_no_process_of_ray(story: Story) -> None:
    assert story.stopped.code == 130
    assert "Traceback" not in story.stopped.errors
    assert story.left == []
    gone(story.first)


def test_a_sweep_without_its_tracking_server_finishes_and_names_the_sync_command(
    story: Story, lab: Lab
) -> None:
    assert story.ended.code == 0
    keys = story.sweep.finished()
    assert len(keys) == len(set(keys)) == 2
    store = story.sweep.folder / "later.db"
    line = story.ended.line("calsweep storage sync")
    delivered = story.sweep.obey(f"{line} --tracking-uri sqlite:///{store}")
    assert delivered.code == 0
    assert statuses(store) == {"FINISHED": 5}  # Two studies, two trials, tables and report.


def test_a_full_disk_ends_a_sweep_and_more_space_lets_the_sweep_continue(story, lab, tmp_path):
    require_mounts(tmp_path)
    check_full_disk(lab, story.sweep, 0.6)
