"""The notebook runs as it stands, and its sweep is the README's."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.orchestrator.one_process import one_process

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


def code_cells() -> list[str]:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert [cell["outputs"] for cell in cells if cell["cell_type"] == "code"] == [[]] * 6
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run(cell: str, names: dict[str, Any]) -> Any:
    """Run a cell and return what it shows: the value of its last line, as a notebook does."""
    tree = ast.parse(cell)
    last = tree.body.pop()
    assert isinstance(last, ast.Expr)
    exec(compile(tree, "quickstart", "exec"), names)
    return eval(compile(ast.Expression(last.value), "quickstart", "eval"), names)


def test_its_sweep_is_the_one_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.findall(r'^```yaml title="sweep.yaml"\n(.*?)^```', readme, re.DOTALL | re.MULTILINE)
    assert f'SWEEP = """\n{text[0]}"""' in code_cells()[0]


@pytest.mark.slow
@one_process()
def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    shown = [run(cell, names) for cell in code_cells()]
    assert shown[1] == "finished"
    assert shown[2]._repr_html_().count("<tr") == 8
    assert list(shown[3]["row"])[:1] == ["ce"]
    assert set(shown[4]) == {"ls", "macal"}
    assert shown[5][2] < shown[5][1]
