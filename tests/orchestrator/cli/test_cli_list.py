import json
import re

import pytest

from orchestrator.tables.layouts import layout_names
from search_spaces import space_names
from trainables.data import source_names
from trainables.data.suites import suite_names
from trainables.metrics import METRICS
from trainables.models import model_names
from trainables.stages.protocols import protocol_names

NAMES = {
    "datasets": source_names(),
    "suites": suite_names(),
    "models": [*model_names(), "timm:NAME", "torchvision:NAME", "hf:ORG/NAME@COMMIT"],
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
    "refinements": {"feature-clipping", "macal", "tst", "vtst"},
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


def test_a_method_is_shown_with_range_default_and_source(calsweep):
    lines = calsweep("list", "methods").out.splitlines()
    headings = ["name", "title", "searched: default in [range]", "source"]
    assert re.split(" {2,}", lines[0].strip()) == headings
    found = {line.split()[0]: line for line in lines}
    assert "margin 6 in [0, 12]; weight 0.1 in [0.01, 1]" in found["mbls"]
    assert "CVPR 2022" in found["mbls"]
    assert "variant l in {l, a}" in found["mit"]


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


def test_a_list_as_json_names_the_same(calsweep):
    for what, names in NAMES.items():
        code, out, err = calsweep("list", what, "--json")
        assert (code, err) == (0, "")
        assert [record["name"] for record in json.loads(out)] == names
    methods = {each["name"]: each for each in json.loads(calsweep("list", "methods", "--json").out)}
    assert methods["mbls"]["parameters"]["margin"]["default"] == 6.0
