"""What a trial costs, measured in a process that serves many."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from trainables.common import meter
from trainables.common.meter import Meter

CPU = torch.device("cpu")
MEBIBYTE = 2**20


def test_seconds_are_the_mean_of_the_epochs() -> None:
    own = Meter(CPU)
    assert own.report()["epoch_seconds"] == 0.0
    for work in (0.05, 0.15):
        with own.epoch():
            until = time.process_time() + work
            while time.process_time() < until:
                pass
    assert 0.1 <= own.report()["epoch_seconds"] < 0.3


def test_waiting_costs_nothing_on_a_cpu() -> None:
    own = Meter(CPU)
    with own.epoch():
        time.sleep(2)
    assert 0.0 < own.report()["epoch_seconds"] < 1.5


def test_a_trials_peak_is_its_own_and_not_that_of_the_one_before() -> None:
    # Asked of the system and not of the meter, whose own mistake would be no excuse.
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        pytest.skip(f"this system does not let a process forget its peak of memory: {error}")
    if "VmHWM:" not in Path("/proc/self/status").read_text():
        pytest.skip("this system does not tell a process its peak of memory")
    first = Meter(CPU)
    assert first._forgets
    with first.epoch():
        block = torch.ones(64 * MEBIBYTE)
        del block
    peak = first.report()["peak_memory"]
    assert peak - Meter(CPU).report()["peak_memory"] > 200 * MEBIBYTE


def test_without_the_systems_help_memory_is_read_after_each_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meter, "_forget_peak", lambda: False)
    own = Meter(CPU)
    before = own.report()["peak_memory"]
    with own.epoch():
        block = torch.ones(64 * MEBIBYTE)
    assert own.report()["peak_memory"] - before > 200 * MEBIBYTE
    del block
