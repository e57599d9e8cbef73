"""``calsweep list``: every name that sweep files may use."""

from __future__ import annotations

import json
import re

import pytest

from orchestrator.tables.layouts import layout_names, load_layout
from search_spaces import load_space, space_names
from trainables.data import source_names
from trainables.data.suites import suite_names
from trainables.metrics import METRICS
from trainables.models import model_names
from trainables.stages.protocols import protocol_names

NAMES = {
    "datasets": source_names(),
    "suites": suite_names(),
    "models": [*model_names(), "timm:NAME", "torchvision:NAME"],
    "metrics": METRICS.names(),
    "protocols": protocol_names(),
    "layouts": layout_names(),
    **{kind: space_names(kind) for kind in ("methods", "refinements", "calibrators", "objectives")},
}
KNOWN = {
    "datasets": {"digits", "cifar10", "npz:PATH", "folder:PATH"},
    "suites": {"cifar10-c", "generated-c", "ood-svhn", "ood-npz:PATH"},
    "models": {"convnet", "resnet50", "timm:NAME"},
    "metrics": {"acc", "nll", "ece", "aece", "cwece"},
    "protocols": {"digits", "mukhoti2020"},
    "layouts": {"macal/table1", "cls/table2", "acls/tableA"},
    "methods": {"ce", "ls", "fl", "dfl", "mbls", "acls", "au", "mixup", "plp", "balcal"},
    "refinements": {"macal", "tst", "vtst"},
    "calibrators": {"ts", "ets", "pts", "cts"},
    "objectives": {"ce", "ls", "fl", "cls"},
}


@pytest.mark.parametrize("what", NAMES)
def test_a_catalogue_is_complete(calsweep, what):
    code, out, err = calsweep("list", what)
    listed = [line.split()[0] for line in out.splitlines()]
    if what not in ("datasets", "suites", "models", "protocols"):
        assert listed.pop(0) == "name"
    assert (code, err) == (0, "")
    assert listed == NAMES[what]
    assert set(listed) >= KNOWN[what]


def test_a_layout_is_shown_with_its_title(calsweep):
    rows = dict(line.split(maxsplit=1) for line in calsweep("list", "layouts").out.splitlines())
    assert rows["name"].strip() == "title"
    assert rows["macal/table1"].strip() == load_layout("macal/table1").title


def test_a_method_is_shown_with_range_default_and_source(calsweep):
    lines = calsweep("list", "methods").out.splitlines()
    headings = ["name", "title", "searched: default in [range]", "source"]
    assert re.split(" {2,}", lines[0].strip()) == headings
    (mbls,) = [line for line in lines if line.split()[0] == "mbls"]
    assert "margin 6 in [0, 12]; weight 0.1 in [0.01, 1]" in mbls
    assert "CVPR 2022" in mbls
    (mit,) = [line for line in lines if line.split()[0] == "mit"]
    assert "variant l in {l, a}" in mit


def test_a_narrow_terminal_cuts_nothing_off_a_list(calsweep, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # As on a terminal.
    monkeypatch.setenv("COLUMNS", "60")
    told = re.sub(r"\x1b\[[0-9;]*m", "", calsweep("list", "methods").out)
    assert "…" not in told
    assert max(map(len, told.splitlines())) <= 60
    monkeypatch.setenv("COLUMNS", "20")
    told = re.sub(r"\x1b\[[0-9;]*m", "", calsweep("list", "methods").out)
    names = [line.split()[0] for line in told.splitlines() if line[1:2].strip()]
    assert names == ["name", *NAMES["methods"]]


@pytest.mark.parametrize("kind", ["methods", "refinements", "calibrators", "objectives"])
def test_what_a_search_varies_is_told_in_full(calsweep, kind):
    for line in calsweep("list", kind).out.splitlines()[1:]:
        space = load_space(kind, line.split()[0])
        told = []
        for name, parameter in space.searched().items():
            if parameter.type == "categorical":
                told.append(
                    f"{name} {parameter.default} in {{{', '.join(map(str, parameter.choices))}}}"
                )
            else:
                low, high = (f"{end:g}" for end in (parameter.low, parameter.high))
                told.append(f"{name} {parameter.default:g} in [{low}, {high}]")
        cells = (space.name, space.title, "; ".join(told), space.source)
        assert line.split() == " ".join(cells).split()


def test_a_list_as_json_names_the_same(calsweep):
    for what, names in NAMES.items():
        code, out, err = calsweep("list", what, "--json")
        assert (code, err) == (0, "")
        assert [record["name"] for record in json.loads(out)] == names
    (mbls,) = [
        r for r in json.loads(calsweep("list", "methods", "--json").out) if r["name"] == "mbls"
    ]
    assert mbls["parameters"]["margin"]["default"] == 6.0
