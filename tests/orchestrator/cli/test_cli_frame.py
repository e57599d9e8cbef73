import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer

from orchestrator.cli._app import MOVED

COMMANDS = [
    *("run", "plan", "table", "compare", "best", "report", "ui", "status", "logs", "pause"),
    *("resume", "cancel", "list", "doctor", "demo", "submit"),
]
GROUPS = {
    "package": ["publish", "merge", "verify", "predictions", "accept", "board"],
    "features": ["extract"],
    "logits": ["calibrate", "apply", "arena"],
    "storage": ["sync", "gc"],
    "search": ["replay", "blackbox"],
    "nightly": ["run", "status", "history", "accept", "gate"],
}


def test_the_version_is_the_distributions(calsweep):
    assert calsweep("--version") == (0, f"calsweep {version('calsweep')}\n", "")


def test_help_names_every_command(calsweep):
    code, out, _ = calsweep("--help")
    assert code == 0
    assert re.findall(r"^  (--[a-z-]+) ", out, re.MULTILINE) == [
        *("--version", "--install-completion", "--show-completion")
    ]
    assert listed(out) == [*COMMANDS, *GROUPS]


def listed(help_text: str) -> list[str]:
    return re.findall(r"^  ([a-z-]+) ", help_text.partition("Commands:")[2], re.MULTILINE)


@pytest.mark.parametrize("words", [[], *([group] for group in GROUPS)])
def test_no_command_is_answered_by_the_help(calsweep, words):
    help_text = calsweep(*words, "--help").out
    assert calsweep(*words) == (2, "", help_text)
    assert listed(help_text) == GROUPS.get(" ".join(words), [*COMMANDS, *GROUPS])


@pytest.mark.parametrize("old", MOVED)
def test_old_name_of_a_command_names_the_new_one(calsweep, old):
    told = f"calsweep: '{old}' is now 'calsweep {MOVED[old]}'\n"
    assert calsweep(old, "NAME", "--help") == (2, "", told)
    words = [word for word in MOVED[old].split() if not word.isupper()]
    code, out, _ = calsweep(*(word for word in words if word[0] != "-"), "--help")
    assert (code, [word for word in words if word not in out]) == (0, [])


@pytest.mark.parametrize(
    ("words", "near"), [("tabel", "table"), ("package verfy", "verify"), ("logit", "logits")]
)
def test_unknown_command_names_near_ones(calsweep, words, near):
    code, out, err = calsweep(*words.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "Did you mean " in err
    assert f"'{near}'" in err


@pytest.mark.parametrize(
    "command", [*COMMANDS, *(f"{group} {name}" for group in GROUPS for name in GROUPS[group])]
)
def test_every_command_explains_itself(calsweep, command):
    code, out, err = calsweep(*command.split(), "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: calsweep {command} ")


def test_the_module_is_the_command_and_its_help_waits_for_no_library():
    script, module = Path(sys.executable).with_name("calsweep"), ["-m", "orchestrator"]
    of_script, of_module = (
        subprocess.run(
            [*command, "--help"], capture_output=True, text=True, check=True, timeout=900
        )
        for command in ([script], [sys.executable, "-X", "importtime", *module])
    )
    assert of_script.stdout == of_module.stdout
    assert "Commands:" in of_script.stdout
    imported = set(re.findall(r"\| +(\w+)$", of_module.stderr, re.MULTILINE))
    assert "typer" in imported
    assert not imported & {"torch", "numpy", "scipy", "ray", "mlflow", "optuna", "pydantic"}


def test_ctrl_c_after_the_end_does_not_take_the_exit_code() -> None:
    late = (
        "import os, sys; from orchestrator.cli import main; code = main(); os.kill(os.getpid(), 2)"
    )
    command = [sys.executable, "-c", f"{late}; sys.exit(code)", "no-such-command"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


@pytest.mark.full
def test_ctrl_c_within_an_exec_of_a_library_is_130_as_elsewhere(empty_folder) -> None:
    (empty_folder / "lab.py").write_text('exec("raise KeyboardInterrupt")\n')
    sweep = empty_folder / "sweep.yaml"
    sweep.write_text("name: x\nplugins: [./lab.py]\ntasks: [{dataset: digits}]\nrecipes: [ce]\n")
    command = [sys.executable, "-m", "orchestrator", "plan", str(sweep)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "calsweep: interrupted\n")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, typer.Abort])
def test_ctrl_c_before_the_sweep_began_is_no_traceback(calsweep, monkeypatch, stop):
    def interrupt(*arguments, **options):
        raise stop

    monkeypatch.setattr("orchestrator.running.run.run_sweep", interrupt)
    assert calsweep("demo") == (130, "", "calsweep: interrupted\n")


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(12, "Cannot allocate memory"), RuntimeError("std::bad_alloc")]
)
def test_a_command_without_memory_ends_with_one_line_and_exit_code_5(calsweep, monkeypatch, error):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("orchestrator.sweep.spec.load_sweep", fail)
    monkeypatch.setattr("orchestrator.cli._plan.load_sweep", fail, raising=False)
    code, out, err = calsweep("plan", "sweep.yaml")
    assert (code, out, err.count("\n")) == (5, "", 1)
    assert err.startswith("calsweep: out of memory or threads (")
