from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pretended_card import pretended_card

from trainables.common import devices
from trainables.common.devices import Meter

CPU = torch.device("cpu")
MEBIBYTE = 2**20


def test_seconds_are_the_processors_and_the_mean_of_the_epochs(monkeypatch):
    ticks = iter([1.0, 1.5, 7.0, 8.5])
    # The clock on the wall, which goes on while the processor does something else, is not asked.
    monkeypatch.setattr(
        devices, "time", SimpleNamespace(process_time=ticks.__next__, monotonic=pytest.fail)
    )
    own = Meter(CPU)
    assert own.report()["epoch_seconds"] == 0.0
    for _ in range(2):
        with own.epoch():
            pass
    assert own.report()["epoch_seconds"] == 1.0


def test_a_trials_peak_is_its_own_and_not_that_of_the_one_before():
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


def test_without_the_systems_help_memory_is_read_after_each_epoch(monkeypatch):
    monkeypatch.setattr(devices, "_forget_peak", lambda: False)
    resident = iter([30, 20, 50, 40])
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=next(resident)))
    monkeypatch.setattr(devices, "psutil", SimpleNamespace(Process=lambda: process))
    own = Meter(CPU)
    for most in (30, 50, 50):
        with own.epoch():
            pass
        assert own.report()["peak_memory"] == most


@pytest.mark.parametrize(
    ("status", "peak"),
    [("VmPeak:\t 9 kB\nVmHWM:\t    2048 kB\n", 2 * MEBIBYTE), ("VmRSS: 9 kB\n", 7)],
)
def test_the_peak_memory_comes_from_the_system_or_is_the_resident_memory(
    tmp_path, monkeypatch, status, peak
):
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=7))
    monkeypatch.setattr(devices, "psutil", SimpleNamespace(Process=lambda: process))
    for name in ("RESET", "STATUS"):
        monkeypatch.setattr(devices, name, tmp_path / name)
    (tmp_path / "STATUS").write_text(status)
    assert Meter(CPU).report()["peak_memory"] == peak
    assert (tmp_path / "RESET").read_text() == "5"


def test_on_a_gpu_the_wall_clock_and_the_devices_memory_count(monkeypatch):
    ticks = iter([1.0, 4.0])
    monkeypatch.setattr(
        devices, "time", SimpleNamespace(process_time=pytest.fail, monotonic=ticks.__next__)
    )
    most = {torch.device("cuda:1"): 99}
    with pretended_card(1):
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda at: most.update({at: 5}))
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", most.__getitem__)
        own = Meter(torch.device("cuda"))
        with own.epoch():
            pass
        assert own.report() == {"epoch_seconds": 3.0, "peak_memory": 5.0}
