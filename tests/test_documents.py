import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from orchestrator.cli import main
from orchestrator.cli._app import app
from orchestrator.running.run import run_sweep
from orchestrator.sweep.plan import make_plan
from orchestrator.sweep.recipes import expand_recipes
from orchestrator.sweep.spec import SearchModel, SweepSpec, parse_sweep
from tests.orchestrator.databases import databases_made
from tests.orchestrator.one_process import ShipperHere, one_process
from trainables.common.errors import InputError
from trainables.data.digits import DigitsReader
from trainables.stages.protocols import Protocol, named_protocol

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
NOTES = [f"design/{note.name}" for note in (ROOT / "design").glob("*.md")]
DOCUMENTS = [
    *PAGES,
    *NOTES,
    "AGENTS.md",
    "llms.txt",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "deploy/README.md",
]
EXAMPLE = [
    "trainables/losses/gce.py",
    "search_spaces/methods/gce.yaml",
    "tests/trainables/losses/test_gce.py",
    "trainables/calibrators/floored.py",
    "search_spaces/calibrators/floored.yaml",
    "tests/trainables/calibrators/test_floored.py",
]
PLUGIN = ["gce.py", "floored.py", "floored.yaml"]
TESTED_AND_LISTED = """
import sys
import pytest
failed = pytest.main(["-q", *sys.argv[1:]])
from orchestrator.cli import main
from orchestrator.cli._app import app
sys.exit(failed or main(["list", "methods"]))
"""
# In code blocks a title is a file's name; blocks of the shell with a title need what is not here.
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.DOTALL | re.MULTILINE)
FOLDERS = "examples|design|docs|tests|benchmarks|trainables|search_spaces|orchestrator|deploy"


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    return [text for kind, _, text in BLOCK.findall(read(name)) if kind == language]


def run_page(name: str) -> list[str]:
    """Write a page's files here and run its commands and Python; return what was run."""
    ran = []
    found = BLOCK.findall(read(name))
    for language, title, text in found:
        if language == "yaml" and title:
            Path(title).write_text(text, encoding="utf-8")
    for language, title, text in found:
        if language == "python":
            exec(compile(text, name, "exec"), {})
            ran.append("python")
        for line in text.splitlines() if language == "sh" and not title else ():
            program, *words = shlex.split(line, comments=True)
            assert program == "calsweep", line
            assert main(words) == 0, line
            ran.append(line)
    return ran


@pytest.fixture(scope="module")
def short() -> Iterator[None]:
    """Train for 3 epochs, not 30, on a third of the digits in all that the documents run."""
    read = DigitsReader.read

    def some(reader: DigitsReader, download: bool) -> Any:
        info, rows, test = read(reader, download)
        return info, rows.take(np.arange(600)) if reader.name == "digits" else rows, test

    def named(name: str) -> Protocol:
        found = named_protocol(name)
        return replace(found, epochs=3) if name == "digits" else found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("trainables.stages.protocols.named_protocol", named)
        patched.setattr(DigitsReader, "read", some)
        yield


