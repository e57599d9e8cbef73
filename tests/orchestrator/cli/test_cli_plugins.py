import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.orchestrator.cli.test_cli_json import documented
from trainables.plugins import load_plugins
from trainables.refinements import build_refinement

EXAMPLE = Path(__file__).parents[3] / "examples" / "plugin" / "calsweep_example"
MASKED = EXAMPLE.parents[1] / "masked_inference.py"
UNCHECKED = "__import__('dataclasses').field(default=0.7)"
# All of it is written with what `import calsweep` has.
EVERY_KIND = """
import numpy as np
from sklearn.datasets import load_digits
from torch import nn, rand

from calsweep import (
    AUGMENTATIONS, OBJECTIVES, REFINEMENTS, SCHEMES, SOURCES, SUITES, Augmentation, DatasetInfo,
    ImageShape, Images, InputError, Network, Objective, Part, PreparedData, Reader, Refinement,
    RowArrays, RowTerms, Scheme, SourceStatus, Suite, SuiteData, calibration_report, number,
    register_model,
)

@AUGMENTATIONS.register("my-noise")
class Noise(Augmentation):
    sigma: float = number(default=0.1, low=0.0, high=1.0)

    def draw(self, network, inputs, generator):
        return (rand(inputs.shape, generator=generator),)

    def training_loss(self, network, loss, inputs, targets, indices, *drawn):
        logits = network(inputs + self.sigma * drawn[0])
        return loss(logits, targets, indices), logits

@SCHEMES.register("my-warmup")
class Warmup(Scheme):
    def start_epoch(self, network, epoch, epochs):
        network.extractor.requires_grad_(epoch > 0)

@REFINEMENTS.register("my-head")
class Head(Refinement):
    def build_head(self, feature_dim, num_classes):
        return nn.Linear(feature_dim, num_classes)

@OBJECTIVES.register("my-brier")
class Brier(Objective):
    needs_square = True

    def per_row(self, terms: RowTerms):
        return 1 - 2 * terms.log_p.exp() + terms.sum_p2

@register_model("my-net")
def my_net(num_classes: int, shape: ImageShape) -> Network:
    layers = nn.Flatten(), nn.Linear(shape.channels * shape.size**2, 16), nn.ReLU()
    return Network(nn.Sequential(*layers), nn.Linear(16, num_classes))

@SOURCES.register("my-digits")
class Digits(Reader):
    def read(self, download):
        images, labels = load_digits(return_X_y=True)
        rows = RowArrays(images.reshape(-1, 8, 8, 1).astype(np.uint8), labels.astype(np.int64))
        form = Images(size=(8, 8), channels=1, mean=(0.5,), std=(0.5,), augmentation="none")
        return DatasetInfo(self.name, tuple("0123456789"), form, "drawn", "sklearn"), rows, None

    def files(self):
        return []

    def test_paths(self):
        return []

    def check(self):
        return SourceStatus(True, "inside scikit-learn")

@SUITES.register("my-dark")
class Dark(Suite):
    def check(self, info):
        self.form(info)

    def signature(self):
        return self.name

    def test_paths(self):
        return []

    def read(self, prepared: PreparedData, download):
        rows = prepared.test()
        return np.array(rows.labels), [Part("dark", len(rows), [np.array(rows.values) // 2])]

    def judge(self, data: SuiteData, outputs, clean):
        report = calibration_report(outputs(data.values("dark")), labels=data.labels())
        return {"ece": report["ece"]SPOILT}, {}
"""
SUITE = EVERY_KIND.partition("@")[0] + EVERY_KIND[EVERY_KIND.index("@SUITES") :]


@pytest.mark.full
def test_the_plugin_of_an_example_passes_every_check(calsweep):
    code, out, err = calsweep("doctor", "--plugin", MASKED)
    assert (code, err) == (0, "")
    assert "plugin masked_inference, " in out
    assert out.endswith(": 3 of 3 checks passed\n")
    told = json.loads(calsweep("doctor", "--plugin", MASKED, "--json").out)
    assert {*told} == documented("doctor --plugin")[1]
    assert (told["plugin"], told["passed"], told["failed"]) == ("masked_inference", 3, 0)
    assert [check["mark"] for check in told["checks"]] == ["ok"] * 3


