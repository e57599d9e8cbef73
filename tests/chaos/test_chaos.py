from pathlib import Path

import pytest
from harness import VICTIMS, Ending, Weather, ending, faults, run, write_sweep

from orchestrator.cli import main
from tests.orchestrator.one_process import one_process

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1200)]
WEATHER = Weather(kills=len(VICTIMS), pause=(1.0, 3.0))
SIZE = {"trials": 1, "epochs": 20}


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Ending:
    """The sweep without weather or Ray, which must not matter either to what it comes to."""
    folder = tmp_path_factory.mktemp("calm")
    uri = f"sqlite:///{folder}/mlflow.db"
    with one_process():
        assert main(["run", str(write_sweep(folder, uri, **SIZE)), "--quiet"]) == 0
    return ending(folder, uri, 0.0, "")


def test_one_kill_of_each_kind_changes_nothing(calm: Ending, tmp_path: Path) -> None:
    stormy = run(tmp_path / "stormy", WEATHER, **SIZE)
    assert {kill.victim for kill in WEATHER.done} >= {"driver", "worker"}
    assert faults(calm, stormy) == []
