"""Times the pages of test rows in `calsweep ui`: `python benchmarks/rows.py`."""

import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import torch
from _page import options, publish, setting, table
from starlette.testclient import TestClient

from orchestrator.storage.events import from_fields
from orchestrator.storage.journal import Journal
from orchestrator.storage.storage import Storage
from orchestrator.view.server import Book, application
from trainables.common.stages import ArtifactRef
from trainables.data import SplitSpec, prepare
from trainables.store.artifacts import ArtifactStore, stage_key

ROWS, CLASSES, RECIPES, TIMES = 1_000_000, 10, 4, 12
ORDERS = ("", "show=wrong&sort=disagreement", "sort=disagreement&page=10000", "sort=confidence")
PAGES = [*(f"studies/{{}}/rows?{order}" for order in ORDERS), "tasks/0/rows/{}"]


def make(root: Path) -> None:
    """Store a sweep of one trial per recipe, with predictions and data (8 x 8 pixels)."""
    labels = np.random.default_rng(0).integers(0, CLASSES, ROWS)
    x = np.random.default_rng(1).integers(0, 256, (ROWS, 8, 8, 1), np.uint8)
    np.savez(root / "own.npz", x_train=x[:100], y_train=labels[:100], x_test=x, y_test=labels)
    data = prepare(f"npz:{root}/own.npz", root, SplitSpec(), root / "data")
    store = ArtifactStore(root / "artifacts")
    with Journal(root / "sweeps/big/journal.jsonl") as journal:

        def tell(event: str, **known: object) -> None:
            journal.append(from_fields({"event": event, "time": 0, **known}), durable=False)

        tell("sweep_started", sweep="big", sweep_id="b", spec={"name": "big"}, provenance={})
        for recipe in map(str, range(RECIPES)):
            key, study = stage_key("evaluate", recipe=recipe), {"study": f"t|{recipe}"}
            scores = 2.5 * torch.eye(CLASSES)[labels] + torch.randn(ROWS, CLASSES)
            rows = {"log_probs": scores.log_softmax(1), "labels": torch.tensor(labels)}
            store.write(ArtifactRef("evaluate", key), {"test": rows}, {})
            plan = {"task": "t", "recipe": recipe, "trials": 1, "row": True, "upstream": None}
            tell("study_opened", **study, **plan, fingerprint=data.key)
            trial = {"number": 0, "role": "search", "seed": 0, "stage": "train", "parameters": {}}
            tell("trial_started", **study, **trial, key=recipe, configuration={})
            tell("study_closed", **study, chosen=recipe, finished=1, failed=0, reason="")
            known = {"metrics": {"test_acc": 0.5}, "artifacts": {}, "predictions": key}
            tell("evaluated", **study, **known, key=recipe, seed=0)


def measure(root: Path) -> list[str]:
    """Time several requests for each page of each recipe."""
    client, lines = TestClient(application(Book(Storage(root)), "t")), []
    client.get("/?token=t")
    before = psutil.Process().memory_info().rss
    for page in PAGES:
        taken = []
        for number in range(TIMES):
            started = time.perf_counter()
            answer = client.get(f"/sweeps/big/{page.format(number % RECIPES)}")
            taken.append(1000 * (time.perf_counter() - started))
            assert answer.status_code == 200, answer.text
        longest = (f"{max(part):.0f}" for part in (taken[:RECIPES], taken[RECIPES:]))
        lines.append((page.format("N"), *longest))
    grown = (psutil.Process().memory_info().rss - before) / 2**20
    heads = ("page", "slowest first visit, ms", "slowest later visit, ms")
    return [*table(heads, lines), "", f"The server's memory grew by {grown:.0f} MiB."]


if __name__ == "__main__":
    given = options(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        place = f"{ROWS:,} rows, {CLASSES} classes, {RECIPES} recipes; {setting('torch', 'numpy')}."
        publish(
            "How fast are the pages that list test rows?", measure(Path(folder)), place, given.out
        )
