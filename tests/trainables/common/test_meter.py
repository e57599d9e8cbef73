"""What a trial costs, measured in a process that serves many."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from trainables.common import meter
from trainables.common.meter import Meter

CPU = torch.device("cpu")
MEBIBYTE = 2**20


def test_seconds_are_the_processors_and_the_mean_of_the_epochs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = iter([1.0, 1.5, 7.0, 8.5])
    # The clock on the wall, which goes on while the processor does something else, is not asked.
    monkeypatch.setattr(
        meter, "time", SimpleNamespace(process_time=ticks.__next__, monotonic=pytest.fail)
    )
    own = Meter(CPU)
    assert own.report()["epoch_seconds"] == 0.0
    for _ in range(2):
        with own.epoch():
            pass
    assert own.report()["epoch_seconds"] == 1.0


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
    resident = iter([30, 20, 50, 40])
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=next(resident)))
    monkeypatch.setattr(meter, "psutil", SimpleNamespace(Process=lambda: process))
    own = Meter(CPU)
    for most in (30, 50, 50):
        with own.epoch():
            pass
        assert own.report()["peak_memory"] == most