def test_masks_at_inference_leave_out_their_share_and_no_training():
    load_plugins([str(MASKED)])
    refinement = build_refinement("masked-inference", dropped=0.9)
    head = refinement.build_head(200, 10)
    whole = head(torch.eye(200)).detach() - head.bias
    assert torch.equal(head.eval()(torch.eye(200)), head.train()(torch.eye(200)))
    refinement.start_epoch(head, 0, torch.Generator().manual_seed(0))
    torch.testing.assert_close(head(torch.eye(200)) - head.bias, whole)
    left = head.eval()(torch.eye(200)) - head.bias
    kept = left.abs() > 1e-6
    assert 0.05 < kept.float().mean() < 0.15
    torch.testing.assert_close(left[kept], whole[kept])


def test_the_example_passes_every_check(calsweep):
    code, out, err = calsweep("doctor", "--plugin", EXAMPLE)
    assert (code, err) == (0, "")
    *lines, covered, last = out.splitlines()
    covers = "its code hash covers the content of calsweep_example (4 files)"
    assert covered == f"info    plugin calsweep_example: {covers}"
    assert all(line.startswith("ok  ") for line in lines)
    assert re.fullmatch("plugin calsweep_example, code [0-9a-f]{12}: 24 of 24 checks passed", last)
    assert "ok      loss gce: Ignored rows change neither value nor gradient\n" in out


@pytest.mark.full
def test_every_kind_of_part_is_trained_with(calsweep, empty_folder):
    (empty_folder / "mine.py").write_text(EVERY_KIND.replace("SPOILT", ""))
    code, out, err = calsweep("doctor", "--plugin", "./mine.py")
    checked = re.findall(r"^ok +([a-z -]+): (?:Two trainings|Reading|Measuring)", out, re.M)
    assert (code, err, len(checked)) == (0, "", 7)


def test_doctor_rejects_a_suite_whose_figures_differ_each_time(calsweep, empty_folder):
    (empty_folder / "mine.py").write_text(SUITE.replace("SPOILT", ", 'x': np.random.rand()"))
    code, out, _ = calsweep("doctor", "--plugin", "./mine.py")
    (told,) = re.findall(r"^failed +suite my-dark: .*\n +(.*)", out, re.M)
    assert (code, told) == (1, "the figures differ")


def test_doctor_cannot_check_a_suite_that_refuses_the_digits(calsweep, empty_folder):
    refusing = SUITE.replace("self.form(info)", "raise InputError('they are too small')")
    (empty_folder / "mine.py").write_text(refusing.replace("SPOILT", ""))
    code, out, _ = calsweep("doctor", "--plugin", "./mine.py")
    assert code == 0
    assert "info    suite my-dark: cannot be checked\n" in out
    assert "ok      suite my-dark" not in out


def test_doctor_lists_a_tracker_that_cannot_be_checked(calsweep, empty_folder):
    imports = "from calsweep import TRACKERS\nfrom orchestrator.tracking.folder import *\n"
    lab = "@TRACKERS.register('lab')\nclass Lab(FolderTracker): 0"
    (empty_folder / "mine.py").write_text(f"{imports}{lab}")
    code, out, _ = calsweep("doctor", "--plugin", "./mine.py")
    told = "info    tracker lab: cannot be checked without --tracking-uri ADDRESS"
    assert (code, out.splitlines()[0]) == (0, told)


LAB = """
from calsweep import TRACKERS

@TRACKERS.register("lab")
class Lab(TRACKERS["folder"]):
    def __init__(self, uri):
        super().__init__(uri.replace("lab:", "folder:"))

    def sweeps(self):
        return SWEEPS
"""


def test_a_tracker_is_checked_at_the_address_given(calsweep, empty_folder):
    for sweeps, expected in (("super().sweeps()", 0), ("{}", 1)):
        (empty_folder / "mine.py").write_text(LAB.replace("SWEEPS", sweeps))
        code, out, err = calsweep(
            "doctor", "--plugin", "./mine.py", "--tracking-uri", f"lab:{empty_folder}/t"
        )
        assert (code, err, out.count("ok      tracker lab: ")) == (expected, "", 9 - expected)
        assert re.findall(r"^failed  (.*)", out, re.M) == expected * [
            "tracker lab: An experiment is created only once, and listed if it belongs to a sweep"
        ]
    code, _, err = calsweep("doctor", "--plugin", "./mine.py", "--tracking-uri", "sqlite:///m.db")
    told = "calsweep: --tracking-uri 'sqlite:///m.db': the plugin has no tracker 'sqlite'\n"
    assert (code, err) == (2, told)


