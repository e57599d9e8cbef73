import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from orchestrator.storage.events import SweepEnded
from orchestrator.storage.status import SweepStatus, sweep_status
from orchestrator.storage.storage import Storage, SweepFolder
from tests.orchestrator.databases import place_database
from tests.orchestrator.one_process import one_process

SWEEP = """
name: far
tasks:
  - {name: t, dataset: digits, model: convnet, protocol: {base: digits, epochs: EPOCHS},
     split: {train_limit: 200, test_limit: 150}}
recipes: [ls]
search: {trials: 2}
executor: local
resources: {concurrent: 2}
storage: store
"""
# Some commands, then which libraries they waited for.
LIGHT = """
import sys
from orchestrator.cli import main
import tests.orchestrator.folder_kind  # MLflow's own database would need MLflow.
for command in sys.argv[1].split(", "):
    main([*command.split(), "--storage", "store"])
print(sorted({"torch", "ray", "mlflow", "optuna"} & set(sys.modules)))
"""

# Of each sweep, whether its processes are on their way, and PyTorch is imported here.
EARLY = """
import json, os, sys
from multiprocessing import forkserver
from orchestrator.cli._run import _start_early
server = forkserver._forkserver
os.sched_getaffinity = lambda _: {0, 1}
for document in sys.argv[1:]:
    _start_early(json.loads(document))
    print(server._forkserver_pid is not None, "torch" in sys.modules)
print(server._forkserver_pid)
"""


def write_sweep(folder: Path, epochs: int) -> None:
    (folder / "far.yaml").write_text(SWEEP.replace("EPOCHS", str(epochs)))
    place_database(folder / "store")