# Part of the demo, under its name: what `make demo` leaves to whoever reads on.
DEMO = """
name: demo
tasks: [{dataset: digits, model: convnet, protocol: digits}]
recipes: [ce, ls, mbls, "*+ts"]
search: {trials: 2}
resources: {concurrent: 1}
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, short: None) -> Path:
    """A folder as a reader has it: with the examples, after the demo."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "examples").symlink_to(ROOT / "orchestrator" / "examples")
    (folder / "demo.yaml").write_text(DEMO, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched, one_process():
        patched.chdir(folder)
        assert main(["run", "demo.yaml", "--quiet"]) == 0
    return folder


@pytest.mark.slow
@one_process()
@pytest.mark.parametrize(
    ("page", "count"),
    [
        ("README.md", 3),
        ("docs/index.md", 10),
        ("docs/run.md", 14),
        ("docs/search.md", 5),
        ("docs/tables.md", 12),
        ("docs/statistics.md", 5),
        ("docs/nightly.md", 3),
        ("docs/data.md", 13),
        ("docs/travel.md", 5),
    ],
)
def test_every_command_runs(workspace, page, count, monkeypatch):
    monkeypatch.chdir(workspace)
    assert len(run_page(page)) == count


@pytest.mark.slow
@one_process()
def test_the_tutorial_makes_its_table_and_its_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shown = read("docs/tutorial.md")
    quick = shown.replace("epochs: 10", "epochs: 1").replace("trials: 4", "trials: 2")
    monkeypatch.setattr(f"{__name__}.read", lambda _: quick.replace("[0, 1, 2]", "[0, 1]"))
    assert len(run_page("docs/tutorial.md")) == 5
    rows = re.compile(r"^\| (\w\S+) \|.*\|$", re.MULTILINE)
    printed = capsys.readouterr().out
    assert rows.findall(printed) == rows.findall(shown) == ["recipe", "ce", "ce+ts", "ls"]
    assert re.findall(r"^\| recipe .*", printed, re.M) == re.findall(r"^\| recipe .*", shown, re.M)
    (picture,) = re.findall(r"`(calsweep-storage/\S+\.png)`", shown)
    assert Path(picture).exists()


def code_cells(notebook: str) -> list[str]:
    cells = json.loads(read(f"examples/{notebook}.ipynb"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["outputs"] for cell in code] == [[]] * len(code)
    return ["".join(cell["source"]) for cell in code]


def run_cell(cell: str, names: dict[str, Any]) -> Any:
    """Run a cell and return what it shows: the value of its last line, as a notebook does."""
    tree = ast.parse(cell)
    last = tree.body.pop()
    assert isinstance(last, ast.Expr)
    exec(compile(tree, "notebook", "exec"), names)
    return eval(compile(ast.Expression(last.value), "notebook", "eval"), names)


def test_the_notebooks_sweep_is_the_one_of_the_readme() -> None:
    (text,) = blocks("README.md", "yaml")
    assert run_cell(code_cells("quickstart")[0], {}).spec == parse_sweep(text, "README.md")


@pytest.mark.slow
@one_process()
def test_every_cell_of_the_notebook_runs(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)  # Where the README's sweep has run, if its turn was before.
    names: dict[str, Any] = {}
    shown = [run_cell(cell, names) for cell in code_cells("quickstart")]
    assert shown[1] == "finished"
    assert shown[2]._repr_html_().count("<tr") == 8
    assert "| ls+macal |" in repr(shown[2])
    assert set(shown[3].fixed) == {"ls", "macal"}
    assert {"number", "objective", "chosen", "params_ls.smoothing"} <= {*shown[4].columns}
    assert {"task", "recipe", "label", "prediction", "confidence"} <= {*shown[5].columns}
    assert shown[6].read_text().startswith("<!")
    assert shown[7][2] < shown[7][1]


@pytest.mark.full
def test_every_cell_of_the_authors_notebook_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    shown = [run_cell(cell, names) for cell in code_cells("plugin")]
    assert repr(shown[1]).endswith("(ignore_index=-100, reduction='mean', q=0.5)")
    assert shown[2] == pytest.approx((1 - 0.880797**0.7) / 0.7, abs=1e-5)
    assert repr(shown[3]).endswith("ce, soft-gce, ce+ts, soft-gce+ts; 2 trials per study, 1 seed")


def test_no_page_is_left_out() -> None:
    others = {"docs/cluster.md", "docs/look.md", "docs/methods.md"}
    assert {page for page in PAGES if blocks(page, "sh") or blocks(page, "python")} == others | {
        "README.md",
        "docs/index.md",
        *(
            f"docs/{page}.md"
            for page in (
                "run",
                "search",
                "tables",
                "statistics",
                "nightly",
                "data",
                "travel",
                "tutorial",
            )
        ),
    }


def test_the_readme_shows_the_table_of_its_sweep() -> None:
    (text,) = blocks("README.md", "yaml")
    shown = re.findall(r"^\| ([a-z+]+) \| [*<\d]", read("README.md"), re.MULTILINE)
    rows = expand_recipes(parse_sweep(text, "README.md").recipes)
    assert shown == sorted(recipe.name for recipe in rows)


def test_the_readme_is_short() -> None:
    assert len(read("README.md").split()) <= 600


@pytest.mark.parametrize("name", DOCUMENTS)
def test_linked_files_exist(name: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", read(name))
    assert [link for link in links if not (ROOT / name).parent.joinpath(link).exists()] == []
    paths = re.findall(rf"`((?:{FOLDERS})/[\w./-]*)`", read(name).replace("/NAME.yaml", ""))
    assert [path for path in {*paths} - {*EXAMPLE} if not (ROOT / path).exists()] == []


COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
NAMED = re.compile(r"(?<!\.)calsweep\s+([a-z][a-z-]*)(?:\s+([a-z]+))?((?:(?!calsweep)[^\n`])*)")
PROSE = {"and", "beyond", "calsweep", "compares", "if", "import", "itself", "needs", "results"}


def wrong_commands(text: str) -> Iterator[str]:
    """Yield the commands that a text names and that do not exist, or not with these options."""
    for name, below, rest in NAMED.findall(text):
        command = COMMANDS.get(name)
        if below and hasattr(command, "commands"):
            command = command.commands.get(below)
        each = command.params if command else ()
        known = {"--help", *(word for one in each for word in one.opts)}
        wrong = [word for word in re.findall(r"(?<!\S)--[a-z-]+", rest) if word not in known]
        if name not in PROSE and (command is None or wrong):
            yield " ".join(filter(None, ["calsweep", name, below, *wrong]))


def literals(source: str) -> Iterator[str]:
    """Yield the strings of a Python file; of one with places to fill in, X in each."""
    nodes = [*ast.walk(ast.parse(source))]
    filled = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    parts = {part for node in filled for part in node.values}
    for node in filled:
        yield "".join(str(getattr(part, "value", "X")) for part in node.values)
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            yield node.value


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name != "CHANGELOG.md"])
def test_named_commands_and_options_exist(name: str) -> None:
    assert [*wrong_commands(read(name))] == []


@pytest.mark.parametrize("package", ["orchestrator", "trainables", "search_spaces", "calsweep"])
def test_commands_in_messages_exist_with_their_options(package: str) -> None:
    wrong = []
    for path in sorted((ROOT / package).rglob("*")):
        if path.suffix in (".py", ".yaml", ".html"):
            text = path.read_text(encoding="utf-8")
            found = literals(text) if path.suffix == ".py" and "calsweep" in text else [text]
            wrong += [f"{path}: {each}" for one in found for each in wrong_commands(one)]
    assert wrong == []


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ('f"run `calsweep storage sync {path}`"', []),
        ('f"run `calsweep " f"sync {path}`"', ["calsweep sync"]),
        ('"calsweep package gc --drop a"', ["calsweep package gc --drop"]),
        ('"""Text.\n\n``calsweep table --show ties --ties``\n"""', ["calsweep table --ties"]),
    ],
)
def test_command_that_does_not_exist_is_found(source: str, wrong: list[str]) -> None:
    assert [each for text in literals(source) for each in wrong_commands(text)] == wrong


