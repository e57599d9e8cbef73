import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from orchestrator.storage.storage import Storage
from orchestrator.tracking import sync
from tests.orchestrator.conftest import TASK
from tests.orchestrator.databases import place_database
from trainables.common.stages import ArtifactRef
from trainables.store.artifacts import ArtifactStore

SWEEP = """
name: planned
tasks: [{dataset: digits, model: convnet, protocol: digits}]
recipes: [ce, mbls, au, "mbls+mit", plp, balcal, "ce+macal", "ce+ts-cls", "ce+macal+ets"]
search: {trials: 2, fixed: {mbls: {margin: 5.0}, macal: {gamma: 0.9}}}
storage: store
"""
WRONG = SWEEP.replace("margin: 5.0", "margin: -5.0")
# Each command, its exit code, and the slow libraries imported so far; then the same of pages.
SCRIPT = """
import sys
from starlette.testclient import TestClient
from orchestrator.cli import main
from orchestrator.storage.storage import Storage
from orchestrator.view.server import Book, _aside, application

_aside.PROGRAM = ""  # What a page computes with PyTorch is computed in another process.
SLOW = {"torch", "open_clip", "ray", "mlflow", "optuna", "pandas", "sklearn"}
for command in sys.argv[1].split(", "):
    print(command, main(command.split()), *sorted(SLOW & set(sys.modules)))
client = TestClient(application(Book(Storage("store")), "t"), base_url="http://127.0.0.1:1")
client.get("/?token=t")
for page in sys.argv[2:]:
    print(page, client.get(page).status_code, *sorted(SLOW & set(sys.modules)))
"""
COMMANDS = (
    *("list methods", "list models", "list metrics", "list datasets", "list calibrators"),
    *("status old --storage store", "table old --storage store --metrics acc,ece"),
    *("plan planned.yaml", "plan wrong.yaml", "best old --storage store"),
)
PAGES = ("/", *(f"/sweeps/old{place}" for place in ("", "/studies/0", "/trials")))
ROWS = ("/sweeps/old/studies/0/rows", "/sweeps/old/tasks/0/rows/1")


@pytest.mark.full
def test_commands_that_compute_nothing_import_no_slow_library(empty_folder, finished) -> None:
    Storage("store").sweep("old").spec_file.write_text("tracking: {uri: null}")
    sync(finished.path, f"sqlite:///{place_database(Path('store'))}/mlflow.db", Path("store/files"))
    rows = {"log_probs": torch.eye(3).log_softmax(1), "labels": torch.arange(3)}
    ArtifactStore(Path("store/artifacts")).write(ArtifactRef("evaluate", "e"), {"test": rows}, {})
    key, study = finished.key(f"{TASK}|mbls", 1), f"{TASK}|mbls"
    finished.evaluate(key, study, facts={"predictions": "e"}, acc=1.0, ece=0.4)
    (empty_folder / "planned.yaml").write_text(SWEEP)
    (empty_folder / "wrong.yaml").write_text(WRONG)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, ", ".join(COMMANDS), *PAGES, *ROWS],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    )
    said = {f"{c} {2 if 'wrong' in c else 0}" for c in COMMANDS}
    said |= {f"{page} 200" for page in (*PAGES, *ROWS)}
    lines = done.stdout.splitlines()
    answers = [line for line in lines if line.startswith((*COMMANDS, "/"))]
    assert said <= set(lines), "\n".join(answers) + done.stderr
    assert "margin=-5.0 is outside [0, inf)" in done.stderr
