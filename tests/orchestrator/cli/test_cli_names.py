import json

import numpy as np
import pytest

NAMES = (
    *("x" * 5000, "a\udcff", "a\x1b[31m\x07\r", "a\u202eb", "[red]a[/red]:smile:"),
    *("s3://bucket/x", "~nouser/x", "../../x", "file/x", "/dev/null"),
)
# Of each command, every way in which it takes a name.
COMMANDS = (
    *("NAME", "run NAME", "run --resume NAME", "run --resume x --storage NAME", "plan NAME"),
    *("plan file NAME", "table NAME", "table --storage NAME", "table --layout NAME"),
    *("best --task NAME --recipe ce", "best --task a --recipe NAME"),
    *(f"best --task a --recipe ce --{option} NAME" for option in ("storage", "since", "tag")),
    *("run --reproduce NAME", "compare NAME", "compare --storage NAME", "compare NAME --ranks"),
    *(
        "report --storage NAME",
        "plot NAME",
        "plot --storage NAME",
        "storage sync NAME",
        "list NAME",
    ),
    *(
        "logits calibrate NAME.npz",
        "logits calibrate logits.npz --fit NAME.npz",
        "logits apply NAME logits.npz",
    ),
    *(f"logits calibrate logits.npz --{option} NAME" for option in ("fit-rows", "with")),
    *("logits apply deep NAME.npz", "storage gc --storage NAME", "storage gc --drop NAME"),
    *("nightly status NAME", "nightly run NAME"),
)
VALUES = (
    *(
        f"logits calibrate logits.npz --fit-rows {'9' * 5000}:",
        f"logits calibrate logits.npz --bins {'9' * 20}",
    ),
    "logits apply deep logits.npz",
)


