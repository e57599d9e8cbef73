"""Sweeps whose bits do not depend on the processor."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.running.run import run_sweep
from orchestrator.sweep.spec import parse_sweep
from trainables.common.errors import InputError
from trainables.common.portable import VARIABLES

SWEEP = """
name: portable
tasks: [{{dataset: digits, model: convnet, split: {{train_limit: 300}}, protocol: {protocol}}}]
recipes: [ce, ce+dirichlet]
search: {{trials: 1}}
executor: {executor}
resources: {{portable: true, train: {train}}}
storage: {storage}
"""
PROTOCOL = "{epochs: 2, batch_size: 32, lr: 0.05, compile: false}"


def sweep(
    executor: str = "local",
    train: str = "{cpu: 1}",
    protocol: str = PROTOCOL,
    storage: Path = Path("/nowhere"),
) -> str:
    return SWEEP.format(executor=executor, train=train, protocol=protocol, storage=storage)


def run(executor: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    text = sweep(executor, storage=folder / "storage")
    (folder / "sweep.yaml").write_text(text, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "calsweep", "run", "sweep.yaml"],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
def test_portable_results_on_ray_equal_those_of_a_local_process(tmp_path: Path) -> None:
    here = run("local", tmp_path / "here", **VARIABLES)
    there = run("ray", tmp_path / "there", ATEN_CPU_CAPABILITY="default", OMP_NUM_THREADS="2")
    assert (here.returncode, there.returncode) == (0, 0), here.stderr + there.stderr
    tables = [
        [{k: v for k, v in row.items() if "seconds" not in k} for row in csv.DictReader(file)]
        for path in sorted(tmp_path.glob("*/storage/sweeps/portable*/table.csv"))
        for file in [path.read_text(encoding="utf-8").splitlines()]
    ]
    assert len(tables) == 2
    assert tables[0] == tables[1]


def test_a_portable_sweep_refuses_a_process_with_other_environment_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    text = sweep(storage=tmp_path / "storage")
    with pytest.raises(InputError, match=r"start it with env .*MKL_CBWR='COMPATIBLE'"):
        run_sweep(parse_sweep(text, "sweep.yaml"))
    assert not (tmp_path / "storage").exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (sweep(train="{cpu: 2}"), "use train: {cpu: 1}, got"),
        (sweep(train="{gpu: 0.5}"), "use train: {cpu: 1}, got"),
        (sweep(train="{precision: bfloat16}"), "delete train.precision: bfloat16"),
        (sweep(protocol="{epochs: 1, batch_size: 8, lr: 0.1, compile: true}"), "`compile: true`"),
    ],
)
def test_settings_that_cannot_be_portable_are_refused(text: str, told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        parse_sweep(text, "sweep.yaml")
