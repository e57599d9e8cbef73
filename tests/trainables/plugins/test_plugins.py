import os
import sys
from pathlib import Path

import pytest
import torch

from search_spaces import load_space, space_names
from trainables.calibrators import CALIBRATORS
from trainables.common.errors import InputError
from trainables.data import SplitSpec, prepare
from trainables.losses import LOSSES, build_loss
from trainables.methods import method_names
from trainables.models import MODELS, model_names
from trainables.plugins import Pinned, active_plugins, load_plugins, part_codes

LOSS = """
from calsweep import LOSSES, RowLoss, choice, count, flag, number

@LOSSES.register("{name}")
class Mine(RowLoss):
    \"\"\"A loss of one's own.\"\"\"

    power: float = number(default=0.5, low=0.0, high=1.0, open_low=True)
    gamma: float = number(default=2.0, low=0.0)
    bins: int = count(default=15)
    base: str = choice(default="ce", choices=("ce", "fl"))
    hard: bool = flag(default=False)

    def per_row(self, logits, targets):
        return {factor} * logits.logsumexp(1)
"""
YAML = """
title: Mine
source: a paper
parameters:
  {parameter}: {{symbol: g, type: float, low: 1e0, high: 4, default: 2.0, source: a paper}}
"""
READER = """
import numpy as np
from trainables.data.digits import DigitsReader
from calsweep import SOURCES

@SOURCES.register("my-digits")
class MyReader(DigitsReader):
    def labels(self):
        return None

    def read(self, download):
        info, train, test = super().read(download)
        return info, train.take(np.arange({rows})), test
"""
LOGITS, TARGETS = torch.tensor([[2.0, 0.0]]), torch.tensor([0])


def write(path: Path, text: str = LOSS, **words: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.format(**{"name": "mine", "factor": 1, **words}))
    return path


def package(folder: Path, name: str, factor: int = 1) -> Path:
    write(folder / name / "__init__.py", f"from {name} import loss\n")
    write(folder / name / "inner" / "mine.yaml", YAML, parameter="gamma")
    write(folder / name / "loss.py", LOSS, factor=factor)
    return folder / name


def test_a_file_is_a_part_like_ours_until_another_sweep(tmp_path):
    write(tmp_path / "my_loss.py")
    (plugin,) = load_plugins(["./my_loss.py"], tmp_path)
    assert "mine" in LOSSES
    assert "mine" in method_names()
    assert "mine" in space_names("methods")
    assert build_loss("mine", gamma=3).gamma == 3.0
    assert LOSSES.code("mine") == plugin.code
    assert part_codes("train", ["mine", "ce"], "convnet") == {"loss mine": plugin.code}
    with pytest.raises(ValueError, match=r"power=0 is outside \(0, 1\]"):
        build_loss("mine", power=0)
    load_plugins((), installed=True)
    assert "mine" not in {*LOSSES.names(), *space_names("methods")}
    assert part_codes("train", ["ls", "mixup"], "convnet") == {}


def test_checked_fields_are_the_search_space(tmp_path):
    load_plugins([str(write(tmp_path / "my_loss.py"))])
    space = load_space("methods", "mine")
    assert (space.title, space.source) == ("A loss of one's own", "plugin my_loss")
    assert [*space.parameters] == ["power", "gamma", "bins", "base", "hard"]
    assert [*space.searched()] == ["power", "base", "hard"]
    power, gamma = space.parameters["power"], space.parameters["gamma"]
    assert (power.default, power.low, power.high) == (0.5, 0.001, 1.0)
    assert (gamma.default, gamma.low, gamma.high) == (2.0, 2.0, 2.0)
    assert space.parameters["bins"].type == "int"
    assert space.parameters["base"].choices == ("ce", "fl")
    assert space.parameters["hard"].choices == (False, True)


