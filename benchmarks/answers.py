"""Times commands that compute nothing: `python benchmarks/answers.py`."""

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median

import psutil
from _page import load, options, publish, setting, table

from orchestrator.storage.events import from_fields
from orchestrator.storage.journal import Journal

TRIALS = 20_000
COMMANDS = ("list methods", "plan demo.yaml", "plan refused.yaml", "status big", "table big")
UNIT = [sys.executable, "-c", "import torch"]


def make(root: Path) -> None:
    """Write an unfinished sweep with many trials, a valid sweep file and an invalid one."""
    demo = Path(__file__).parents[1] / "orchestrator/examples/demo.yaml"
    text = demo.read_text(encoding="utf-8")
    (root / "demo.yaml").write_text(text, encoding="utf-8")
    wrong = re.sub(r"trials: \d+", "trials: none", text)
    (root / "refused.yaml").write_text(wrong, encoding="utf-8")
    folder = root / "calsweep-storage/sweeps/big"
    with Journal(folder / "journal.jsonl") as journal:

        def tell(event: str, **known: object) -> None:
            journal.append(from_fields({"event": event, "time": 0, **known}), durable=False)

        tell("sweep_started", sweep="big", sweep_id="b", spec={"name": "big"}, provenance={})
        study = {"study": "t|mbls"}
        plan = {"task": "t", "recipe": "mbls", "trials": TRIALS, "row": True, "upstream": None}
        tell("study_opened", **study, **plan, fingerprint="f")
        for number in map(str, range(TRIALS)):
            trial = {"number": int(number), "role": "search", "seed": 0, "stage": "train"}
            tell("trial_started", **study, **trial, key=number, parameters={}, configuration={})
            end = {"status": "finished", "metrics": {"val_ece": 0.1}, "reason": ""}
            tell("trial_finished", key=number, **end, reused=False, seconds=1.0)
            tell("trial_scored", key=number, objective=0.1)
        tell("study_closed", **study, chosen="0", finished=TRIALS, failed=0, reason="")
        known = {"metrics": {"test_acc": 0.9, "test_ece": 0.1}, "artifacts": {}}
        tell("evaluated", **study, **known, key="0", seed=0)
    (folder / "sweep.yaml").touch()


def seconds(command: list[str], folder: Path, code: int = 0) -> float:
    """Return the seconds that a process takes; its exit code must be ``code``."""
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    taken = time.perf_counter() - started
    assert done.returncode == code, done.stderr
    return taken


def commands(root: Path, times: int) -> list[tuple[str, ...]]:
    """Run each command several times, each time after the import with which it is compared."""
    rows = []
    for name in COMMANDS:
        command = [sys.executable, "-m", "orchestrator", *name.split()]
        code = 2 if "refused" in name else 0
        _, *pairs = [(seconds(UNIT, root), seconds(command, root, code)) for _ in range(times + 1)]
        ratio = median(own / unit for unit, own in pairs)
        rows.append((f"`{name}`", f"{median(own for _, own in pairs):.2f}", f"{ratio:.2f}"))
    return rows


def pages(root: Path, times: int) -> list[str]:
    """Time several requests for each page of the server, and measure its memory."""
    command = [sys.executable, "-m", "orchestrator", "ui", "--port", "0"]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            first = server.stdout.readline().removeprefix("open ").strip()
            address = first.partition("/?")[0]
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            opener.open(first).read()
            rows = []
            for page in ("/", "/sweeps/big", "/sweeps/big/studies/0", "/sweeps/big/trials?page=90"):
                taken = []
                for _ in range(times):
                    started = time.perf_counter()
                    opener.open(f"{address}{page}").read()
                    taken.append(1000 * (time.perf_counter() - started))
                rows.append((f"`{page}`", f"{median(taken):.0f}"))
            memory = psutil.Process(server.pid).memory_info().rss / 2**20
        finally:
            server.terminate()
    return [*table(("page", "ms"), rows), "", f"The server uses {memory:.0f} MiB of memory."]


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--times", type=int, default=5, help="how often each is measured")
    given = parser.parse_args()
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    before = load()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as bytecode:
        # As for a user, bytecode is cached; the first pair of calls writes it and is not counted.
        os.environ |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": bytecode}
        make(Path(folder))
        heads = ("command", "seconds", "ratio to `import torch`")
        lines = [
            *table(heads, commands(Path(folder), given.times)),
            "",
            *pages(Path(folder), given.times),
        ]
    place = (
        f"{TRIALS:,} trials, medians of {given.times}; {setting('torch')}. Load average {before}."
    )
    publish("Do commands that compute nothing answer at once?", lines, place, given.out)
