import json
import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from orchestrator.cli import main
from orchestrator.cli._console import complain
from orchestrator.cluster import slurm_queue
from orchestrator.cluster.slurm import Allocation, array_script, script, show_scripts
from orchestrator.cluster.slurm_queue import Job, own_error, with_job
from orchestrator.storage.status import SweepStatus, sweep_status
from orchestrator.storage.storage import Storage, SweepFolder
from orchestrator.sweep.spec import SweepSpec, load_sweep
from orchestrator.view.server import Book, application
from trainables.common.errors import InputError

SWEEP = """
name: {name}
tasks: [{{dataset: digits, model: convnet, protocol: digits}}]
recipes: [ce]
tracking: {{uri: "http://127.0.0.1:5000"}}
storage: {storage}
"""
OUTPUT = """calsweep: note: rows are shuffled
calsweep: digits-far: no such data
ray: gcs_server has stopped
"""
FAILED = "digits-far: no such data (SLURM: FAILED, NonZeroExitCode)"
GONE = "SLURM no longer lists it, and it left no exit code"


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """Put programs of bash first on PATH."""
    (folder / "bin").mkdir(exist_ok=True)
    for name, body in programs.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin{os.pathsep}/usr/bin{os.pathsep}/bin")


def sweep_file(folder: Path, storage: str, name: str = "night", file: str = "mine.yaml") -> Path:
    path = folder / file
    path.write_text(SWEEP.format(storage=json.dumps(storage), name=json.dumps(name)))
    return path


@pytest.fixture
def night(tmp_path: Path) -> SweepFolder:
    """Return a sweep that was submitted as job 7 and has not begun."""
    folder = Storage(tmp_path / "here").sweep("night")
    folder.write_spec(load_sweep(str(sweep_file(tmp_path, str(tmp_path / "here")))))
    (folder.path / "slurm.json").write_text('{"job": "7"}')
    (folder.path / "slurm-7.out").write_text(OUTPUT)
    return folder


Told = pytest.CaptureFixture[str]


def told_by(capsys: Told, folder: SweepFolder, *words: str) -> list[str]:
    assert main([*words, "--storage", str(folder.path.parents[1])]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("squeue", "state", "reason", "log"),
    [
        ("PENDING 0 Resources", "queued", "Resources", "queued: Resources"),
        ("PENDING 0 PartitionConfig", "queued", "PartitionConfig", "queued: PartitionConfig"),
        ("PENDING 0 (a b)", "queued", "(a b)", "queued: (a b)"),
        ("PENDING 1 BeginTime", "requeued", "BeginTime", "requeued: BeginTime"),
        ("REQUEUE_HOLD 0 None", "requeued", "", "requeued"),
        ("RUNNING 0 None", "running", "", "ray: gcs_server has stopped"),
        ("FAILED 0 NonZeroExitCode", "failed", FAILED, f"failed: {FAILED}"),
        ("CANCELLED 0 Resources", "CANCELLED", "", "CANCELLED"),
    ],
)
def test_state_of_a_job_is_that_of_squeue(
    night: SweepFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Told,
    squeue: str,
    state: str,
    reason: str,
    log: str,
) -> None:
    rows = f"echo '7 calsweep-other COMPLETED 0 None'; echo '7  calsweep-night {squeue}  '"
    install(tmp_path, monkeypatch, squeue=f'echo "$*" > {tmp_path}/asked; {rows}')
    shown = f"{state} ({reason})" if reason and state.endswith("queued") else state
    first, *rest = told_by(capsys, night, "status", "night")
    assert first == f"night: {shown}, trials 0/1, measured 0/1"
    assert (rest[0] == reason) == (state == "failed")
    assert rest[-1] == f"SLURM job 7; its output: {night.path}/slurm-7.out"
    asked = "--noheader --states=all --name=calsweep-night --Format=JobID:20,Name:200,State:30,"
    assert (tmp_path / "asked").read_text() == f"{asked}RestartCnt:10,Reason:200\n"
    (shown_json,) = json.loads("\n".join(told_by(capsys, night, "status", "--json")))
    assert [shown_json[key] for key in ("job", "state", "reason")] == ["7", state, reason]
    listed = "\n".join(told_by(capsys, night, "list", "sweeps"))
    assert shown in listed
    assert (f"night: {reason}" in listed) == (state == "failed")
    assert told_by(capsys, night, "logs", "night") == [f"slurm-7: {log}"]


