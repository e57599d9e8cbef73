"""Help, version, and how the command ends."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

COMMANDS = [
    "demo",
    "run",
    "submit",
    "plan",
    "best",
    "reproduce",
    "table",
    "compare",
    "ranks",
    "claims",
    "report",
    "replay",
    "plot",
    "sync",
    "calibrate",
    "apply",
    "arena",
    "list",
    "doctor",
    "gc",
    "nightly",
]


def test_the_version_is_the_distributions(calsweep):
    assert calsweep("--version") == (0, f"calsweep {version('calsweep')}\n", "")


def test_help_names_every_command(calsweep):
    code, out, _ = calsweep("--help")
    assert code == 0
    assert re.findall(r"^  ([a-z]+) ", out.partition("Commands:")[2], re.MULTILINE) == COMMANDS


def test_no_command_is_answered_by_the_help(calsweep):
    help_text = calsweep("--help").out
    assert calsweep() == (2, "", help_text)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(calsweep, command):
    code, out, err = calsweep(command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: calsweep {command} ")


def test_the_module_is_the_command():
    script = Path(sys.executable).with_name("calsweep")
    outputs = [
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=900).stdout
        for command in ([script, "--help"], [sys.executable, "-m", "orchestrator", "--help"])
    ]
    assert outputs[0] == outputs[1]
    assert "Commands:" in outputs[0]


def test_ctrl_c_before_the_sweep_began_is_no_traceback(calsweep, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("orchestrator.running.run.run_sweep", interrupt)
    assert calsweep("demo") == (130, "", "calsweep: interrupted\n")