@pytest.fixture
def files(empty_folder):
    """A file, logits, and a calibrator whose description is nested without end."""
    (empty_folder / "file").write_text("nothing")
    rows = 2 * np.eye(20, 2, dtype=np.float32) - 1
    np.savez(empty_folder / "logits.npz", logits=rows, labels=np.arange(20) % 2)
    (empty_folder / "deep").mkdir()
    (empty_folder / "deep" / "calibrator.json").write_text("[" * 100_000)
    return sorted(empty_folder.rglob("*"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_name_gets_one_printable_line(calsweep, empty_folder, files, command):
    for name in NAMES:
        assert_refused(calsweep(*(word.replace("NAME", name) for word in command.split())))
    assert sorted(empty_folder.rglob("*")) == files


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value[:25])
def test_a_value_gets_one_printable_line(calsweep, empty_folder, files, value):
    assert_refused(calsweep(*value.split()))
    assert sorted(empty_folder.rglob("*")) == files


def assert_refused(answer):
    code, out, err = answer
    assert (code, out) == (2, "")
    assert err.startswith("calsweep: ")
    assert err.endswith("\n")
    assert err[:-1].isprintable()
    assert len(err) < 300


@pytest.mark.parametrize("option", ["s3://bucket/x", "s3://x", "~nouser/x", "x" * 300])
def test_commands_refuse_an_output_that_is_no_path(calsweep, empty_folder, files, option):
    commands = (
        [
            "logits",
            "calibrate",
            "logits.npz",
            "--with",
            "ts",
            "--objectives",
            "ce",
            "--out",
            option,
        ],
        ["logits", "apply", "deep", "logits.npz", "--out", f"{option}.npz"],
        ["table", "none", "--out", option],
        ["package", "publish", "none", "--out", option],
        ["package", "merge", "none", "--out", option],
        ["search", "blackbox", "none", "--out", option],
        ["package", "verify", "none", "--report", option],
    )
    for command in commands:
        code, _, err = calsweep(*command)
        assert code == 2
        assert err.startswith(f"calsweep: {command[-2]}: '{option[:4]}")
        assert "' is a URL; use a path" in err or "' cannot be a path: " in err
    assert sorted(empty_folder.rglob("*")) == files


def test_results_are_not_written_below_a_file(calsweep, empty_folder, files):
    commands = (
        ["logits", "calibrate", "logits.npz", "--with", "ts", "--out"],
        ["logits", "apply", "deep", "logits.npz", "--out"],
        *(["table", "none", "--out"], ["report", "none", "--out"], ["best", "--out"]),
        *(["package", "publish", "none", "--out"], ["package", "merge", "none", "--out"]),
        *(["search", "replay", "none", "--out"], ["package", "verify", "none", "--report"]),
    )
    for command in commands:
        fault = f"file/x.npz cannot be written: {empty_folder}/file is not a folder"
        answer = calsweep(*command, "file/x.npz")
        assert answer == (2, "", f"calsweep: {command[-1]}: {fault}\n")
    assert sorted(empty_folder.rglob("*")) == files


def test_a_home_folder_in_an_option_is_not_a_folder_of_that_name(
    calsweep, empty_folder, files, monkeypatch
):
    monkeypatch.setenv("HOME", str(empty_folder / "home"))
    (empty_folder / "home").mkdir()
    (empty_folder / "logits.npz").rename(empty_folder / "home" / "logits.npz")
    words = ("--with", "ts", "--objectives", "ce", "--out", "~/fitted")
    assert calsweep("logits", "calibrate", "~/logits.npz", *words).code == 0
    (file,) = empty_folder.glob("home/fitted/**/calibrator.json")
    fitted = f"~/{file.parent.relative_to(empty_folder / 'home')}"
    code, out, _ = calsweep("logits", "apply", fitted, "~/logits.npz", "--out", "~/mapped.npz")
    assert (code, out.rpartition(": ")[2]) == (0, f"{empty_folder}/home/mapped.npz\n")
    assert not (empty_folder / "~").exists()


def test_names_in_tables_steer_nothing(calsweep, empty_folder, files):
    (empty_folder / "logits.npz").rename(empty_folder / "[31m[red]\u202e.npz")
    words = ("--with", "ts", "--objectives", "ce", "--out", "\u200f")
    code, out, _ = calsweep("logits", "calibrate", "[31m[red]\u202e.npz", *words)
    assert code == 0
    assert r"[31m[red]\u202e" in out
    assert r"calibrators and table in \u200f" in out
    assert all(line.isprintable() for line in out.split("\n"))


def test_a_calibrator_file_with_wrong_values_is_refused(calsweep, empty_folder, files):
    good = [
        "logits",
        "calibrate",
        "logits.npz",
        "--with",
        "ts",
        "--objectives",
        "ce",
        "--out",
        "out",
    ]
    assert calsweep(*good).code == 0
    (path,) = empty_folder.glob("out/**/calibrator.json")
    fields = json.loads(path.read_text())
    for key in fields:
        for value in (None, [], {}, "x", -1, {"x": 1}, 10**400, ["x"] * 3):
            path.write_text(json.dumps({**fields, key: value}))
            code, out, err = calsweep(
                "logits", "apply", path.parent, "logits.npz", "--out", "p.npz"
            )
            assert code == 0 or (code == 2 and out == "" and err.count("\n") == 1), (key, value)


def test_consoles_print_markup_and_terminal_codes_as_text(capsys):
    from rich.table import Table

    from orchestrator.cli._console import complain, echo, output
    from orchestrator.running.control import say

    name = "[red]:smile:\x1b[31m\u202e"
    table = Table(box=None)
    table.add_column(name)
    table.add_row(name)
    output().print(table)
    output().print(name)
    say(output(), name)
    echo(name)
    echo(name, err=True)
    complain(name)
    out, err = capsys.readouterr()
    shown = r"[red]:smile:\x1b[31m\u202e"
    assert [line.strip() for line in out.splitlines()] == [shown] * 5
    assert err.splitlines() == [shown, f"calsweep: {shown}"]