@pytest.mark.parametrize(
    ("sacct", "left", "job"),
    [
        ("echo '7|calsweep-night|CANCELLED by 1000|0|None'", "7 0\n", Job("7", "CANCELLED")),
        (
            "echo '7|calsweep-night|TIMEOUT|0|None'",
            "",
            Job("7", "failed", "digits-far: no such data (SLURM: TIMEOUT)"),
        ),
        ("exit 0", "7 2\n", Job("7", "failed", "digits-far: no such data (exit code 2)")),
        ("echo disabled >&2; exit 1", "7 130\n", Job("7", "CANCELLED")),
        (None, "7 requeued\n", Job("7", "requeued")),
        (None, "7 0\n", Job("7", "finished")),
        (None, "6 0\n", Job("7", "died", GONE)),
        (
            "echo it broke >&2; exit 1",
            "",
            Job("7", "died", f"{GONE}; SLURM's sacct refuses: it broke"),
        ),
    ],
)
def test_job_that_squeue_no_longer_lists(night, tmp_path, monkeypatch, sacct, left, job):
    monkeypatch.setattr(
        slurm_queue.shutil, "which", lambda name: None if (name, sacct) == ("sacct", None) else name
    )
    install(tmp_path, monkeypatch, squeue="exit 0", sacct=sacct or "exit 3")
    (night.path / "slurm-exit").write_text(left)
    assert slurm_queue.find_jobs([night]) == ({"night": job}, "")


@pytest.mark.parametrize(("left", "state"), [("", "waiting"), ("7 2\n", "failed")])
@pytest.mark.parametrize("hangs", [False, True])
def test_commands_answer_although_squeue_hangs_or_is_missing(
    night: SweepFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Told,
    left: str,
    state: str,
    hangs: bool,
) -> None:
    assert slurm_queue.WATCH_SECONDS == 2  # Of the three that a user waits at most.
    monkeypatch.setattr(slurm_queue, "WATCH_SECONDS", 0.1)
    install(tmp_path, monkeypatch, **({"squeue": "sleep 20; true"} if hangs else {}))
    if not hangs:
        monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    (night.path / "slurm-exit").write_text(left)
    fault = "has not answered within 0.1 s" if hangs else "is not on this machine"
    for words in (["status", "night"], ["list", "sweeps"], ["logs", "night"]):
        began = time.monotonic()
        assert main([*words, "--storage", str(tmp_path / "here")]) == 0
        assert time.monotonic() - began < 3
        out, err = capsys.readouterr()
        assert err.startswith(f"calsweep: note: SLURM's squeue {fault}")
        assert err.endswith("; states are from the storage\n")
        assert err.count("\n") == 1
        assert "logs" in words or state in out
    assert hangs or main(["cancel", "night", "--storage", str(tmp_path / "here")]) == 2


@pytest.mark.parametrize(
    ("own", "began", "job", "state"),
    [
        ("running", 50, "running", "running"),
        ("paused", 50, "running", "paused"),
        ("interrupted", 50, "requeued", "requeued"),
        ("died", 50, "queued", "queued"),
        ("died", 50, "CANCELLED", "CANCELLED"),
        ("interrupted", 150, "failed", "failed"),
        ("finished", 150, "failed", "finished"),
        ("finished", 50, "failed", "failed"),
        ("interrupted", 250, "failed", "interrupted"),
        ("failed", 150, "finished", "failed"),
    ],
)
def test_later_of_sweep_and_job_is_shown(night, own, began, job, state):
    for name, when in (("slurm.json", 100), ("slurm-exit", 200)):
        (night.path / name).write_text('{"job": "7"}' if when == 100 else "7 1\n")
        os.utime(night.path / name, (when, when))
    status: SweepStatus = replace(sweep_status(night), state=own, began=began)
    found = with_job(status, night, Job("7", job, "because"))
    assert (found.state, found.job) == (state, "7")
    assert found.reason == ("because" if state == job != own else "")
    assert with_job(status, night, None) == status