def test_the_sweep_file_shows_every_key_and_parses() -> None:
    text = blocks("docs/run.md", "yaml")[1]
    spec = parse_sweep(text, "run.md")
    shown = set(re.findall(r"(\w+):", text))
    assert shown >= {*SweepSpec.model_fields, *SearchModel.model_fields}
    assert len(spec.tasks) == 2
    assert {study.stage for study in make_plan(spec)} == {"train", "refine", "calibrate"}


def test_values_called_defaults_are_the_defaults() -> None:
    spec = parse_sweep(blocks("docs/run.md", "yaml")[1], "run.md")
    chosen = {"name", "tasks", "recipes", "variants", "search"}
    for name, field in SweepSpec.model_fields.items():
        assert name in chosen or getattr(spec, name) == field.default, name
    for name, field in SearchModel.model_fields.items():
        chosen = {"trials", "fixed", "spaces", "tune"}
        assert name in chosen or getattr(spec.search, name) == field.default, name


@pytest.mark.parametrize(("place", "kind"), [(2, "refinement noisy"), (3, "metric spherical")])
def test_other_parts_of_ones_own_pass_their_checks(place, kind, tmp_path, capsys):
    path = tmp_path / "own.py"
    path.write_text(blocks("docs/methods.md", "python")[place], encoding="utf-8")
    code = main(["doctor", "--plugin", str(path)])
    assert (code, kind in capsys.readouterr().out) == (0, True)


def test_the_executor_in_the_guide_computes_a_sweep(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(blocks("docs/methods.md", "python")[4], encoding="utf-8")
    logits = 3 * np.eye(3, dtype="f4").repeat(9, 0)
    np.savez(tmp_path / "l.npz", logits=logits, labels=[0, 1, 2] * 9)
    text = (
        f"{{name: own, plugins: [./own.py], tasks: [{{logits: {tmp_path}/l.npz, name: d}}], "
        f"recipes: [given, ts], storage: {tmp_path}/s, executor: one-by-one, "
    )
    monkeypatch.setattr("orchestrator.running.run.start_shipper", ShipperHere)
    with pytest.raises(InputError, match="asha needs several trials at once; use `none`"):
        parse_sweep(f"{text}search: {{scheduler: asha}}}}", "own", tmp_path)
    spec = parse_sweep(f"{text}search: {{trials: 1}}}}", "own", tmp_path)
    assert [plugin.name for plugin in spec.used_plugins] == ["own"]
    with pytest.raises(InputError, match=r"^executor: one-by-one computes on this machine; rem"):
        run_sweep(spec, address="auto")
    with databases_made():
        assert run_sweep(spec).status == "finished"


@pytest.mark.full
def test_a_method_is_one_file_one_yaml_and_one_test(tmp_path: Path) -> None:
    for package in ("trainables", "search_spaces", "orchestrator"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    python, yaml = blocks("docs/methods.md", "python"), blocks("docs/methods.md", "yaml")
    del python[2:5]  # The refinement, the metric and the executor, which are checked above.
    outside = "".join(read(f"examples/plugin/calsweep_example/{name}") for name in PLUGIN)
    assert "".join([*python[:2], yaml[0]]) == outside
    gce, floored = (
        re.sub(r"^from calsweep.plugins import .*\n", inside, text, flags=re.MULTILINE)
        for text, inside in ((python[0], python[2]), (python[1], python[4]))
    )
    texts = [gce, yaml[1], python[3], floored, yaml[0], python[5]]
    for path, text in zip(EXAMPLE, texts, strict=True):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")

    command = [sys.executable, "-c", TESTED_AND_LISTED, EXAMPLE[2], EXAMPLE[5]]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "6 passed" in ended.stdout
    assert re.search(r"^ gce .* q 0\.7 in \[0\.05, 1\]", ended.stdout, re.M)