@pytest.mark.parametrize(
    ("before", "after", "broken"),
    [
        ("-torch.expm1(self.q * log_prob) / self.q", "log_prob[targets > 0]", "the device"),
        ("per_row(self, logits, targets)", "per_row(self, logits, targets)", ""),
        ("/ self.q\n", "* torch.arange(len(targets))\n", "order of rows"),
        ("expm1(self.q", "expm1(1e300 * self.q", "finite"),
        ("number(default=0.7, low=0.0, high=1.0, open_low=True)", UNCHECKED, "names parameter and"),
        (
            "log_prob = -F",
            "targets = logits.argmax(1)\n        log_prob = -F",
            "The loss depends on its targets",
        ),
        ("self.q", "0.7", "Each searched parameter has an effect"),
    ],
)
def test_doctor_prints_the_rules_that_a_loss_of_a_plugin_breaks(
    calsweep, empty_folder, before, after, broken
):
    text = (EXAMPLE / "gce.py").read_text().replace(before, after)
    (empty_folder / "mine.py").write_text(text)
    code, out, _ = calsweep("doctor", "--plugin", "./mine.py")
    failed = re.findall(r"^failed +loss gce: (.*)\n", out, re.M)
    told = re.findall(r"^        (\S.*)", out, re.M)
    assert len(told) == len(set(told))
    assert code == bool(broken)
    assert any(broken in line for line in failed) or not (broken or failed)


def test_doctor_prints_an_error_of_a_plugin_once_with_its_line(calsweep, empty_folder):
    text = (EXAMPLE / "gce.py").read_text().replace("log_prob = -F", "1 / 0\n        log_prob = -F")
    (empty_folder / "mine.py").write_text(text)
    line = text[: text.index("1 / 0")].count("\n") + 1
    code, out, _ = calsweep("doctor", "--plugin", "./mine.py")
    told = f"        mine.py, line {line}: ZeroDivisionError: division by zero\n"
    assert (code, out.count(told), out.count("ZeroDivisionError")) == (1, 1, 1)
    assert out.count("(the same error)") > 5


def test_a_range_that_holds_cross_entropy_is_noted(calsweep, empty_folder):
    text = (EXAMPLE / "gce.py").read_text()
    text = text.replace("-torch.expm1(self.q * log_prob) / self.q", "(self.q - 1) * log_prob")
    (empty_folder / "mine.py").write_text(text.replace("high=1.0", "high=0.9"))
    code, out, _ = calsweep("doctor", "--plugin", "./mine.py")
    assert code == 0
    assert "note    loss gce: No searched value makes the loss plain cross-entropy\n" in out
    assert "        with q=0.0009 it is plain cross-entropy or a multiple of it, which a" in out


def test_a_sweep_file_named_like_the_plugin_is_not_read_as_a_search_space(calsweep, empty_folder):
    (empty_folder / "spy.py").write_text((EXAMPLE / "gce.py").read_text())
    task = "{dataset: digits, model: convnet, protocol: digits}"
    sweep = f"name: x\nplugins: [./spy.py]\ntasks: [{task}]\nrecipes: [gce]\n"
    (empty_folder / "spy.yaml").write_text(sweep)
    code, out, err = calsweep("plan", "spy.yaml")
    assert (code, err) == (0, "")
    assert "gce.q" in out
    assert "plugin spy: its code hash covers the content of spy.py (1 file)\n" in out