@pytest.mark.parametrize(
    ("output", "error"),
    [
        ("calsweep: one\nRuntimeError: two\ncalsweep: three\nraylet: four\n", "three"),
        (
            "calsweep: note: one\nray.exceptions.RayError: two\nthree\n",
            "ray.exceptions.RayError: two",
        ),
        ("slurmstepd: error: out of memory\nend\n", "slurmstepd: error: out of memory"),
        ("only progress\n", ""),
    ],
)
def test_error_of_the_sweep_is_found_in_its_output(tmp_path: Path, output: str, error: str) -> None:
    (tmp_path / "slurm-7.out").write_text(output)
    assert own_error(tmp_path / "slurm-7.out") == error
    assert own_error(tmp_path / "slurm-8.out") == ""


def test_cancelled_job_is_known_after_slurm_forgot_it(night, tmp_path, monkeypatch, capsys):
    install(
        tmp_path,
        monkeypatch,
        squeue=f"[ -e {tmp_path}/gone ] || echo '7 calsweep-night PENDING 0 Resources'",
        scancel=f"echo $* > {tmp_path}/gone",
        sacct="exit 0",
    )
    remedy = f"calsweep run --resume night --storage {night.path.parents[1]}"
    told = f"night left SLURM's queue; resume it with {remedy}"
    assert told_by(capsys, night, "cancel", "night")[0] == told
    assert (tmp_path / "gone").read_text() == "7\n"
    assert (
        told_by(capsys, night, "status", "night")[0] == "night: CANCELLED, trials 0/1, measured 0/1"
    )


def test_damaged_number_of_a_job_reaches_no_command(night, tmp_path, capsys):
    (night.path / "slurm.json").write_text('{"job": "7 -u root"}')
    assert main(["status", "night", "--storage", str(tmp_path / "here")]) == 2
    assert capsys.readouterr().err == (
        f'calsweep: {night.path}/slurm.json: expected {{"job": "NUMBER"}}, '
        'got \'{"job": "7 -u root"}\'; remove it\n'
    )


def test_dry_run_prints_the_scripts_and_writes_nothing(tmp_path, monkeypatch, capsys):
    install(tmp_path, monkeypatch, sbatch=f"touch {tmp_path}/submitted; echo 7")
    path, storage = sweep_file(tmp_path, str(tmp_path / "here")), tmp_path / "here"
    options = ["--slurm", "--nodes", "2", "--slurm-array", "3", "--cpus-per-task", "8"]
    named = ["--partition", "gpu,big", "--account", "team_1.x-y"]
    assert main(["submit", *options, *named, "--dry-run", str(path)]) == 0
    text = capsys.readouterr().out
    wanted = Allocation(2, 0, "8:00:00", 3, 8, "gpu,big", "team_1.x-y")
    far = Storage(storage).sweep("night")
    assert text == script(far, wanted) + array_script(far, wanted)
    for line in ("partition=gpu,big", "account=team_1.x-y", "cpus-per-task=8"):
        assert text.count(f"#SBATCH --{line}\n") == 2
    assert text.count("cpus=8\n") == 2
    assert "srun --relative=1 --nodes=1 --ntasks=1 --cpus-per-task=8 " in text
    assert not storage.exists()
    assert not (tmp_path / "submitted").exists()