def test_epochs_and_rate_of_a_refinement_may_be_set(tmp_path):
    text = """
from calsweep import REFINEMENTS, Refinement

@REFINEMENTS.register("my-head")
class MyHead(Refinement):
    def build_head(self, feature_dim, num_classes): ...
"""
    load_plugins([str(write(tmp_path / "my_head.py", text))])
    space = load_space("refinements", "my-head")
    assert space.default_point() == {"epochs": 40, "lr": 0.1}
    assert [*space.searched()] == []


def test_a_yaml_file_next_to_a_plugin_is_its_search_space(tmp_path):
    write(tmp_path / "my_loss.py")
    write(tmp_path / "my_loss.yaml", YAML, parameter="gamma")
    load_plugins(["./my_loss.py"], tmp_path)
    assert load_space("methods", "mine").parameters["gamma"].low == 1.0
    load_plugins([str(package(tmp_path, "yaml_within"))])
    assert load_space("methods", "mine").source == "a paper"


@pytest.mark.parametrize("make", ["file", "package"])
def test_two_versions_are_loaded_one_after_the_other(make, tmp_path):
    def version(factor: int) -> str:
        if make == "package":
            return str(package(tmp_path, "two_versions", factor))
        return str(write(tmp_path / "my_loss.py", factor=factor))

    codes = []
    for factor in (1, 2, 3, 1):
        (plugin,) = load_plugins([version(factor)])
        codes.append(plugin.code)
        value = build_loss("mine")(LOGITS, TARGETS)
        torch.testing.assert_close(value, factor * LOGITS.logsumexp(1)[0])
    assert codes[0] == codes[3]
    assert len(set(codes)) == 3
    with pytest.raises(InputError, match=f"was changed: expected code 0123, got {codes[0][:12]}"):
        load_plugins([Pinned(version(1), "0123")])
    write(tmp_path / "my_loss.py", "raise SystemExit")
    load_plugins([Pinned(f"nowhere/{plugin.source.path}", codes[1])])  # Known already.
    torch.testing.assert_close(build_loss("mine")(LOGITS, TARGETS), 2 * LOGITS.logsumexp(1)[0])


def test_an_entry_point_is_found_by_itself(tmp_path, monkeypatch):
    from trainables.plugins import _load

    package(tmp_path, "by_entry_point")
    points = "[calsweep.plugins]\nmine = by_entry_point.loss\n"
    write(tmp_path / "x-1.dist-info" / "METADATA", "Metadata-Version: 2.1\nName: x\nVersion: 1\n")
    write(tmp_path / "x-1.dist-info" / "entry_points.txt", points)
    monkeypatch.syspath_prepend(tmp_path)
    _load._installed.cache_clear()
    try:
        load_plugins((), installed=True)
        assert [plugin.name for plugin in active_plugins()] == ["by_entry_point"]
        for named in ("mine", "by_entry_point", "by_entry_point.loss", "./by_entry_point/loss.py"):
            (plugin,) = load_plugins([named], tmp_path, installed=True)
            assert plugin.source.path == "by_entry_point/loss.py" or named == "by_entry_point"
            assert len(active_plugins()) == 1
    finally:
        monkeypatch.undo()
        _load._installed.cache_clear()


def test_models_calibrators_and_several_in_a_file(tmp_path):
    text = """
from calsweep import CALIBRATORS, build_model, register_model
from trainables.calibrators.isotonic import IsotonicCalibration

@CALIBRATORS.register("my-iso")
class MyIso(IsotonicCalibration):
    fits_on_training = True

@register_model("my-net")
def my_net(num_classes, shape):
    return build_model("convnet", num_classes, shape)
"""
    (plugin,) = load_plugins([str(write(tmp_path / "several.py", text))])
    assert "my-net" in model_names()
    assert MODELS.code("my-net") == plugin.code
    assert CALIBRATORS.get("my-iso").name == "my-iso"
    assert load_space("calibrators", "my-iso").fits_on_training({})
    codes = part_codes("calibrate", ["my-iso"], "my-net")
    assert codes == {"calibrator my-iso": plugin.code, "model my-net": plugin.code}


