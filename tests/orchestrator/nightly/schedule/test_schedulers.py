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
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from orchestrator.cli import main
from orchestrator.nightly import KubernetesOptions, Nightly, installation, load_nightly
from orchestrator.nightly.schedule.entry import (
    Entry,
    crontab_block,
    kubernetes_manifests,
    make_entry,
    systemd_units,
)
from orchestrator.nightly.schedule.install import with_entry, without_entry
from orchestrator.nightly.schedule.ray_job import submit_night
from trainables.common.errors import InputError

Make = Callable[..., Nightly]
SCHEMAS = Path(__file__).parent / "schemas"
ODD = 'it\'s 100% "odd" $(touch oops) & ; `x` #é'
BERLIN = "Europe/Berlin"


@pytest.fixture
def odd_entry(make_benchmark: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Entry:
    """Return an entry in a folder whose name means something to every shell."""
    folder = tmp_path / ODD
    folder.mkdir()
    path = folder / "nightly.yaml"
    path.write_text(make_benchmark().path.read_text())
    monkeypatch.chdir(folder)
    return make_entry(load_nightly(path), "02:30", None)


def test_the_entry_is_this_python_in_this_folder(odd_entry: Entry) -> None:
    assert odd_entry.command[:4] == (sys.executable, "-P", "-m", "orchestrator")
    assert odd_entry.directory == Path.cwd()
    assert odd_entry.directory.name == ODD


def test_a_control_character_is_refused(make_benchmark: Make) -> None:
    with pytest.raises(InputError, match="control character"):
        make_entry(make_benchmark(), "02:30", None, ["--address", "a\nb"])


def as_cron_reads(line: str) -> str:
    """Return the command of an entry: cron ends it at a bare % and takes \\% for %."""
    command = line.split(" ", 5)[5]
    assert re.search(r"(?<!\\)%", command) is None
    return command.replace("\\%", "%")


def test_cron_runs_exactly_the_command(odd_entry: Entry, tmp_path: Path) -> None:
    log = tmp_path / ODD / "log"
    code = "import json, os, sys; print(json.dumps([os.getcwd(), sys.argv[1:]]))"
    entry = replace(odd_entry, command=(sys.executable, "-c", code, ODD, "-x"), log=log)
    begin, line, end, rest = crontab_block(entry).split("\n")
    assert (begin[0], end[0], rest) == ("#", "#", "")
    assert line.startswith("30 2 * * * ")
    subprocess.run(["/bin/sh", "-c", as_cron_reads(line)], check=True, cwd=tmp_path)
    assert json.loads(log.read_text()) == [str(entry.directory), [ODD, "-x"]]
    assert not list(tmp_path.rglob("oops"))


def test_a_crontab_keeps_its_other_lines_and_the_entry_once(odd_entry: Entry) -> None:
    other = replace(odd_entry, name="other")
    table = "MAILTO=me\n1 1 * * * true"
    once = with_entry(table, odd_entry)
    assert with_entry(once, odd_entry) == once
    both = with_entry(once, other)
    assert without_entry(both, "other") == once
    assert without_entry(once, odd_entry.name) == table + "\n"


def test_cron_knows_no_time_zones_and_no_backslashes(odd_entry: Entry) -> None:
    with pytest.raises(InputError, match="unknown to cron"):
        crontab_block(replace(odd_entry, time_zone=BERLIN))
    with pytest.raises(InputError, match="backslash"):
        crontab_block(replace(odd_entry, directory=Path("/a\\b")))


def analyse(tmp_path: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Have systemd judge units."""
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
def test_systemd_verifies_the_units(odd_entry: Entry, tmp_path: Path, zone: str | None) -> None:
    found = analyse(tmp_path, systemd_units(replace(odd_entry, time_zone=zone)))
    assert (found.returncode, found.stderr) == (0, "")


def test_systemd_notices_a_broken_unit(odd_entry: Entry, tmp_path: Path) -> None:
    files = systemd_units(odd_entry)
    broken = {
        name: text.replace("ExecStart=", "ExecStart=/no/such ") for name, text in files.items()
    }
    assert analyse(tmp_path, broken).returncode != 0


def test_systemd_unquotes_the_command_to_what_it_was(odd_entry: Entry) -> None:
    text = systemd_units(replace(odd_entry, command=("/bin/true", ODD, "a\\b")))
    service = text["calsweep-nightly-told.service"]
    line = next(line for line in service.splitlines() if line.startswith("ExecStart="))
    # The rules of systemd.service(5): quoted words, then %% and $$ for one sign each.
    words = [
        word.replace("%%", "%").replace("$$", "$")
        for word in shlex.split(line.removeprefix("ExecStart="))
    ]
    assert words == ["/bin/true", ODD, "a\\b"]


def test_a_night_that_falls_into_the_hour_that_is_left_out_has_a_second_start(
    odd_entry: Entry,
) -> None:
    timer = systemd_units(replace(odd_entry, time_zone=BERLIN))["calsweep-nightly-told.timer"]
    assert f"OnCalendar=*-*-* 02:30:00 {BERLIN}\nOnCalendar=*-*-* 03:30:00 {BERLIN}\n" in timer
    plain = systemd_units(replace(odd_entry, at="04:00", time_zone=BERLIN))
    assert plain["calsweep-nightly-told.timer"].count("OnCalendar") == 1


def valid(name: str, document: dict[str, Any]) -> None:
    schema = json.loads((SCHEMAS / name).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(document)


@pytest.fixture
def kubernetes(make_benchmark: Make) -> list[dict[str, Any]]:
    """Return the manifests as a reader of YAML sees them."""
    benchmark = make_benchmark(sweep={"name": "Big_bench.2"})
    options = KubernetesOptions("registry.example.org/calsweep:1", "data", "research")
    text = kubernetes_manifests(benchmark, make_entry(benchmark, "02:30", BERLIN), options)
    return list(yaml.safe_load_all(text))


def test_the_kubernetes_manifests_fit_their_schemas(kubernetes: list[dict[str, Any]]) -> None:
    by_kind = {document["kind"]: document for document in kubernetes}
    valid("cronjob.json", by_kind["CronJob"])
    assert by_kind["CronJob"]["spec"]["schedule"] == "30 2,3 * * *"
    files = by_kind["ConfigMap"]["data"]
    job = yaml.safe_load(files["rayjob.yaml"])
    valid("rayjob.json", job)
    assert "--at 02:30 --time-zone Europe/Berlin" in job["spec"]["entrypoint"]
    assert all(d["metadata"]["namespace"] == "research" for d in [*kubernetes, job])
    allowed = by_kind["Role"]["rules"]
    assert allowed == [
        {"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["create", "get"]}
    ]


@pytest.mark.parametrize(
    ("schema", "path", "value"),
    [
        ("cronjob.json", ("spec", "schedule"), "tonight"),
        ("cronjob.json", ("spec", "sometimes"), True),
        ("rayjob.json", ("spec", "entrypoint"), 3),
        ("rayjob.json", ("spec", "shutdownAfterJobFinishes"), False),
        ("rayjob.json", ("spec", "rayClusterSpec"), {}),
    ],
)
def test_the_schemas_refuse(
    kubernetes: list[dict[str, Any]], schema: str, path: tuple[str, str], value: Any
) -> None:
    cronjob = next(d for d in kubernetes if d["kind"] == "CronJob")
    settings = next(d for d in kubernetes if d["kind"] == "ConfigMap")["data"]
    document = cronjob if schema == "cronjob.json" else yaml.safe_load(settings["rayjob.yaml"])
    document[path[0]][path[1]] = value
    with pytest.raises(jsonschema.ValidationError):
        valid(schema, document)


def test_the_file_in_kubernetes_is_the_same_benchmark(
    kubernetes: list[dict[str, Any]], make_benchmark: Make, tmp_path: Path
) -> None:
    settings = next(d for d in kubernetes if d["kind"] == "ConfigMap")["data"]
    path = tmp_path / "there.yaml"
    path.write_text(settings["nightly.yaml"])
    there = load_nightly(path)
    assert there.fingerprint == make_benchmark(sweep={"name": "Big_bench.2"}).fingerprint
    assert there.sweep.storage == "/calsweep/storage"


def test_a_login_does_not_get_into_a_manifest(
    make_benchmark: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = "http://ada:planted-secret@host"
    benchmark = make_benchmark(sweep={"name": "b", "tracking": {"uri": uri}})
    out = tmp_path / "kube.yaml"
    options = ["--with", "kubernetes", "--image", "i:1", "--claim", "c", "--out", str(out)]
    assert main(["nightly", "install", str(benchmark.path), "--at", "02:00", *options]) == 2
    errors = capsys.readouterr().err
    assert "in a manifest in plain text; leave it out" in errors
    assert "planted-secret" not in errors
    assert not out.exists()


def entrypoint(benchmark: Nightly, entry: Entry) -> str:
    text = kubernetes_manifests(benchmark, entry, KubernetesOptions("i", "c"))
    settings = next(d for d in yaml.safe_load_all(text) if d["kind"] == "ConfigMap")["data"]
    return str(yaml.safe_load(settings["rayjob.yaml"])["spec"]["entrypoint"])


class AnyZone(Entry):
    """An entry whose time zone no machine knows."""

    hours = (2,)


def test_the_entrypoint_is_quoted(make_benchmark: Make) -> None:
    benchmark = make_benchmark()
    entry = make_entry(benchmark, "02:30", None)
    assert "--time-zone" not in entrypoint(benchmark, entry)
    odd = AnyZone(**{**vars(entry), "time_zone": "a; rm -rf /"})
    assert "a; rm -rf /" in shlex.split(entrypoint(benchmark, odd))


TEXTS = [ODD, "a: [b] # {c}", "\U0001f600 \u00e9 \x7f", "two\nlines", "'", "yes", "1e3", ""]


@pytest.mark.parametrize("text", TEXTS)
def test_what_manifests_hold_stays_text(make_benchmark: Make, text: str) -> None:
    benchmark = make_benchmark()
    options = KubernetesOptions(text, text, text, text)
    manifests = kubernetes_manifests(benchmark, make_entry(benchmark, "02:30", None), options)
    documents = {document["kind"]: document for document in yaml.safe_load_all(manifests)}
    pod = documents["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == text
    assert documents["Role"]["metadata"]["namespace"] == text
    job = yaml.safe_load(documents["ConfigMap"]["data"]["rayjob.yaml"])
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    assert head["containers"][0]["image"] == text
    assert head["volumes"][0]["persistentVolumeClaim"] == {"claimName": text}


def test_a_name_that_kubernetes_cannot_take_is_refused(make_benchmark: Make) -> None:
    benchmark = make_benchmark(sweep={"name": "n" * 60})
    entry = make_entry(benchmark, "02:30", None)
    with pytest.raises(InputError, match="cannot name things in Kubernetes"):
        kubernetes_manifests(benchmark, entry, KubernetesOptions("i", "c"))


@pytest.fixture
def no_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
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
    else echo "no crontab for me" >&2; exit 1; fi ;;
-) : > "$TABLE"; while IFS= read -r l; do printf '%s\\n' "$l" >> "$TABLE"; done ;;
esac"""


def test_cron_is_installed_replaced_and_removed(
    make_benchmark: Make,
    no_programs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = tmp_path / "table"
    monkeypatch.setenv("TABLE", str(table))
    program(no_programs, "crontab", FAKE_CRONTAB)
    benchmark = make_benchmark()
    for at in ("02:00", "03:15"):
        assert main(["nightly", "install", str(benchmark.path), "--at", at]) == 0
    text = table.read_text()
    assert text.count("calsweep nightly told: begin") == 1
    assert "\n15 3 * * * " in text
    known = installation(benchmark)
    assert known is not None
    assert (known.scheduler, known.at) == ("cron", "03:15")
    assert main(["nightly", "status", str(benchmark.path)]) == 0
    assert "by cron, next " in capsys.readouterr().out
    assert main(["nightly", "uninstall", str(benchmark.path)]) == 0
    assert table.read_text() == ""
    assert installation(benchmark) is None
    assert main(["nightly", "uninstall", str(benchmark.path)]) == 0
    assert "nothing was scheduled" in capsys.readouterr().out


def test_systemd_is_installed_and_removed(
    make_benchmark: Make, no_programs: Path, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    program(no_programs, "systemctl", f'echo "$@" >> "{calls}"')
    benchmark = make_benchmark()
    assert main(["nightly", "install", str(benchmark.path), "--at", "02:00"]) == 0
    folder = tmp_path / "config/systemd/user"
    names = {path.name for path in folder.iterdir()}
    assert names == {"calsweep-nightly-told.service", "calsweep-nightly-told.timer"}
    assert "--user enable --now calsweep-nightly-told.timer" in calls.read_text()
    assert main(["nightly", "uninstall", str(benchmark.path)]) == 0
    assert list(folder.iterdir()) == []
    assert "--user disable --now calsweep-nightly-told.timer" in calls.read_text()


def test_kubernetes_is_applied_where_kubectl_is_and_else_the_command_is_said(
    make_benchmark: Make, no_programs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark = make_benchmark()
    out = tmp_path / "kube.yaml"
    options = ["--with", "kubernetes", "--image", "i:1", "--claim", "c", "--out", str(out)]
    command = ["nightly", "install", str(benchmark.path), "--at", "02:00", *options]
    assert main(command) == 0
    assert "kubectl apply --filename" in capsys.readouterr().out
    assert len(list(yaml.safe_load_all(out.read_text()))) == 5
    program(no_programs, "kubectl", f'echo "$@" >> "{tmp_path}/calls"; echo created')
    assert main(command) == 0
    assert f"apply --filename {out}" in (tmp_path / "calls").read_text()
    assert main(["nightly", "uninstall", str(benchmark.path)]) == 0
    assert "delete cronjob" in (tmp_path / "calls").read_text()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--with", "kubernetes"], "needs --image and --claim"),
        (["--with", "ray"], "--job-server URL and --with ray go together"),
        (["--with", "ray", "--job-server", "http://h:99999"], "port is not 1 to 65535"),
        (["--with", "ray", "--job-server", "http://me:pw@h:1"], "RAY_AUTH_TOKEN_PATH"),
        (["--with", "cron", "--address", "host:abc"], "port is not 1 to 65535"),
        (["--with", "cron"], "the program crontab is missing"),
        (["--with", "systemd"], "no systemd of this user"),
        (["--with", "cron", "--time-zone", BERLIN], "unknown to cron"),
    ],
)
def test_what_cannot_be_installed_is_one_line_and_exit_code_2(
    make_benchmark: Make,
    no_programs: Path,
    options: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    benchmark = make_benchmark()
    assert main(["nightly", "install", str(benchmark.path), "--at", "02:00", *options]) == 2
    errors = capsys.readouterr().err
    assert expected in errors
    assert errors.count("\n") == 1
    assert installation(benchmark) is None


class JobServer:
    """Stands in for Ray's job server: its jobs end with the exit codes given, one after another."""

    def __init__(self) -> None:
        self.codes: list[int | None] = []
        self.jobs: dict[str, dict[str, Any]] = {}
        self.submitted: list[dict[str, Any]] = []

    def submit(self, body: dict[str, Any]) -> None:
        self.submitted.append(body)
        code = self.codes.pop(0)
        status = "SUCCEEDED" if code == 0 else "FAILED"
        self.jobs[body["submission_id"]] = {
            "type": "SUBMISSION",
            "submission_id": body["submission_id"],
            "status": status,
            "entrypoint": body["entrypoint"],
            "driver_exit_code": code,
        }


@pytest.fixture
def job_server() -> Iterator[tuple[str, JobServer]]:
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
            elif job in kept.jobs:
                self.answer(200, kept.jobs[job])
            else:
                self.answer(404, f"Job {job} does not exist")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            kept.submit(body)
            name = body["submission_id"]
            self.answer(200, {"job_id": name, "submission_id": name})

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", kept
    server.shutdown()
    server.server_close()


def test_a_night_is_submitted_as_a_ray_job_of_its_own_name(
    job_server: tuple[str, JobServer],
    make_benchmark: Make,
    capsys: pytest.CaptureFixture[str],
) -> None:
    address, server = job_server
    server.codes = [3]
    file = str(make_benchmark().path)
    run = ["nightly", "run", file, "--night", "2026-11-21", "--job-server", address]
    assert main(run) == 3
    (body,) = server.submitted
    assert body["submission_id"] == "nightly-told-2026-11-21"
    assert shlex.split(body["entrypoint"])[:4] == ["calsweep", "nightly", "run", file]
    assert "exit code 3" in capsys.readouterr().out


def test_a_ray_job_that_ended_is_followed_by_one_that_goes_on(
    job_server: tuple[str, JobServer],
) -> None:
    address, server = job_server
    server.codes = [None, 0]
    command = ("calsweep", "nightly", "run")
    assert submit_night(address, "b", "2026-11-21", command, 0.01) == ("nightly-b-2026-11-21", 4)
    second = submit_night(address, "b", "2026-11-21", command, 0.01)
    assert second == ("nightly-b-2026-11-21-2", 0)


def test_a_job_server_that_is_away_is_exit_code_4(
    make_benchmark: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(make_benchmark().path)
    assert main(["nightly", "run", file, "--job-server", "http://127.0.0.1:9"]) == 4
    assert "no Ray job server takes jobs at http://127.0.0.1:9" in capsys.readouterr().err