def started(folder: Path) -> subprocess.Popen[str]:
    write_sweep(folder, epochs=3000)
    return subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "run", "far.yaml"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_local_processes_start_before_pytorch_is_imported(tmp_path):
    documents = (
        {"executor": "ray"},
        {"executor": "local", "resources": {"concurrent": 1}},
        {"executor": "local", "resources": {"concurrent": 2}},
    )
    command = [sys.executable, "-c", EARLY, *map(json.dumps, documents)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    *told, pid = done.stdout.split("\n")[:-1]
    assert told == ["False False", "False False", "True False"]
    # Nobody waits for what it was importing: the output would be held open.
    assert not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == "zombie"


def wait_until(there: Callable[[], bool], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.2)


def looked_at(folder: SweepFolder) -> SweepStatus | None:
    return sweep_status(folder) if folder.spec_file.exists() else None


def assert_light(commands: str) -> str:
    run = [sys.executable, "-c", LIGHT, commands]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(run, capture_output=True, text=True, env=environment)
    assert done.stdout.endswith("[]\n"), done.stdout + done.stderr
    return done.stdout


def running(far: SweepFolder) -> SweepStatus:
    wait_until(lambda: (now := looked_at(far)) is not None and bool(now.running))
    wait_until(lambda: bool(sweep_status(far).running[0].host))
    return sweep_status(far)


@pytest.mark.slow
def test_a_sweep_is_paused_and_stopped_from_another_process(calsweep, empty_folder):
    far = Storage("store").sweep("far")
    far.path.mkdir(parents=True)
    far.set_control("pause")
    process = started(empty_folder)
    try:
        wait_until(lambda: (now := looked_at(far)) is not None and now.state == "paused")
        wait_until(lambda: far.journal.exists() and b"study_opened" in far.journal.read_bytes())
        time.sleep(1)
        assert (sweep_status(far).running, sweep_status(far).ended) == ((), 0)
        assert calsweep("resume", "far", "--storage", "store").out == "far continues\n"
        now = running(far)
        assert (now.state, now.trials, now.running[0].trial) == ("running", 3, "t|ce|0")
        assert now.running[0].host == os.uname().nodename
        told = calsweep("status", "far", "--storage", "store").out
        assert "far: running since" in told
        assert re.search(rf"t\|ce\|0 +{os.uname().nodename} ", told)
        assert calsweep("pause", "far", "--storage", "store").code == 0
        assert sweep_status(far).state == "pausing"
        everybody = psutil.Process(process.pid).children(recursive=True)
        workers = [each for each in everybody if each.ppid() != process.pid]
        assert len(workers) == 2
        assert calsweep("cancel", "far", "--storage", "store").code == 0
        assert process.wait(60) == 130
        assert psutil.wait_procs(workers, timeout=5)[1] == []
    finally:
        process.kill()
        out = process.communicate()[0]
    assert "paused: no trial starts until `calsweep resume far --storage " in out
    assert "calsweep run --resume far" in out
    assert sweep_status(far).state == "interrupted"
    answer = calsweep("cancel", "far", "--storage", "store")
    assert answer.code == 2
    assert answer.err.startswith("calsweep: sweep 'far' is not running;")
    *kept, end = far.journal.read_bytes().splitlines(keepends=True)
    assert b"sweep_ended" in end
    far.journal.write_bytes(b"".join(kept))  # As it is when the process is killed.
    now = sweep_status(far)
    assert (now.state, now.running, now.seconds_left) == ("died", (), None)
    with far.owned():
        assert sweep_status(far).state == "running"  # Its process has not begun to write yet.
        far.journal.write_bytes(b"".join([*kept, end]))
        assert sweep_status(far).state == "starting"
        with far.open_journal() as journal:
            journal.append(SweepEnded(status="finished"))
        assert sweep_status(far).state == "running"  # It still writes the report.
    assert f"process {process.pid}, since" in now.owner


@pytest.mark.full
@one_process()
def test_status_and_logs_of_a_finished_sweep(calsweep, empty_folder):
    write_sweep(empty_folder, epochs=2)
    with (empty_folder / "far.yaml").open("a") as file:
        file.write(f"tracking: {{uri: 'folder:{empty_folder}/tracked'}}\n")
    assert calsweep("run", "far.yaml").code == 0
    found = json.loads(calsweep("status", "far", "--storage", "store", "--json").out)
    assert (found["state"], found["failures"], found["running"]) == ("finished", {}, [])
    assert found["ended"] == found["trials"] == sum(r["ended"] for r in found["recipes"])
    assert found["measured"] == found["measurements"] == 1
    (every,) = json.loads(calsweep("status", "--storage", "store", "--json").out)
    assert every == found
    listed = calsweep("logs", "far", "--storage", "store").out.splitlines()
    assert len(listed) == found["trials"]
    name = listed[0].partition(": ")[0]
    (first, *epochs, last) = calsweep("logs", "far", name, "--storage", "store").out.splitlines()
    assert first.endswith(f"{name}, attempt 1 on {os.uname().nodename}")
    assert [line.split()[2:4] for line in epochs] == [["epoch", "1:"], ["epoch", "2:"]]
    assert "finished after" in last
    answer = calsweep("logs", "far", "nothing|0", "--storage", "store")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "has no trial 'nothing|0'" in answer.err
    told = assert_light(
        "status far, status, logs far, cancel far, table far, best far, compare far --ranks"
    )
    assert "ECE" in told


def test_status_of_a_calibration_that_has_not_begun_is_light(empty_folder, journal_writer):
    far = Storage("store").sweep("far")
    writer = journal_writer(far.path, "far")
    writer.start()
    writer.open("ls+ts", upstream="t|ls")
    far.spec_file.touch()
    with far.owned():
        assert ", trials 0/2, measured 0/1" in assert_light("status far")


def test_sweep_that_stopped_early_says_how_to_resume_it(calsweep, empty_folder, journal_writer):
    """The journal ends with the interruption, or without an end if the process was killed."""
    far = Storage("store").sweep("far")
    writer = journal_writer(far.path, "far")
    writer.start()
    writer.open("ls")
    far.spec_file.touch()
    for state, how in (("died", "died"), ("interrupted", "was interrupted")):
        command = f"calsweep run --resume far --storage {empty_folder}/store"
        table = calsweep("table", "far", "--storage", "store", "--format", "markdown").out
        assert f"sweep far: it {how}; resume it with: {command}\n" in table
        assert "| ls | interrupted |" in table
        assert "failed" not in table
        status = calsweep("status", "far", "--storage", "store").out
        assert f"far: {state} since" in status
        assert ", trials 0/2, measured 0/1\n" in status
        assert f"resume it with: {command}\n" in status
        writer.write("sweep_ended", status="interrupted")


def test_resume_continues_a_paused_sweep_that_runs_or_waits(calsweep, empty_folder, monkeypatch):
    far = Storage("store").sweep("far")
    far.path.mkdir(parents=True)
    far.spec_file.touch()
    words = ("resume", "far", "--storage", "store")
    looked = f"calsweep status far --storage {empty_folder}/store"
    told = f"calsweep: sweep 'far' is not paused; `{looked}` says more\n"
    with far.owned():
        assert calsweep(*words) == (2, "", told)
        far.set_control("pause")
        assert calsweep(*words) == (0, "far continues\n", "")
        assert far.control() == ""
    monkeypatch.setattr("orchestrator.cluster.slurm_queue.queued_job", lambda folder: "7")
    assert calsweep(*words) == (2, "", told)
    far.set_control("pause")
    assert calsweep(*words) == (0, "far continues once its SLURM job runs\n", "")
    assert far.control() == ""


def test_owner_of_a_lock_is_seen_by_who_may_only_read(tmp_path):
    folder = Storage(tmp_path).sweep("one")
    assert not folder.is_owned()
    with folder.owned():
        (folder.path / "run.lock").chmod(0o444)
        assert folder.is_owned()
        seen = list[bool]()
        thread = threading.Thread(target=lambda: seen.append(folder.is_owned()))
        thread.start()
        thread.join()
        assert seen == [True]
    assert not folder.is_owned()


def test_logs_show_odd_bytes_but_no_link_out_of_the_sweep_and_no_pipe(calsweep, empty_folder):
    far = Storage("store").sweep("far")
    far.path.mkdir(parents=True)
    far.spec_file.touch()
    log = far.path / "slurm-7.out"
    log.write_bytes(b"first\nodd \xff\n")
    assert calsweep("logs", "far", "--storage", "store").out == "slurm-7: odd \ufffd\n"
    log.unlink()
    (empty_folder / "secret").write_text("a secret")
    log.symlink_to(empty_folder / "secret")
    for words in (("far",), ("far", "slurm-7")):
        code, out, err = calsweep("logs", *words, "--storage", "store")
        assert (code, out) == (2, "")
        assert err == f"calsweep: leads to a place outside {far.path}: {log}\n"
    log.unlink()
    os.mkfifo(log)
    answer = calsweep("logs", "far", "--storage", "store")
    assert (answer.code, answer.err) == (2, f"calsweep: is not a regular file: {log}\n")
