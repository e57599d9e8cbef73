"""Benchmarks whose sweeps are told, not computed."""

import os
import time
from typing import Any

import pytest
import yaml
from told_sweep import ToldSweep, document

from orchestrator.nightly import Nightly, load_nightly


@pytest.fixture(autouse=True)
def _no_power_is_cut(monkeypatch):
    """Spare waiting for the disk; what must be on it when is tested where files are written."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def make_benchmark(tmp_path):
    """Return a function that writes a nightly file and reads it."""

    def make(**more: Any) -> Nightly:
        content = document(tmp_path, **more)
        # MLflow takes most of a told night's time, and the trackers are tested elsewhere.
        content["sweep"].setdefault("tracking", {"uri": f"folder:{tmp_path / 'tracking'}"})
        path = tmp_path / "nightly.yaml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return load_nightly(path)

    return make


@pytest.fixture
def machine_in_new_york(monkeypatch):
    """Set the machine's own time zone to one that is behind UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "EST5EDT,M3.2.0,M11.1.0")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def told_sweep(monkeypatch):
    """Replace the sweep of every night."""
    sweep = ToldSweep()
    monkeypatch.setattr("orchestrator.nightly.run.run_sweep", sweep)
    return sweep
