"""Wrong and right logins, by the commands that a user types."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from unittest import mock

from _team_server import TeamServer

SWEEP = """
name: {name}
tasks: [{{dataset: digits, model: convnet, protocol: {{base: digits, epochs: 2}}}}]
recipes: [ce, ce+ts]
search: {{trials: 2}}
tracking: {{uri: "{uri}"}}
storage: {storage}
"""
TEAM = ("ada", "emmy")


def try_logins(folder: Path, server: TeamServer) -> list[str]:
    """Try both, and two sweeps at once; return the results as Markdown."""
    storage = folder / "team"
    for name in TEAM:
        text = SWEEP.format(name=name, uri=server.uri, storage=storage)
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    wrong, right = server.login("not the password"), server.login()
    lines = ["## Logins", ""]
    for what, environment in (("a wrong password", wrong), ("the right one", right)):
        code, out, _ = _wait(_doctor(folder, server, environment))
        (line,) = [text for text in out.splitlines() if " tracking: " in text]
        lines.append(f"- `calsweep doctor` with {what}: exit code {code}, `{_plain(line, server)}`")
    code, out, err = _wait(_run(folder, TEAM[0], wrong))
    lines.append(
        f"- `calsweep run` with a wrong password: exit code {code}, "
        f"{len((out + err).splitlines())} line, `{_plain(err.strip(), server)}`; storage "
        f"{'made' if storage.exists() else 'not made'}"
    )
    both = [_run(folder, name, right) for name in TEAM]
    codes = [_wait(process)[0] for process in both]
    lines.append(
        f"- Two `calsweep run` at once with the right one: exit codes {codes}; on the server "
        + " and ".join(_runs(name, server) for name in TEAM)
    )
    return lines


def _doctor(folder: Path, server: TeamServer, environment: dict[str, str]) -> subprocess.Popen[str]:
    options = ["--tracking-uri", server.uri, "--storage", str(folder / "nothing")]
    return _start(["doctor", *options], environment)


def _run(folder: Path, name: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    return _start(["run", str(folder / f"{name}.yaml"), "--quiet"], environment)


def _start(arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "orchestrator", *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _wait(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


def _plain(text: str, server: TeamServer) -> str:
    return text.replace(server.uri, "http://127.0.0.1:5000")


def _runs(name: str, server: TeamServer) -> str:
    from mlflow import MlflowClient

    with mock.patch.dict(os.environ, server.login()):
        client = MlflowClient(server.uri)
        experiment = client.get_experiment_by_name(name)
        runs = client.search_runs([experiment.experiment_id], max_results=1000)
    kinds = Counter(f"{run.data.tags['calsweep.kind']} {run.info.status}" for run in runs)
    return f"{name}: " + ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items()))