def test_options_take_precedence_over_the_variables_of_sbatch(tmp_path, monkeypatch, capsys):
    asked = f'echo "$SBATCH_PARTITION $SBATCH_ACCOUNT" > {tmp_path}/asked; echo "7;loopback"'
    install(tmp_path, monkeypatch, sbatch=asked, squeue="exit 0")
    monkeypatch.setenv("SBATCH_PARTITION", "old")
    monkeypatch.setenv("SBATCH_ACCOUNT", "site")
    storage = str(tmp_path / "my place")
    path = sweep_file(tmp_path, storage)
    assert main(["submit", "--slurm", "--partition", "gpu", str(path)]) == 0
    assert (tmp_path / "asked").read_text() == " site\n"
    said = f"SLURM job 7; calsweep status night --storage '{storage}'\n"
    assert capsys.readouterr().out == said


NEEDS_SLURM = "has no effect without --slurm: add --slurm or leave it out"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--dry-run"], f"--dry-run {NEEDS_SLURM}"),
        (["--partition", "gpu"], f"--partition {NEEDS_SLURM}"),
        (["--nodes", "2"], f"--nodes {NEEDS_SLURM}"),
        (["--slurm", "--time", "٣"], "--time: expected a limit such as 8:00:00 or 2-0, got '٣'"),
    ],
)
def test_wrong_options_are_refused(tmp_path, capsys, options, error):
    path = sweep_file(tmp_path, str(tmp_path / "here"))
    assert main(["submit", *options, str(path)]) == 2
    assert capsys.readouterr().err == f"calsweep: {error}\n"


def test_trial_of_more_cpus_than_a_task_is_refused(tmp_path: Path, capsys: Told) -> None:
    path = sweep_file(tmp_path, str(tmp_path / "here"))
    path.write_text(f"{path.read_text()}resources: {{train: {{cpu: 4}}}}\n")
    assert main(["submit", "--slurm", "--dry-run", "--cpus-per-task", "2", str(path)]) == 2
    assert capsys.readouterr().err == (
        "calsweep: --cpus-per-task 2: a trial needs 4 CPUs on one node (resources.train); use "
        "larger nodes or ask for less\n"
    )


LASTING = "trap 'exit 130' TERM; while :; do sleep 0.01; done"


@pytest.mark.parametrize(
    ("driver", "sent", "left", "told"),
    [
        ("exit 0", "", "7 0\n", ""),
        ("exit 2", "", "7 2\n", ""),
        ("exit 130", "", "7 130\n", "scancel 7\n"),
        (LASTING, "USR1", "7 requeued\n", "requeue 7\n"),
        (LASTING, "TERM", "7 130\n", ""),
    ],
)
def test_job_writes_how_it_ended(tmp_path, driver, sent, left, told):
    far = Storage(tmp_path).sweep("far")
    far.path.mkdir(parents=True)
    (far.path / "slurm-exit").write_text("7 requeued\n")
    text = script(far, Allocation(1, 0, "10"))
    send = f"(sleep 0.1; builtin kill -{sent} $$) &" if sent else ""
    stubs = f"""scontrol() {{ echo "$*"; }}
scancel() {{ echo "scancel $*"; }}
sleep 5 & head=$!
({driver}) & driver=$!
{send}
"""
    beginning, end = text.partition("cpus=")[0], text[text.index("driver=$!\n") :]
    done = subprocess.run(
        ["bash", "-c", beginning + stubs + end.partition("\n")[2]],
        env={**os.environ, "SLURM_JOB_ID": "7"},
        capture_output=True,
        text=True,
    )
    assert ((far.path / "slurm-exit").read_text(), done.stdout) == (left, told), done.stderr


ODD = [
    *("a\nb", "a\rb", "a\r\nb", "a\x1b[31mb", "a\tb", "a\x07b", "a\x7fb", "a\x9bb", "a\x0bb"),
    *("a\u2028b", "a\u2029b", "a\x85b", "`id`", "$(id)", "${HOME}", "$HOME", "$((1))", "a'b"),
    *('a"b', "'", "''", '"', "a'\"'b", "a;b", "a && b", "a || b", "a|b", "a>b", "a & b", "-x"),
    *("--wrap=id", "%j", "%%j", "100%", "#SBATCH --x", "a #b", "\n#SBATCH --x", "a\\b", "a\\"),
    *("*", "{a,b}", "!x", "~x", " x", "a=b", "é ü", "x" * 150, "x" * 300, "x" * 5000),
]
MARK = "Q7"  # At the end of each odd string, by which it is found in a script.


