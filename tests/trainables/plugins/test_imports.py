import hashlib
import importlib
import json
import os
import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest
import torch

from trainables.common.errors import AlteredCodeError, InputError
from trainables.losses import build_loss
from trainables.plugins import Pinned, Plugin, _load, load_plugins, part_codes
from trainables.plugins._find import find_source
from trainables.worker import Bench

HEAD = """
from calsweep import LOSSES, RowLoss

@LOSSES.register("{name}")
class Mine(RowLoss):
    \"\"\"A loss.\"\"\"
    def per_row(self, logits, targets):
        {inside}
        return {value} * logits.logsumexp(1)
"""
ROW = torch.tensor([[0.0, 0.0]]), torch.tensor([0])


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder on Python's path."""
    monkeypatch.syspath_prepend(tmp_path / "lab")
    yield tmp_path / "lab"
    for name in [name for name in sys.modules if name.partition(".")[0] in ("mylab", "early")]:
        del sys.modules[name]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def plugin(
    folder: Path, imports: str, value: str = "1", inside: str = "", name: str = "mine"
) -> Plugin:
    path = write(
        folder / f"{name}.py", imports + HEAD.format(name=name, inside=inside, value=value)
    )
    return load_plugins([str(path)])[0]


def loss_of(name: str = "mine") -> float:
    return build_loss(name)(*ROW).item() / ROW[0].logsumexp(1).item()


@pytest.mark.full
@pytest.mark.parametrize(
    ("file", "imports", "value"),
    [
        ("mylab.py", "import mylab", "mylab.SCALE"),
        ("mylab/__init__.py", "from mylab import SCALE", "SCALE"),
        ("mylab/deep/scale.py", "from mylab.deep import scale", "scale.SCALE"),
        ("mylab/deep/scale.py", "import mylab.deep.scale as s", "s.SCALE"),
        ("mylab/scale.py", "try:\n    from mylab.scale import *\nexcept ImportError: 1", "SCALE"),
        (
            "mylab/scale.py",
            "from importlib import import_module\ns = import_module('mylab.scale')",
            "s.SCALE",
        ),
    ],
)
def test_an_edit_of_an_imported_module_is_another_code(tmp_path, lab, file, imports, value):
    found = []
    for scale in (1, 5, 9, 1):
        write(lab / file, f"SCALE = {scale}\n")
        found.append((plugin(tmp_path, imports, value).code, loss_of()))
        assert part_codes("train", ["mine"], "convnet") == {"loss mine": found[-1][0]}
    assert [figure for _, figure in found] == [1, 5, 9, 1]
    assert found[0][0] == found[3][0]
    assert len({code for code, _ in found}) == 3


def test_modules_that_modules_import_count_too(tmp_path, lab):
    found = []
    for scale in (1, 5):
        write(lab / "mylab" / "__init__.py", "from .losses import focal\n")
        write(lab / "mylab" / "losses.py", "from . import _values\nfocal = _values.SCALE")
        write(lab / "mylab" / "_values.py", f"SCALE = {scale}")
        found.append((plugin(tmp_path, "from mylab import focal", "focal").code, loss_of()))
    assert found[0][1] == 1
    assert found[1][1] == 5
    assert found[0][0] != found[1][0]


def test_an_import_within_a_function_runs_the_code_that_was_hashed(tmp_path, lab):
    def load(scale: int) -> Plugin:
        write(lab / "lazy.py", f"SCALE = {scale}")
        return plugin(tmp_path, "", "SCALE", "from lazy import SCALE")

    first = load(3)
    write(lab / "lazy.py", "SCALE = 8")
    assert loss_of() == 3
    assert load(8).code != first.code
    assert loss_of() == 8
    load_plugins([Pinned("nowhere/mine.py", first.code)])
    assert loss_of() == 3


def test_an_earlier_import_of_another_version_is_not_used(tmp_path, lab):
    write(lab / "early.py", "SCALE = 1")
    importlib.import_module("early")
    write(lab / "early.py", "SCALE = 2")
    plugin(tmp_path, "from early import SCALE", "SCALE")
    assert loss_of() == 2


def test_a_module_that_is_gone_is_not_imported_from_memory(tmp_path, lab):
    write(lab / "mylab" / "__init__.py", "")
    write(lab / "mylab" / "old.py", "SCALE = 2")
    text = "try:\n    from mylab.old import SCALE\nexcept ImportError:\n    SCALE = 4"
    first = plugin(tmp_path, text, "SCALE")
    assert loss_of() == 2
    (lab / "mylab" / "old.py").unlink()
    assert plugin(tmp_path, text, "SCALE").code != first.code
    assert loss_of() == 4


