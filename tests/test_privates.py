import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("orchestrator", "trainables", "search_spaces")


def imported(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def trespasses(folder: tuple[str, ...], name: str) -> bool:
    """Return whether a module of ``folder`` may not import ``name``."""
    parts = name.split(".")
    for position, part in enumerate(parts):
        if is_private(part):
            module = ROOT.joinpath(*parts[:position]).with_suffix(".py").exists()
            if module or folder[:position] != tuple(parts[:position]):
                return True
    return False


@pytest.mark.full
@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_imports_the_privates_of_another_package_or_module(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for name in imported(path)
        if name.split(".")[0] in PACKAGES and trespasses(path.relative_to(ROOT).parent.parts, name)
    ]
    assert not found


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph(
        "calsweep", *PACKAGES, cache_dir=None, exclude_type_checking_imports=True
    )
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # Raises CycleError, which names the modules.