def odd_words(text: str) -> Iterator[str]:
    """Yield the words of a script, as a shell reads them, in which an odd string is."""
    for line in text.removesuffix("\n").split("\n"):
        if MARK in line:
            line = line.removeprefix("#SBATCH ").removesuffix(" \\")
            words = shlex.shlex(line, posix=True, punctuation_chars=True)
            words.whitespace_split = True
            yield from (word for word in words if MARK in word)


def scripts_of(place: Path, spec: SweepSpec, field: str, odd: str) -> tuple[str, Path]:
    """Return the scripts of a sweep with an odd string, and the sweep's folder."""
    path = place / "mine.yaml"
    if field == "name":
        spec = load_sweep(sweep_file(place, str(place), odd))
    if field == "file":
        path = place / odd
        if len(odd) < 255:
            sweep_file(place, str(place), file=odd)
        spec = load_sweep(path)
    if field == "storage":
        spec = spec.model_copy(update={"storage": str(place / odd)})
    options = {field: odd} if field in ("partition", "account") else {}
    text = show_scripts(path, spec, Allocation(1, 0, "10", 1, **options))
    return text, Path(spec.storage) / "sweeps" / spec.name


def words_of(folder: Path, field: str, odd: str) -> set[str]:
    """Return the words of a script that may hold an odd string, as a shell reads them."""
    files = ("slurm-exit", "ray-address", "slurm.json", "submitted-sweep.yaml")
    outputs = ("slurm-%j.out", "slurm-%A_%a.out")
    escaped = str(folder).replace("%", "%%")
    return {
        *(f"{folder}/{each}" for each in files),
        *(f"--output={escaped}/{each}" for each in outputs),
        f"RAY_AUTH_TOKEN_PATH={folder}/ray-token",
        f"--{field}={odd}",
    }


@pytest.mark.parametrize("field", ["storage", "name", "file", "partition", "account"])
def test_odd_strings_are_refused_or_quoted(tmp_path: Path, capsys: Told, field: str) -> None:
    accepted = []
    spec = load_sweep(sweep_file(tmp_path, str(tmp_path)))
    for string in ODD:
        odd = f"{string}{MARK}"
        try:
            text, folder = scripts_of(tmp_path, spec, field, odd)
        except InputError as error:
            complain(str(error))
            assert len(capsys.readouterr().err.splitlines()) == 1, odd
            continue
        accepted.append(string)
        if field == "storage":
            subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        assert {*odd_words(text)} <= words_of(folder, field, odd), odd
    assert [each for each in accepted if not each.isprintable() and field != "file"] == []
    assert len(accepted) >= {"storage": 25, "file": 25, "name": 0}.get(field, 2), accepted


@pytest.mark.parametrize(
    ("squeue", "state", "reason"),
    [
        ("echo '7 calsweep-night PENDING 0 Resources'", "queued", "Resources"),
        ("echo '7 calsweep-night TIMEOUT 0 TimeLimit'", "failed", "SLURM: TIMEOUT, TimeLimit"),
        ("echo '7 calsweep-night CANCELLED 0 None'", "CANCELLED", ""),
        ("echo down >&2; exit 1", "waiting", ""),
    ],
)
def test_pages_show_the_state_of_a_job(night, tmp_path, monkeypatch, squeue, state, reason):
    (night.path / "slurm-7.out").unlink()
    install(tmp_path, monkeypatch, squeue=squeue)
    book = Book(night.storage)
    book.read_on()
    client = TestClient(application(book, "token"), base_url="http://127.0.0.1:8720")
    pages = [client.get(path).text for path in ("/?token=token", "/sweeps/night")]
    for page in pages:
        assert f'class="state {state}">{state}</span>' in page
        assert reason in page
    assert ("squeue refuses: down" in pages[0]) == (state == "waiting")
