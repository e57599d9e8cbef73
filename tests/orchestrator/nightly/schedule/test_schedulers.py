"""What schedulers are told: read back by themselves where they are there, else by their rules."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from orchestrator.cli import main
from orchestrator.nightly import (
    Installation,
    KubernetesOptions,
    Schedule,
    installation,
    load_nightly,
)
from orchestrator.nightly.schedule.entry import (
    crontab_block,
    kubernetes_manifests,
    kubernetes_name,
    make_entry,
    systemd_units,
)
from orchestrator.nightly.schedule.install import INSTALLED, without_entry
from orchestrator.nightly.schedule.ray_job import submit_night
from tests.orchestrator.whole import assert_same
from trainables.common.errors import InputError

SCHEMAS = Path(__file__).with_name("schemas.yaml")
ODD = 'it\'s 100% "odd" $(touch oops) & ; `x` #é'
BERLIN = "Europe/Berlin"


@pytest.fixture
def odd_entry(make_benchmark, tmp_path, monkeypatch):
    """Return an entry in a folder whose name means something to every shell."""
    folder = tmp_path / ODD
    folder.mkdir()
    path = folder / "nightly.yaml"
    path.write_text(make_benchmark().path.read_text())
    monkeypatch.chdir(folder)
    return make_entry(load_nightly(path), "02:30", None)


def test_the_entry_is_this_python_in_this_folder(odd_entry, make_benchmark, monkeypatch):
    run = (sys.executable, "-P", "-m", "orchestrator", "nightly", "run")
    file = str(Path.cwd() / "nightly.yaml")
    assert odd_entry.command == (*run, file, "--at", "02:30", "--quiet")
    assert odd_entry.directory == Path.cwd()
    assert odd_entry.directory.name == ODD
    benchmark = make_benchmark()
    assert odd_entry.log == benchmark.folder / "schedule.log"
    entry = make_entry(benchmark, "23:30", BERLIN, ["--address", "auto"])
    options = ("--at", "23:30", "--time-zone", BERLIN, "--address", "auto", "--quiet")
    assert entry.command == (*run, str(benchmark.path), *options)
    assert (entry.hours, entry.minute, entry.time_zone) == ((23,), 30, BERLIN)
    monkeypatch.setattr(Schedule, "in_a_gap", lambda *_: True)
    assert entry.hours == (23, 0)


def test_a_control_character_is_refused(make_benchmark, tmp_path, monkeypatch):
    benchmark, storage = make_benchmark(), {"storage": f"{tmp_path}/a\x7fb"}
    with pytest.raises(InputError, match="control character"):
        make_entry(benchmark, "02:30", None, ["--address", "a\nb"])
    with pytest.raises(InputError, match=r"a\\x7fb/nightly/told/schedule\.log"):
        make_entry(make_benchmark(sweep=storage), "02:30", None)
    (tmp_path / "c\td").mkdir()
    monkeypatch.chdir(tmp_path / "c\td")
    with pytest.raises(InputError, match=r"c\\td' cannot be scheduled"):
        make_entry(benchmark, "02:30", None)


def as_cron_reads(line: str) -> str:
    """Return the command of an entry: cron ends it at a bare % and takes \\% for %."""
    command = line.split(" ", 5)[5]
    assert re.search(r"(?<!\\)%", command) is None
    return command.replace("\\%", "%")


def test_cron_runs_exactly_the_command(odd_entry, tmp_path):
    log = tmp_path / ODD / "log"
    code = "import json, os, sys; print(json.dumps([os.getcwd(), sys.argv[1:]]))"
    entry = replace(odd_entry, command=(sys.executable, "-c", code, ODD, "-x"), log=log)
    begin, line, end, rest = crontab_block(entry).split("\n")
    assert (begin[0], end[0], rest) == ("#", "#", "")
    assert line.startswith("30 2 * * * ")
    subprocess.run(["/bin/sh", "-c", as_cron_reads(line)], check=True, cwd=tmp_path)
    assert json.loads(log.read_text()) == [str(entry.directory), [ODD, "-x"]]
    assert not list(tmp_path.rglob("oops"))


def test_a_crontab_keeps_its_other_lines_and_the_entry_once(odd_entry):
    other = replace(odd_entry, name=f"{odd_entry.name}-2")
    table = "MAILTO=me\n1 1 * * * true"
    once = f"{table}\n{crontab_block(odd_entry)}"
    both = once + crontab_block(other)
    assert without_entry(both, other.name) == once
    assert without_entry(f"{both}2 2 * * * false\n", odd_entry.name) == (
        f"{table}\n{crontab_block(other)}2 2 * * * false\n"
    )
    assert without_entry(once, odd_entry.name) == table + "\n"
    own = "3 3 * * * calsweep nightly run mine.yaml\n"
    assert without_entry(once + own, odd_entry.name) == f"{table}\n{own}"


@pytest.mark.parametrize("gone", ["begin", "command", "end", "begin and end", "command and end"])
def test_a_crontab_keeps_its_other_lines_where_a_line_of_the_entry_is_gone(odd_entry, gone):
    before, after = "1 1 * * * true\n", "2 2 * * * false\n\n# mine\n3 3 * * * true\n"
    begin, command, end = crontab_block(odd_entry).splitlines(keepends=True)
    own = {"begin": begin, "command": command, "end": end}
    left = "".join(line for word, line in own.items() if word not in gone)
    # Without the first mark nobody can say whose the command is.
    kept = command if "begin" in gone else ""
    assert without_entry(before + left + after, odd_entry.name) == before + kept + after
    other = crontab_block(replace(odd_entry, name=f"{odd_entry.name}-2"))
    assert without_entry(before + left + other, odd_entry.name) == before + kept + other


def test_cron_knows_no_backslashes(odd_entry):
    reason = "cannot be written as a crontab entry: it holds a backslash$"
    with pytest.raises(InputError, match=reason):
        crontab_block(replace(odd_entry, directory=Path("/a\\b")))


def analyse(tmp_path: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Return what systemd says of units."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    folder = tmp_path / "units"
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return subprocess.run(
        ["systemd-analyze", "verify", "--user", *map(str, folder.iterdir())],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )


@pytest.mark.parametrize("zone", [None, BERLIN])
def test_systemd_verifies_the_units(odd_entry, tmp_path, zone):
    found = analyse(tmp_path, systemd_units(replace(odd_entry, time_zone=zone)))
    assert (found.returncode, found.stderr) == (0, "")


def test_systemd_is_told_a_folder_and_a_time_as_it_reads_them(odd_entry):
    service, timer = systemd_units(replace(odd_entry, directory=Path("/a %"), at="04:05")).values()
    assert "\nWorkingDirectory=/a %%\n" in service
    assert "\nOnCalendar=*-*-* 04:05:00\n" in timer


def test_systemd_unquotes_the_command_to_what_it_was(odd_entry):
    text = systemd_units(replace(odd_entry, command=("/bin/true", ODD, "a\\b")))
    service = text["calsweep-nightly-told.service"]
    line = next(line for line in service.splitlines() if line.startswith("ExecStart="))
    # The rules of systemd.service(5): quoted words, then %% and $$ for one sign each.
    words = [
        word.replace("%%", "%").replace("$$", "$")
        for word in shlex.split(line.removeprefix("ExecStart="))
    ]
    assert words == ["/bin/true", ODD, "a\\b"]


@pytest.mark.usefixtures("machine_in_new_york")
def test_cron_sees_to_the_hour_that_is_left_out_by_itself(odd_entry):
    assert odd_entry.hours == (2, 3)
    assert crontab_block(odd_entry).splitlines()[1].startswith("30 2 * * * ")


@cache
def schemas() -> dict[str, Any]:
    return yaml.safe_load(SCHEMAS.read_text(encoding="utf-8"))


def valid(document: dict[str, Any]) -> None:
    schema = {**schemas(), "$ref": f"#/$defs/{document['kind']}"}
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(document)


FULL: dict[str, Any] = {
    "sweep": {"name": "Big_bench.2"},
    "keep": 7,
    "history": 30,
    "metrics": ["nll", "cifar10-c/ece"],
    "limits": {
        "window": 9,
        "hard": {"ece": {"max": 0.1}},
        "thresholds": {"acc": {"absolute": 0.01}},
    },
    "report": {"mail": ["mail", "me"], "webhook": "http://h/hook", "when": "always"},
}
"""A nightly file that leaves nothing at its default."""


@pytest.fixture
def kubernetes(make_benchmark):
    """Return the manifests as a reader of YAML sees them."""
    benchmark = make_benchmark(**FULL)
    options = KubernetesOptions("registry.example.org/calsweep:1", "data", "research")
    text = kubernetes_manifests(benchmark, make_entry(benchmark, "02:30", BERLIN), options)
    return list(yaml.safe_load_all(text))


def test_the_kubernetes_manifests_fit_their_schemas(kubernetes):
    by_kind = {document["kind"]: document for document in kubernetes}
    valid(by_kind["CronJob"])
    valid(yaml.safe_load(by_kind["ConfigMap"]["data"]["rayjob.yaml"]))


def with_files_laid_open(manifests: str) -> str:
    """Return manifests whose RayJob is no text within; the nightly file has a test of its own."""
    documents = list(yaml.safe_load_all(manifests))
    files = next(document for document in documents if document["kind"] == "ConfigMap")["data"]
    del files["nightly.yaml"]
    files["rayjob.yaml"] = yaml.safe_load(files["rayjob.yaml"])
    return yaml.safe_dump_all(documents, sort_keys=False)


CLUSTER = ["--image", "registry/calsweep:1", "--claim", "data"]


@pytest.fixture
def printed(make_benchmark, tmp_path, monkeypatch, capsys):
    """Return a function that returns what a scheduler would be told."""
    monkeypatch.chdir(tmp_path)
    install = ["nightly", "install", str(make_benchmark(**FULL).path), "--at", "02:30", "--print"]

    def text(scheduler: str, *options: str) -> str:
        assert main([*install, "--with", scheduler, *options]) == 0
        told = capsys.readouterr().out
        return with_files_laid_open(told) if scheduler == "kubernetes" else told

    return text


@pytest.mark.parametrize(
    ("scheduler", "options"),
    [
        ("cron", ["--address", "auto"]),
        ("systemd", ["--time-zone", BERLIN]),
        ("kubernetes", CLUSTER),
    ],
)
def test_what_a_scheduler_is_told_is_what_it_was_told_before(
    printed, tmp_path, scheduler, options, file_regression
):
    text = printed(scheduler, *options)
    for own, name in ((tmp_path, "FOLDER"), (sys.executable, "PYTHON"), (version("ray"), "RAY")):
        text = text.replace(str(own), name)
    own = {"basename": scheduler, "encoding": "utf-8", "check_fn": assert_same}
    file_regression.check(text, extension=".txt", **own)


def test_kubernetes_is_told_what_is_asked_for(printed, tmp_path):
    usual = printed("kubernetes", *CLUSTER)
    options = ["--time-zone", BERLIN, "--namespace", "research", "--kubectl-image", "k:2"]
    options += ["--out", str(tmp_path / "out")]
    changes = {
        "namespace: default": "namespace: research",
        "30 2 * * *": f"30 2,3 * * *\n  timeZone: {BERLIN}",
        "--at 02:30": f"--at 02:30 --time-zone {BERLIN}",
        "image: kubectl:1.34": "image: k:2",
    }
    for before, after in changes.items():
        assert before in usual
        usual = usual.replace(before, after)
    assert printed("kubernetes", *CLUSTER, *options) == usual
    assert not (tmp_path / "out").exists()


def test_the_file_in_kubernetes_is_the_same_benchmark(kubernetes, make_benchmark, tmp_path):
    settings = next(d for d in kubernetes if d["kind"] == "ConfigMap")["data"]
    path = tmp_path / "there.yaml"
    path.write_text(settings["nightly.yaml"])
    there = load_nightly(path)
    here = make_benchmark(**FULL)
    assert there.fingerprint == here.fingerprint
    places = {"storage": "/calsweep/storage", "data_root": "/calsweep/data"}
    assert there.sweep == here.sweep.model_copy(update=places)
    unchanged = here.model.model_copy(update={"sweep": there.model.sweep})
    assert there.model == unchanged


def test_a_login_does_not_get_into_a_manifest(make_benchmark, tmp_path, capsys):
    uri = "http://ada:planted-secret@host"
    benchmark = make_benchmark(sweep={"name": "b", "tracking": {"uri": uri}})
    out = tmp_path / "kube.yaml"
    options = ["--with", "kubernetes", "--image", "i:1", "--claim", "c", "--out", str(out)]
    assert main(["nightly", "install", str(benchmark.path), "--at", "02:00", *options]) == 2
    errors = capsys.readouterr().err
    assert errors == (
        "calsweep: tracking.uri 'http://host': its login or query would lie in a manifest in plain "
        "text; leave it out, and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
        "PGPASSWORD, in the image\n"
    )
    assert not out.exists()


TEXTS = [ODD, "a: [b] # {c}", "\U0001f600 \u00e9 \x7f", "two\nlines", "'", "yes", "1e3", ""]


@pytest.mark.parametrize("text", TEXTS)
def test_what_manifests_hold_stays_text(make_benchmark, text):
    benchmark = make_benchmark()
    options = KubernetesOptions(
        *(f"{text}{place}" for place in ("image", "claim", "space", "tool"))
    )
    manifests = kubernetes_manifests(benchmark, make_entry(benchmark, "02:30", None), options)
    documents = {document["kind"]: document for document in yaml.safe_load_all(manifests)}
    pod = documents["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == f"{text}tool"
    assert documents["Role"]["metadata"]["namespace"] == f"{text}space"
    job = yaml.safe_load(documents["ConfigMap"]["data"]["rayjob.yaml"])
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    assert head["containers"][0]["image"] == f"{text}image"
    assert head["volumes"][0]["persistentVolumeClaim"] == {"claimName": f"{text}claim"}


def test_a_name_that_kubernetes_cannot_take_is_refused(make_benchmark):
    assert kubernetes_name("_Big__bench.2-") == "calsweep-big-bench-2"
    assert kubernetes_name("n" * 40) == f"calsweep-{'n' * 40}"
    benchmark = make_benchmark(sweep={"name": "n" * 41})
    entry = make_entry(benchmark, "02:30", None)
    with pytest.raises(InputError, match="cannot name things in Kubernetes"):
        kubernetes_manifests(benchmark, entry, KubernetesOptions("i", "c"))
    with pytest.raises(InputError) as refused:
        kubernetes_name("_._")
    assert str(refused.value) == (
        "sweep.name: '_._' cannot name things in Kubernetes; allowed are 1 to 40 letters, digits "
        "and '-'"
    )


@pytest.fixture
def no_programs(monkeypatch, tmp_path):
    """Let the machine have none of the schedulers' programs; return the folder of programs."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return programs