def test_modules_of_python_calsweep_and_its_dependencies_do_not_count_as_plugin_code(tmp_path):
    imports = "import os, json, torch, sklearn.metrics, calsweep, no_such_module\n"
    path = write(tmp_path / "mine.py", f"{imports}from trainables import losses")
    source = find_source(str(path), tmp_path)
    assert source.brought.identity == {}
    assert source.code == source.own_code


def test_an_import_for_type_checkers_does_not_count(tmp_path, lab):
    write(lab / "typed.py", "")
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import typed\n"
    text += "else:\n    import {}"
    path = write(tmp_path / "mine.py", text.format("os"))
    assert find_source(str(path), tmp_path).brought.identity == {}
    write(path, text.format("typed"))
    assert [*find_source(str(path), tmp_path).brought.identity] == ["module typed"]


@pytest.mark.parametrize(
    ("address", "counts"),
    [
        (None, "distribution my-lab"),
        ({"url": "https://x/my_lab.whl", "archive_info": {}}, "distribution my-lab"),
        ({"url": "file:///x", "dir_info": {"editable": True}}, "module mylab.scale"),
        ({"url": "file:///x", "dir_info": {}}, "module mylab.scale"),
        ({"url": "https://x", "vcs_info": {"vcs": "git"}}, "module mylab.scale"),
    ],
)
def test_an_installed_distribution_counts_by_version(tmp_path, lab, address, counts):
    write(lab / "mylab" / "scale.py", "SCALE = 1")
    info = lab / "my_lab-1.5.dist-info"
    write(info / "METADATA", "Metadata-Version: 2.1\nName: My_Lab\nVersion: 1.5\n")
    write(info / "RECORD", "mylab/scale.py,sha256=x,9\n")
    if address is not None:
        write(info / "direct_url.json", json.dumps(address))
    path = write(tmp_path / "mine.py", "from mylab.scale import SCALE")
    identity = find_source(str(path), tmp_path).brought.identity
    assert [*identity] == [counts]
    assert (identity[counts] == "1.5") == counts.startswith("distribution")


def test_an_editable_distribution_is_found_by_its_finder(tmp_path, lab, monkeypatch):
    """As setuptools installs one: a finder knows the folder, which is on no path."""
    write(tmp_path / "elsewhere" / "mylab" / "__init__.py", "from mylab.scale import SCALE")
    write(tmp_path / "elsewhere" / "mylab" / "scale.py", "SCALE = 6")

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            place = tmp_path / "elsewhere" / "mylab" / "__init__.py"
            return spec_from_file_location(name, place) if name == "mylab" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    found = plugin(tmp_path, "from mylab import SCALE", "SCALE")
    assert [*found.source.brought.identity] == ["module mylab", "module mylab.scale"]
    assert loss_of() == 6


def test_a_compiled_module_counts_by_its_bytes(tmp_path, lab):
    path = write(tmp_path / "mine.py", "def f():\n    import mylab.fast")
    write(lab / "mylab" / "__init__.py", "")
    codes = set()
    for content in (b"one", b"two"):
        (lab / "mylab" / f"fast{EXTENSION_SUFFIXES[0]}").write_bytes(content)
        source = find_source(str(path), tmp_path)
        codes.add(source.code)
        assert source.brought.identity["module mylab.fast"] == hashlib.sha256(content).hexdigest()
    assert len(codes) == 2


def test_a_package_that_imports_by_computed_names_counts_whole(tmp_path, lab):
    loop = "import importlib\nfor n in ('a', 'b'):\n    importlib.import_module(f'mylab.{n}')"
    write(lab / "mylab" / "__init__.py", loop)
    for name in ("a", "b", "inner/__init__", "inner/c"):
        write(lab / "mylab" / f"{name}.py", "")
    found = plugin(tmp_path, "import mylab")
    names = ["mylab", "mylab.a", "mylab.b", "mylab.inner", "mylab.inner.c"]
    assert [*found.source.brought.identity] == [f"module {name}" for name in names]
    assert found.covers == (
        "its code hash covers the content of mine.py (1 file), mylab (5 files); "
        "not covered: imports of computed names (__init__.py, line 3)"
    )


