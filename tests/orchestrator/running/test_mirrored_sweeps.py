"""Whole sweeps whose mirror is away: they end as others do, and the next run fills the hole."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli import main
from tests.orchestrator.one_process import one_process
from trainables.store.artifacts import ArtifactStore

SWEEP = """
name: mirrored
tasks:
  - name: d
    dataset: digits
    model: convnet
    protocol: {{base: digits, epochs: 1}}
    split: {{train_limit: 100, test_limit: 50}}
recipes: [ce, ce+ts]
search: {{trials: 1, accuracy_tolerance: null}}
resources: {{concurrent: 1}}
storage: {folder}/storage
mirror: "{mirror}"
"""


@one_process()
def test_a_mirror_that_is_away_ends_no_sweep(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bucket = tmp_path / "bucket"
    bucket.write_text("No folder can be below a file.")
    file = tmp_path / "sweep.yaml"
    file.write_text(SWEEP.format(folder=tmp_path, mirror=bucket.as_uri()))
    assert main(["run", str(file)]) == 0
    assert f"have not reached the mirror {bucket.as_uri()}: " in capfd.readouterr().err
    bucket.unlink()
    assert main(["run", str(file)]) == 0
    assert "have not reached" not in capfd.readouterr().err
    here = {
        path.parent.name for path in (tmp_path / "storage/artifacts").glob("*/*/*/manifest.json")
    }
    there = ArtifactStore(tmp_path / "other")
    there.mirror_to(bucket.as_uri())
    found = [there.find(path.parents[1].name, path.name) for path in bucket.glob("*/*/*")]
    assert {artifact.key for artifact in found if artifact is not None} == here
