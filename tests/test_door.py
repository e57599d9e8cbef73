import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import calsweep
from calsweep import plugins
from trainables.common.registry import Registry

LIGHT = """
import sys
import calsweep
import calsweep.plugins
dir(calsweep)
print(*sorted({"torch", "ray", "mlflow", "optuna"} & set(sys.modules)))
"""


def stub_homes(module: ModuleType = calsweep) -> dict[str, str]:
    text = Path(str(module.__file__)).with_suffix(".pyi").read_text(encoding="utf-8")
    froms = [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in froms for alias in node.names}


@pytest.mark.parametrize("module", [calsweep, plugins])
def test_stub_files_name_the_objects_that_are_imported(module: ModuleType) -> None:
    homes = stub_homes(module)
    assert sorted(homes) == dir(module) == sorted(module.__all__)
    for name, home in homes.items():
        __import__(home)
        assert getattr(module, name) is getattr(sys.modules[home], name)


def test_users_have_at_most_40_names() -> None:
    assert len(calsweep.__all__) <= 40


def test_a_name_that_moved_works_with_a_warning() -> None:
    vars(calsweep).pop("RowLoss", None)
    with pytest.warns(
        DeprecationWarning, match="use `from calsweep.plugins import RowLoss`"
    ) as told:
        found = calsweep.RowLoss  # type: ignore[attr-defined]
    assert (found is plugins.RowLoss, told[0].filename) == (True, __file__)


@pytest.mark.parametrize("module", [calsweep, plugins])
def test_every_public_function_and_type_is_documented(module: ModuleType) -> None:
    values = {name: getattr(module, name) for name in stub_homes(module)}
    own = {n: v for n, v in values.items() if inspect.isclass(v) or inspect.isfunction(v)}
    assert [name for name, value in own.items() if not value.__doc__] == []


@pytest.mark.full
def test_every_public_method_is_documented_there_or_where_a_base_declares_it() -> None:
    root = Path(__file__).parents[1]
    classes: dict[str, list[ast.ClassDef]] = {}  # Some share a name.
    public = []
    for package in ("calsweep", "orchestrator", "search_spaces", "trainables"):
        for path in sorted((root / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            found = ast.walk(ast.parse(text)) if "class " in text else ()
            own = [node for node in found if isinstance(node, ast.ClassDef)]
            for node in own:
                classes.setdefault(node.name, []).append(node)
            parts = (*path.relative_to(root).parts[:-1], path.stem.replace("__init__", ""))
            if not any(part.startswith("_") for part in parts):
                public += [node for node in own if not node.name.startswith("_")]

    def is_told(node: ast.ClassDef, method: str) -> bool:
        told = (item for item in node.body if isinstance(item, ast.FunctionDef))
        if any(item.name == method and ast.get_docstring(item) for item in told):
            return True
        bases = (base.id for base in node.bases if isinstance(base, ast.Name))
        return any(is_told(each, method) for base in bases for each in classes.get(base, ()))

    lacking = [
        f"{node.name}.{item.name}"
        for node in public
        for item in node.body
        if isinstance(item, ast.FunctionDef) and not item.name.startswith("_")
        if not is_told(node, item.name)
    ]
    assert lacking == []


def test_the_reference_describes_only_names_that_users_import() -> None:
    text = (Path(__file__).parents[1] / "docs" / "reference.md").read_text(encoding="utf-8")
    described = re.findall(r"^::: calsweep\.(?:plugins\.)?(\w+)$", text, re.M)
    assert len(described) == text.count(":::")
    for inside, names in (("", calsweep.__all__), ("plugins.", plugins.__all__)):
        assert {*re.findall(rf"^::: calsweep\.{inside}(\w+)$", text, re.M)} <= {*names}
    values = (getattr(plugins, name) for name in plugins.__all__)
    bases = {value.base for value in values if isinstance(value, Registry)}
    bases -= {"ExecutorKind", "TrackerKind"}  # Plugins derive from what derives from these.
    assert bases | {"Executor", "Tracker", "register_model"} <= {*described}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'calsweep' has no attribute 'run_swep'"):
        calsweep.run_swep  # type: ignore[attr-defined]  # noqa: B018


def test_importing_it_loads_no_heavy_library() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "calsweep", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("calsweep ")


def test_objects_show_themselves_in_a_notebook() -> None:
    loss = calsweep.build_loss("mbls", margin=5.0)
    assert "margin=5.0, weight=0.1" in repr(loss)
    assert "<td>margin</td><td>5.0</td>" in loss._repr_html_()
    told = repr(calsweep.build_refinement("tst", epochs=3))
    assert told == "TwoStageTraining(epochs=3, lr=0.1, latent_dim=0)"
    assert repr(calsweep.OBJECTIVES) == "<fitting objective names: ce, cls, fl, ls, mse>"
    assert "<td>cls</td><td>" in calsweep.OBJECTIVES._repr_html_()
    assert "<td>ece</td><td>ECE</td>" in calsweep.METRICS._repr_html_()


def test_losses_and_calibrators_work_without_ray_and_mlflow(tmp_path, monkeypatch):
    code = f"""
import sys
sys.modules |= dict.fromkeys(("ray", "mlflow"))  # They cannot be imported.
import torch
import calsweep

rows, labels = 4 * torch.eye(3).repeat(9, 1), torch.arange(3).repeat(9)
calsweep.build_loss("mbls")(rows, labels)
calsweep.build_calibrator("vs").fit(rows, labels)(rows)
calsweep.calibration_report(logits=rows, labels=labels)
for executor in ("ray", "local"):
    task = {{"dataset": "digits", "model": "convnet", "protocol": "digits"}}
    own = {{"executor": executor, "storage": {str(tmp_path)!r}}}
    try:
        calsweep.sweep([task], ["ce"], name="bare", **own).run()
    except calsweep.InputError as error:
        print(error)
"""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        "executor: ray needs ray, which is not installed: pip install ray",
        "tracking needs mlflow, which is not installed: pip install mlflow",
    ], done.stderr
    assert not [*tmp_path.iterdir()]