def program(folder: Path, name: str, body: str) -> None:
    """Write a program that stands in for one of the system's."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


FAKE_CRONTAB = """\
case "$1" in
-l) if [ -f "$TABLE" ]; then while IFS= read -r l; do printf '%s\\n' "$l"; done < "$TABLE";
    printf '%s' "$l"; else echo "no crontab for me" >&2; exit 1; fi ;;
-) : > "$TABLE"; while IFS= read -r l; do printf '%s\\n' "$l" >> "$TABLE"; done ;;
esac"""


def test_cron_is_installed_replaced_and_removed(
    make_benchmark, no_programs, tmp_path, monkeypatch, capsys
):
    table = tmp_path / "table"
    table.write_text("1 1 * * * true")  # Without an end of its line.
    monkeypatch.setenv("TABLE", str(table))
    program(no_programs, "crontab", FAKE_CRONTAB)
    benchmark = make_benchmark()
    for at in ("02:00", "03:15"):
        assert main(["nightly", "install", str(benchmark.path), "--at", at]) == 0
    text = table.read_text()
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"crontab entry: {text.splitlines()[2]}",
        f"its output goes to {benchmark.folder / 'schedule.log'}",
    ]
    assert text.count("calsweep nightly told: begin") == 1
    assert "\n15 3 * * * " in text
    known = installation(benchmark)
    assert (known.scheduler, known.at) == ("cron", "03:15")
    assert main(["nightly", "status", str(benchmark.path)]) == 0
    assert "by cron, next " in capsys.readouterr().out
    assert main(["nightly", "uninstall", str(benchmark.path)]) == 0
    assert capsys.readouterr().out == "removed the crontab entry\n"
    assert table.read_text() == "1 1 * * * true\n"
    assert installation(benchmark) is None
    assert main(["nightly", "uninstall", str(benchmark.path)]) == 0
    assert capsys.readouterr().out == "nothing was scheduled for told\n"


def test_systemd_is_installed_and_removed(make_benchmark, no_programs, tmp_path, capsys):
    calls = tmp_path / "calls"
    program(no_programs, "systemctl", f'echo "$@" >> "{calls}"')
    benchmark = make_benchmark()
    folder = tmp_path / "config/systemd/user"
    folder.mkdir(parents=True)
    other = folder / "calsweep-nightly-told.2.timer"
    other.touch()
    zone = ["--time-zone", BERLIN]
    assert main(["nightly", "install", str(benchmark.path), "--at", "02:00", *zone]) == 0
    entry = make_entry(benchmark, "02:00", BERLIN)
    units = {folder / name: text for name, text in systemd_units(entry).items()}
    assert {path: path.read_text() for path in folder.iterdir()} == {**units, other: ""}
    timer = "calsweep-nightly-told.timer"
    assert capsys.readouterr().out.splitlines() == [
        *(f"wrote {path}" for path in units),
        f"started {timer}; for nights without you logged in: loginctl enable-linger",
    ]
    known = Installation("systemd", "02:00", BERLIN)
    assert installation(benchmark) == known
    there, reload = "--user show-environment", "--user daemon-reload"
    started = [reload, f"--user enable --now {timer}", f"--user restart {timer}"]
    assert [call for call in calls.read_text().splitlines() if call != there] == started
    calls.unlink()
    assert main(["nightly", "uninstall", str(benchmark.path)]) == 0
    assert list(folder.iterdir()) == [other]
    assert capsys.readouterr().out == "removed the systemd timer\n"
    stopped = [there, f"--user disable --now {timer}", reload]
    assert calls.read_text().splitlines() == stopped
    assert installation(benchmark) is None


def test_another_scheduler_takes_the_place_of_the_one_before(
    make_benchmark, no_programs, tmp_path, monkeypatch, capsys
):
    table, calls = tmp_path / "table", tmp_path / "calls"
    monkeypatch.setenv("TABLE", str(table))
    program(no_programs, "crontab", FAKE_CRONTAB)
    program(no_programs, "systemctl", "exit 0")
    program(no_programs, "kubectl", f'echo "$1" >> "{calls}"')
    benchmark = make_benchmark()
    install = ["nightly", "install", str(benchmark.path), "--at", "02:00", "--with"]
    cluster = ["--image", "i", "--claim", "c"]
    units = tmp_path / "config/systemd/user"
    for scheduler in ("cron", "systemd", "kubernetes", "cron"):
        assert main([*install, scheduler, *(cluster if scheduler == "kubernetes" else [])]) == 0
        assert bool(table.read_text()) == (scheduler == "cron")
        assert len(list(units.glob("*"))) == (2 if scheduler == "systemd" else 0)
    assert calls.read_text().split() == ["apply", "delete"]
    # Where several are there all go, and each is named.
    (units / "calsweep-nightly-told.timer").touch()
    known = Installation("kubernetes", "02:00", None, "default")
    (benchmark.folder / INSTALLED).write_text(json.dumps(vars(known)))
    program(no_programs, "kubectl", "echo role deleted")
    capsys.readouterr()
    assert main(["nightly", "uninstall", str(benchmark.path)]) == 0
    removed = ["removed the systemd timer", "removed the crontab entry", "role deleted"]
    assert capsys.readouterr().out.splitlines() == removed


@pytest.mark.parametrize("configured", [None, ""])
def test_units_are_removed_where_systemd_is_away_and_its_refusal_is_told(
    make_benchmark, no_programs, tmp_path, configured, monkeypatch, capsys
):
    monkeypatch.delenv("XDG_CONFIG_HOME")
    if configured is not None:
        monkeypatch.setenv("XDG_CONFIG_HOME", configured)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "home/.config/systemd/user"
    folder.mkdir(parents=True)
    (folder / "calsweep-nightly-told.timer").touch()
    benchmark = make_benchmark()
    assert main(["nightly", "uninstall", str(benchmark.path)]) == 0
    assert list(folder.iterdir()) == []
    refuse = 'if [ "$2" = enable ]; then echo "not today" >&2; exit 1; fi'
    program(no_programs, "systemctl", refuse)
    assert main(["nightly", "install", str(benchmark.path), "--at", "02:00"]) == 2
    assert capsys.readouterr().err == "calsweep: systemctl enable failed: not today\n"
    assert installation(benchmark) is None


@pytest.mark.parametrize("starter", ["cron", "systemd"])
def test_ray_has_this_machine_submit_the_night(
    make_benchmark, no_programs, tmp_path, monkeypatch, starter
):
    monkeypatch.setenv("TABLE", str(tmp_path / "table"))
    program(no_programs, "crontab", FAKE_CRONTAB)
    program(no_programs, "systemctl", f"exit {0 if starter == 'systemd' else 1}")
    benchmark = make_benchmark()
    server = ["--job-server", "http://127.0.0.1:8265"]
    install = ["nightly", "install", str(benchmark.path), "--at", "02:00", "--with", "ray"]
    assert main([*install, *server]) == 0
    entry = make_entry(benchmark, "02:00", None, server)
    service = tmp_path / "config/systemd/user/calsweep-nightly-told.service"
    if starter == "cron":
        assert (tmp_path / "table").read_text() == crontab_block(entry)
    else:
        assert service.read_text() == systemd_units(entry)[service.name]
    assert service.exists() == (starter == "systemd")
    assert installation(benchmark) == Installation("ray", "02:00")


@pytest.mark.parametrize("systemd", [False, True])
def test_a_preview_is_for_the_scheduler_that_is_there_and_writes_nothing(
    make_benchmark, no_programs, systemd, capsys
):
    if systemd:
        program(no_programs, "systemctl", "exit 0")
    benchmark = make_benchmark()
    entry = make_entry(benchmark, "02:00", None)
    units = "\n".join(f"# {name}\n{text}" for name, text in systemd_units(entry).items())
    assert main(["nightly", "install", str(benchmark.path), "--at", "02:00", "--print"]) == 0
    assert capsys.readouterr().out == (units if systemd else crontab_block(entry))
    assert installation(benchmark) is None
    assert not benchmark.folder.exists()


def test_a_crontab_that_cannot_be_read_or_written_is_left(
    make_benchmark, no_programs, monkeypatch, tmp_path, capsys
):
    table = tmp_path / "table"
    table.write_text("1 1 * * * true\n")
    monkeypatch.setenv("TABLE", str(table))
    install = ["nightly", "install", str(make_benchmark().path), "--at", "02:00", "--with", "cron"]
    for option, expected in (("-l", "crontab -l failed"), ("-", "cron refuses the entry")):
        refuse = f'if [ "$1" = "{option}" ]; then echo broken >&2; exit 1; fi\n'
        program(no_programs, "crontab", refuse + FAKE_CRONTAB)
        assert main(install) == 2
        assert capsys.readouterr() == ("", f"calsweep: {expected}: broken\n")
        assert table.read_text() == "1 1 * * * true\n"
    program(no_programs, "crontab", f'if [ "$1" = - ]; then exit 1; fi\n{FAKE_CRONTAB}')
    assert main(install) == 2
    assert capsys.readouterr().err == "calsweep: cron refuses the entry: no reason given\n"
    (no_programs / "crontab").write_text("#!/no/such/shell\n")
    assert main(install) == 2
    away = "calsweep: crontab cannot be run here: "
    assert capsys.readouterr().err.startswith(f"{away}[Errno 2] No such file or directory: ")

    def silent(command: tuple[str, ...], timeout: float, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", silent)
    assert main(install) == 2
    late = "Command '('crontab', '-l')' timed out after 60 seconds"
    assert capsys.readouterr().err == f"{away}{late}\n"


def test_kubernetes_is_applied_where_kubectl_is_and_else_the_command_is_said(
    make_benchmark, no_programs, tmp_path, capsys
):
    benchmark = make_benchmark(sweep={"name": "Told.2"})
    out = tmp_path / "my kube.yaml"
    place = "re; search"  # What is said is for a shell.
    options = ["--with", "kubernetes", "--image", "i:1", "--claim", "c", "--namespace", place]
    command = ["nightly", "install", str(benchmark.path), "--at", "02:00", *options]
    uninstall = ["nightly", "uninstall", str(benchmark.path)]
    assert main([*command, "--out", str(out)]) == 0
    missing = "kubectl is missing here;"
    said = f"wrote {out}\n{missing} apply it with: kubectl apply --filename '{out}'\n"
    assert capsys.readouterr().out == said
    entry, cluster = make_entry(benchmark, "02:00", None), KubernetesOptions("i:1", "c", place)
    assert out.read_text() == kubernetes_manifests(benchmark, entry, cluster)
    assert len(list(yaml.safe_load_all(out.read_text()))) == 5
    assert installation(benchmark) == Installation("kubernetes", "02:00", None, place)
    delete = "delete cronjob,configmap,rolebinding,role,serviceaccount calsweep-told-2"
    delete += f" --namespace '{place}' --ignore-not-found"
    assert main(uninstall) == 0
    assert capsys.readouterr().out == f"{missing} remove it with: kubectl {delete}\n"
    program(no_programs, "kubectl", f'echo "$@" >> "{tmp_path}/calls"; echo done')
    assert main(command) == 0
    usual = benchmark.folder / "kubernetes.yaml"
    assert usual.read_text() == out.read_text()
    assert capsys.readouterr().out == f"wrote {usual}\ndone\n"
    assert main(uninstall) == 0
    assert capsys.readouterr().out == "done\n"
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == [f"apply --filename {usual}", delete.replace("'", "")]
    program(no_programs, "kubectl", "echo forbidden >&2; exit 1")
    assert main(command) == 2
    failed = f"{usual} is written, but `kubectl apply --filename {usual}` failed: forbidden\n"
    assert capsys.readouterr().err.endswith(f": {failed}")
    assert main([*command, "--out", str(out)]) == 2
    assert f"is written, but `kubectl apply --filename '{out}'` failed" in capsys.readouterr().err
    known = Installation("kubernetes", "02:00", None, place)
    (benchmark.folder / INSTALLED).write_text(json.dumps(vars(known)))
    assert main(uninstall) == 2
    assert capsys.readouterr().err.endswith(f": `kubectl {delete}` failed: forbidden\n")
    assert installation(benchmark) == known  # What is still there is still known.


REFUSED = {
    "kubernetes without an image": ["--with", "kubernetes", "--claim", "c"],
    "kubernetes without a claim": ["--with", "kubernetes", "--image", "i"],
    "ray without a server": ["--with", "ray"],
    "a server without ray": ["--with", "cron", "--job-server", "http://h:8265"],
    "a port of no server": ["--with", "ray", "--job-server", "http://h:99999"],
    "a login": ["--with", "ray", "--job-server", "http://me:pw@h:1"],
    "a port of no address": ["--with", "cron", "--address", "host:abc"],
    "an empty server": ["--with", "ray", "--job-server", ""],
    "an empty address": ["--with", "cron", "--address", ""],
    "cron that is missing": ["--with", "cron"],
    "cron that is missing for ray": ["--with", "ray", "--job-server", "http://h:8265"],
    "systemd that is missing": ["--with", "systemd"],
    "cron in a time zone": ["--with", "cron", "--time-zone", BERLIN],
    "no time of the day": ["--at", "24:00"],
    "no time zone": ["--with", "kubernetes", *CLUSTER, "--time-zone", "Mars"],
}


def test_what_cannot_be_installed_is_one_line_and_exit_code_2(
    make_benchmark, no_programs, capsys, file_regression
):
    """After a change that is meant, run this with ``--force-regen`` and read what differs."""
    benchmark = make_benchmark()
    install = ["nightly", "install", str(benchmark.path), "--at"]
    assert main([*install, "03:00", "--with", "kubernetes", "--image", "i", "--claim", "c"]) == 0
    capsys.readouterr()
    said = []
    for case, options in REFUSED.items():
        assert main([*install, "02:00", *options]) == 2
        out, error = capsys.readouterr()
        assert (out, error.count("\n")) == ("", 1)
        said.append(f"{case}:\n  {error}")
        assert installation(benchmark) == Installation("kubernetes", "03:00", None, "default")
    file_regression.check("".join(said), basename="refused", encoding="utf-8")


class JobServer:
    """Stands in for Ray's job server: its jobs end with the exit codes given, one after another.

    Where ``states`` are given, each answer about a job has the next one, and then it is gone. One
    more than expected is refused; if it was ``raced``, since another one had just submitted it.
    A server that is ``broken`` tells of no job, but why.
    """

    def __init__(self) -> None:
        self.codes: list[int | None] = []
        self.states: list[str] | None = None
        self.raced: int | None = None
        self.broken: str | None = None
        self.jobs: dict[str, dict[str, Any]] = {}
        self.submitted: list[dict[str, Any]] = []

    def submit(self, body: dict[str, Any]) -> None:
        self.submitted.append(body)
        code = self.codes.pop(0)
        self.add(body["submission_id"], code, body["entrypoint"])

    def add(self, job: str, code: int | None, entrypoint: str = "") -> None:
        self.jobs[job] = {
            "type": "SUBMISSION",
            "submission_id": job,
            "status": "SUCCEEDED" if code == 0 else "FAILED",
            "entrypoint": entrypoint,
            "driver_exit_code": code,
        }

    def asked(self, job: str) -> dict[str, Any] | None:
        if self.states is None or job not in self.jobs:
            return self.jobs.get(job)
        return {**self.jobs[job], "status": self.states.pop(0)} if self.states else None


@pytest.fixture
def job_server():
    """Serve the part of Ray's job API that a submission uses."""
    kept = JobServer()

    class Handler(BaseHTTPRequestHandler):
        def answer(self, code: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            job = self.path.removeprefix("/api/jobs/")
            if self.path == "/api/version":
                self.answer(200, {"version": "4", "ray_version": "2.60.0", "ray_commit": "x"})
            elif kept.broken:
                self.answer(500, kept.broken)
            elif found := kept.asked(job):
                self.answer(200, found)
            else:
                self.answer(404, f"Job {job} does not exist")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name = body["submission_id"]
            if not kept.codes:
                if kept.raced is not None:
                    kept.add(name, kept.raced)
                self.answer(500, "no more jobs")
                return
            kept.submit(body)
            self.answer(200, {"job_id": name, "submission_id": name})

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", kept
    server.shutdown()
    server.server_close()


def test_a_night_is_submitted_as_a_ray_job_of_its_own_name(job_server, make_benchmark, capsys):
    address, server = job_server
    server.codes = [3]
    file = str(make_benchmark().path)
    run = ["nightly", "run", file, "--night", "2026-11-21", "--job-server", address]
    assert main(run) == 3
    (body,) = server.submitted
    assert body["submission_id"] == "nightly-told-2026-11-21"
    options = ["--night", "2026-11-21", "--address", "auto", "--quiet"]
    assert shlex.split(body["entrypoint"]) == ["calsweep", "nightly", "run", file, *options]
    said = f"job nightly-told-2026-11-21 on {address} ended with exit code 3\n"
    assert capsys.readouterr() == (said, "")


def test_a_ray_job_that_ended_is_followed_by_one_that_goes_on(job_server):
    address, server = job_server
    server.codes = [None, 0]
    command = ("calsweep", "nightly", "run")
    assert submit_night(address, "b", "2026-11-21", command, 0.01) == ("nightly-b-2026-11-21", 4)
    second = submit_night(address, "b", "2026-11-21", command, 0.01)
    assert second == ("nightly-b-2026-11-21-2", 0)
    server.codes = [3]
    third = submit_night(address, "b", "2026-11-21", ("calsweep", "a b"), 0.01)
    assert third == ("nightly-b-2026-11-21-3", 3)
    assert server.submitted[-1]["entrypoint"] == "calsweep 'a b'"
    assert server.submitted[-1]["entrypoint_num_cpus"] == 0


@pytest.mark.parametrize(
    ("states", "code", "expected"),
    [
        (["PENDING", "RUNNING", "SUCCEEDED"], 0, 0),
        (["RUNNING", "FAILED"], 3, 3),
        (["RUNNING", "FAILED"], 1, 4),
        (["RUNNING", "STOPPED"], None, 4),
    ],
)
def test_a_ray_job_that_runs_is_waited_for_and_not_submitted_again(
    job_server, states, code, expected
):
    address, server = job_server
    server.add("nightly-b-2026-11-21", code)
    server.states = states
    found = submit_night(address, "b", "2026-11-21", ("calsweep",), 0.01)
    assert found == ("nightly-b-2026-11-21", expected)
    assert server.submitted == []


def test_a_ray_job_that_vanishes_or_is_refused_is_named(job_server):
    address, server = job_server
    with pytest.raises(InputError, match="no more jobs"):
        submit_night(address, "b", "2026-11-21", ("calsweep",), 0.01)
    server.raced = 3
    assert submit_night(address, "b", "2026-11-20", ("calsweep",), 0.01)[1] == 3
    server.add("nightly-b-2026-11-21", 0)
    server.states = ["RUNNING"]
    with pytest.raises(InputError, match=f"^job nightly-b-2026-11-21 has vanished from {address}$"):
        submit_night(address, "b", "2026-11-21", ("calsweep",), 0.01)


def test_a_job_server_that_is_broken_is_not_one_without_the_job(job_server):
    address, server = job_server
    server.codes, server.broken = [0], "table 404 is damaged"
    with pytest.raises(InputError, match="table 404 is damaged"):
        submit_night(address, "b", "2026-11-21", ("calsweep",), 0.01)
    assert server.submitted == []


def test_a_job_server_that_is_away_is_exit_code_4(make_benchmark, capsys):
    file = str(make_benchmark().path)
    assert main(["nightly", "run", file, "--job-server", "http://127.0.0.1:9"]) == 4
    assert "no Ray job server takes jobs at http://127.0.0.1:9" in capsys.readouterr().err
