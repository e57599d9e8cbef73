"""What a trial costs, measured in a process that serves many."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from trainables import _meter
from trainables._meter import Meter

CPU = torch.device("cpu")
MEBIBYTE = 2**20


def test_seconds_are_the_mean_of_the_epochs() -> None:
    meter = Meter(CPU)
    assert meter.report()["epoch_seconds"] == 0.0
    for work in (0.05, 0.15):
        with meter.epoch():
            until = time.process_time() + work
            while time.process_time() < until:
                pass
    assert 0.1 <= meter.report()["epoch_seconds"] < 0.3


def test_waiting_costs_nothing_on_a_cpu() -> None:
    meter = Meter(CPU)
    with meter.epoch():
        time.sleep(0.3)
    assert 0.0 < meter.report()["epoch_seconds"] < 0.2


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
    monkeypatch.setattr(_meter, "_forget_peak", lambda: False)
    meter = Meter(CPU)
    before = meter.report()["peak_memory"]
    with meter.epoch():
        block = torch.ones(64 * MEBIBYTE)
    assert meter.report()["peak_memory"] - before > 200 * MEBIBYTE
    del block
