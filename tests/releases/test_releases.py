import tarfile
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from make import table, write_sweep

from orchestrator.cli import main
from orchestrator.storage.journal import read_events
from tests.orchestrator.one_process import one_process

STORAGES = sorted(Path(__file__).parent.glob("*.tar.xz"))
JOURNAL = Path("storage/sweeps/mini/journal.jsonl")


def keys(kind: str) -> Counter[str]:
    return Counter(event.key for event in read_events(JOURNAL)[0] if event.event == kind)


@pytest.mark.full
@one_process()
@pytest.mark.parametrize("storage", STORAGES, ids=lambda path: path.name)
def test_a_sweep_in_a_storage_of_an_earlier_release_is_resumed(storage, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with tarfile.open(storage) as archive:
        archive.extractall(filter="data")
    write_sweep()
    finished, started = keys("trial_finished"), keys("trial_started")
    assert 0 < len(finished) < len(started)
    assert main(["plan", "sweep.yaml"]) == 0
    assert main(["run", "sweep.yaml", "--quiet"]) == 0
    assert set(keys("trial_finished").values()) == {1}
    assert {key: keys("trial_started")[key] for key in finished} == dict.fromkeys(finished, 1)
    table(Path("table.csv"))
    expected = pd.read_csv(storage.with_name(storage.name.replace(".tar.xz", ".csv")))
    # A later release may add columns; it keeps what there was.
    found = pd.read_csv("table.csv")[list(expected.columns)]
    pd.testing.assert_frame_equal(found, expected, rtol=1e-5)
    assert main(["report", "mini", "--storage", "storage"]) == 0
    assert "mini" in Path("storage/sweeps/mini/report.html").read_text()