def test_the_code_of_a_plugin_depends_neither_on_paths_nor_on_times(tmp_path, lab, monkeypatch):
    write(lab / "mylab.py", "SCALE = 1")
    first = plugin(tmp_path, "import mylab").code
    monkeypatch.syspath_prepend(write(tmp_path / "moved" / "mylab.py", "SCALE = 1").parent)
    os.utime(tmp_path / "moved" / "mylab.py", (0, 0))
    assert plugin(tmp_path / "other", "import mylab").code == first


def test_the_code_of_a_plugin_does_not_depend_on_other_plugins(tmp_path, lab):
    write(lab / "mylab" / "__init__.py", "")
    write(lab / "mylab" / "a.py", "")
    write(lab / "mylab" / "b.py", "")
    alone = plugin(tmp_path, "import mylab.a")
    plugin(tmp_path, "import mylab.a, mylab.b", name="other")
    path = tmp_path / "mine.py"
    assert find_source(str(path), tmp_path).code == alone.code
    both = load_plugins(["./mine.py", "./other.py"], tmp_path)
    again = load_plugins(["./mine.py", "./other.py"], tmp_path)
    assert [one is other for one, other in zip(both, again, strict=True)] == [True, True]


def test_a_package_that_only_another_plugin_brings_is_refused(tmp_path):
    write(
        tmp_path / "apart" / "only_here" / "__init__.py", HEAD.format(name="o", inside="", value=1)
    )
    load_plugins(["./apart/only_here"], tmp_path)
    with pytest.raises(
        InputError, match="plugin mine imports 'only_here', which is only part of another"
    ):
        plugin(tmp_path, "import only_here")


def test_two_plugins_with_different_modules_of_one_name_are_refused(tmp_path):
    for folder in ("one", "two"):
        write(tmp_path / folder / "helper_nearby.py", f"SCALE = '{folder}'")
        plugin(tmp_path / folder, "import helper_nearby", name=folder)
    with pytest.raises(InputError, match="one and two import different modules 'helper_nearby'"):
        load_plugins(["./one/one.py", "./two/two.py"], tmp_path)


def test_a_file_next_to_the_plugin_travels_with_it(tmp_path):
    write(tmp_path / "here" / "nearby_file.py", "SCALE = 7")
    found = plugin(tmp_path / "here", "from nearby_file import SCALE", "SCALE")
    assert loss_of() == 7
    copy = tmp_path / "copy"
    for name, content in found.source.copied.items():
        write(copy / name, content.decode())
    write(tmp_path / "here" / "nearby_file.py", "SCALE = 8")
    assert find_source(str(copy / "mine.py"), tmp_path).code == found.code


def test_a_stored_sweep_is_shown_but_not_computed_after_an_edit(tmp_path, lab):
    write(lab / "mylab.py", "SCALE = 1")
    found = plugin(tmp_path, "import mylab", "mylab.SCALE")
    for name, content in found.source.copied.items():
        write(tmp_path / "copy" / name, content.decode())
    _load._known.clear()
    pinned = Pinned(str(tmp_path / "copy" / "mine.py"), found.code)
    write(lab / "mylab.py", "SCALE = 2")
    told = "plugin mine imports module mylab, which has changed since the sweep began"
    with pytest.raises(InputError, match=told):
        load_plugins([pinned])
    assert load_plugins([pinned], exact=False)[0].code != found.code
    with pytest.raises(AlteredCodeError, match=told):
        Bench(tmp_path / "artifacts", sealed=False, plugins=[pinned]).require_code()
    write(tmp_path / "copy" / "mine.py", "1")
    with pytest.raises(InputError, match=r"mine\.py was changed: expected code"):
        load_plugins([pinned], exact=False)


@pytest.mark.parametrize("named", [["./pair", "./pair/two.py"], ["./pair/two.py", "./pair"]])
def test_a_module_of_a_package_registers_its_parts_in_any_order_of_plugins(tmp_path, named):
    for name, module in (("one", "__init__"), ("two", "two")):
        write(tmp_path / "pair" / f"{module}.py", HEAD.format(name=name, inside="", value=1))
    brought, codes = {}, {}
    for path in named:
        (found,) = load_plugins([path], tmp_path)
        brought[path], codes[path] = [each.name for each in found.additions], found.code
    assert brought == {"./pair": ["one"], "./pair/two.py": ["one", "two"]}
    for path, code in codes.items():
        (again,) = load_plugins([Pinned(str(tmp_path / path), code)])
        assert [each.name for each in again.additions] == brought[path]