def test_a_changed_reader_reads_again(tmp_path):
    sizes, split = [], SplitSpec(validation=50, test=50)
    for rows in (300, 300, 400):
        load_plugins([str(write(tmp_path / "reader.py", READER, rows=rows))])
        data = prepare("my-digits", tmp_path, split, tmp_path / "data")
        sizes.append(sum(data.counts.values()))
    assert sizes == [300, 300, 400]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "registers nothing; decorate a class, for example a loss with @LOSSES.register"),
        ("import nowhere", "my_loss.py, line 1: ModuleNotFoundError: No module named 'nowhere'$"),
        ("def f(:", "my_loss.py, line 1: SyntaxError: invalid syntax"),
        ("1 / 0", "plugin my_loss cannot be imported: my_loss.py, line 1: ZeroDivisionError"),
        ("raise SystemExit(3)", "cannot be imported: my_loss.py, line 1: SystemExit: 3$"),
        (LOSS.replace("{name}", "mbls"), "a built-in loss 'mbls' exists already; use another"),
        (LOSS.replace("{name}", "macal"), "a built-in refinement 'macal' exists already"),
        (LOSS.replace("{name}", "My+Loss"), "'My\\+Loss': use only lower-case letters"),
        (LOSS + LOSS, "loss 'mine': plugin my_loss has that loss already; use another name"),
        (LOSS.replace("= flag(default=False)", ""), "TypeError: non-default argument|needs a def"),
        (
            LOSS.replace("    power", "    def __init__(self, a): pass\n    power"),
            "'a' is not a field",
        ),
    ],
)
def test_an_invalid_plugin_gets_one_line_and_registers_nothing(text, message, tmp_path):
    before = (LOSSES.names(), set(sys.modules))
    path = write(tmp_path / "my_loss.py", text)
    with pytest.raises(InputError, match=message) as caught:
        load_plugins([str(path)], installed=True)
    assert "\n" not in str(caught.value)
    assert LOSSES.names() == before[0]
    assert active_plugins() == ()


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("./nope.py", "plugin './nope.py': no file or package /"),
        ("nope", "no installed package or module has that name; use ./FILE.py"),
        ("./folder", "expected a package, but .* has no __init__.py$"),
        ("./torch", "another module is called 'torch' .*; rename the package$"),
    ],
)
def test_a_plugin_that_is_not_found_gets_one_line(named, message, tmp_path):
    (tmp_path / "folder").mkdir()
    package(tmp_path, "torch")
    with pytest.raises(InputError, match=message):
        load_plugins([named], tmp_path)
    assert torch is sys.modules["torch"]


def test_a_yaml_that_does_not_fit_is_refused(tmp_path):
    path = write(tmp_path / "my_loss.py")
    write(tmp_path / "my_loss.yaml", YAML, parameter="gama")
    with pytest.raises(InputError, match=r"yaml: no parameter 'gama'; parameters are: power"):
        load_plugins([str(path)])
    for content, message in (
        (b"[1", r"line 1: "),
        (b"title: \xff", r"is not UTF-8 .*; save it as UTF-8"),
        (b"title: A\ntitle: B", r"line 2: key 'title' is given twice"),
        (b"", r"the document is empty; a search space needs title and source"),
    ):
        (tmp_path / "my_loss.yaml").write_bytes(content)
        with pytest.raises(InputError, match=rf"loss 'mine': my_loss\.yaml: {message}"):
            load_plugins([str(path)])


def test_loading_a_plugin_leaves_no_bytecode(tmp_path):
    load_plugins([str(write(tmp_path / "my_loss.py"))])
    load_plugins([str(package(tmp_path, "no_byte_code"))])
    assert not [name for _, folders, _ in os.walk(tmp_path) for name in folders if "cache" in name]