@pytest.mark.parametrize(
    ("value", "broken"),
    [
        ("probs.amax(1).mean()", []),
        ("probs.amax(1) * 2", ["for drawn rows is outside [0, 1]"]),
        ("probs[0].amax()", ["reversed rows give"]),
        ("float('nan')", ["InputError: metric 'mine' is nan for 600 rows; it must be finite"]),
    ],
)
def test_a_metric_is_checked_and_listed(calsweep, empty_folder, value, broken):
    register = '@METRICS.register("mine", better="lower", label="Mine")'
    text = f"from calsweep import METRICS\n{register}\ndef mine(probs, labels): return {value}"
    (empty_folder / "own.py").write_text(text)
    code, out, _ = calsweep("doctor", "--plugin", "./own.py")
    told = [line for line in out.splitlines() if line.startswith("      ")]
    assert (code, len(told)) == (bool(broken), len(broken))
    assert all(part in line for part, line in zip(broken, told, strict=True))
    listed = calsweep("list", "metrics", "--plugin", "./own.py")[1]
    assert ["mine", "Mine", "%", "↓"] in [line.split() for line in listed.splitlines()]


def test_logits_are_calibrated_by_a_plugin(calsweep, empty_folder):
    rows = np.random.default_rng(0)
    np.savez("rows.npz", logits=3 * rows.normal(size=(200, 4)), labels=rows.integers(4, size=200))
    plugin = ("--plugin", EXAMPLE)
    words = ("logits", "calibrate", "rows.npz", "--with", "floored", "--out", "fitted")
    code, out, err = calsweep(*words, "--fit-rows", "0:100", *plugin)
    assert (code, err) == (0, "")
    assert re.search(r"\| floored .* [0-9.]+ \(", out)
    saved = next(Path("fitted").glob("**/*floored*"))
    assert calsweep("logits", "apply", saved, "rows.npz", *plugin)[0] == 0
    assert np.load("calibrated.npz")["logits"].shape == (200, 4)
    for unknown in (words, ("logits", "apply", saved, "rows.npz")):
        code, _, err = calsweep(*unknown)
        assert (code, "'floored'" in err) == (2, True)


def test_doctor_rejects_a_calibrator_without_log_probabilities(calsweep, empty_folder):
    text = (EXAMPLE / "floored.py").read_text().replace("math.log1p(-self.floor)", "0.5")
    (empty_folder / "mine.py").write_text(text)
    code, out, _ = calsweep("doctor", "--plugin", "./mine.py")
    assert code == 1
    assert "failed  calibrator floored: Outputs are log-probabilities" in out


@pytest.mark.parametrize(
    ("plugins", "message"),
    [
        ("[./nope.py]", "plugin './nope.py': no file or package /"),
        ("[./vague.py]", "vague.py, line 3: ValueError: metric 'x': better='' is not one of high"),
        ("[./bare.py]", "TypeError: calibrator 'x': Bare does not derive from Calibrator"),
        (
            "[./shut.py]",
            "shut.py, line 2: TypeError: tracker 'x': Shut does not define create_run, ",
        ),
        ("[./fine.py, ./fine.py]", "plugin 'fine' is named twice"),
        ("./bare.py", "must be a list of packages and files, such as [mypackage, ./my_loss.py]"),
        ("[3]", "plugins[0]: expected a package, ./FILE.py or {path, code}, got 3"),
        ("[{path: ./bare.py, code: abc}]", "was changed: expected code abc, got "),
    ],
)
def test_a_wrong_plugin_is_one_line(calsweep, empty_folder, plugins, message):
    for name, better in (("vague", ""), ("fine", "lower")):
        head = f"from calsweep import METRICS\n\n@METRICS.register('x', better='{better}')\n"
        (empty_folder / f"{name}.py").write_text(f"{head}def x(p, y): return 0")
    shut = "from calsweep import TRACKERS, Tracker\n@TRACKERS.register('x')\nclass Shut(Tracker): 0"
    (empty_folder / "shut.py").write_text(shut)
    bare = "from calsweep import CALIBRATORS\n@CALIBRATORS.register('x')\nclass Bare: pass"
    (empty_folder / "bare.py").write_text(bare)
    task = "{dataset: digits, model: convnet, protocol: digits}"
    text = f"name: x\nplugins: {plugins}\ntasks: [{task}]\nrecipes: [ce]\n"
    (empty_folder / "sweep.yaml").write_text(text)
    code, out, err = calsweep("plan", "sweep.yaml")
    assert (code, out) == (2, "")
    assert err.startswith("calsweep: sweep.yaml: plugins")
    assert message in err
    assert err.count("\n") == 1
