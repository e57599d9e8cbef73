"""Fixtures that every test may use."""

import gc
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import typer.main
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.buckets import Weather
    from tests.hub import Hub

# How fast examples are drawn says how busy the machine is, nothing of what is tested.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# Else every command that a test runs in this process first builds all commands and their options.
typer.main.get_command = cache(typer.main.get_command)

ROOT = Path(__file__).resolve().parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the file that takes longest; only the whole suite asks a browser."""
    items.sort(key=lambda item: item.path.name != "test_gpu.py")
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.full)


def pytest_collection_finish() -> None:
    """Spare searches for garbage, of which each sealing of test data makes one, all imports."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_umask() -> Iterator[None]:
    """Restore the umask, which a shared storage replaces (``follow_folder``)."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(autouse=True)
def _no_plugin_left() -> Iterator[None]:
    """Forget the plugins that a test made known, and the metrics of stored sweeps."""
    yield
    metrics = sys.modules.get("trainables.metrics")
    if metrics is not None:
        metrics.METRICS._declared.clear()
    plugins = sys.modules.get("trainables.plugins")
    if plugins is not None and plugins.active_plugins():
        plugins.load_plugins((), installed=True)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of reference values and data kept beside the repository, else skip.

    They are no part of the repository, so that most machines lack them. A folder that
    CALSWEEP_SHARED names must hold them: then their absence is a failure, not a skip.
    """
    named = os.environ.get("CALSWEEP_SHARED")
    folder = Path(named) if named else ROOT.parent / "shared"
    if (folder / "goldens" / "index.json").is_file():
        return folder
    if named:
        pytest.fail(f"CALSWEEP_SHARED={named} holds no reference values (goldens/index.json)")
    pytest.skip(f"no reference values at {folder} (set CALSWEEP_SHARED to their folder)")


@pytest.fixture(scope="module")
def disturbed() -> "Iterator[tuple[str, Weather]]":
    """Yield the address of a server of object storage, and its weather."""
    from tests.buckets import disturbed_buckets  # Its server takes a second to import.

    with disturbed_buckets() as found:
        yield found


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> "Iterator[Hub]":
    """Serve an empty Hugging Face Hub, whose client forgets logins and never waits."""
    import huggingface_hub.constants as constants
    import huggingface_hub.utils._http as http

    from tests.hub import served

    with served() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "models of the Hub"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        waits = SimpleNamespace(sleep=lambda seconds: None)
        monkeypatch.setattr(http, "time", waits)
        yield hub
