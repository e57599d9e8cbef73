import re
from pathlib import Path

import pytest

from orchestrator.sweep.plan import make_plan
from orchestrator.sweep.spec import parse_sweep
from orchestrator.tables.claims import load_claims
from orchestrator.tables.layouts import layout_names
from tests.orchestrator.sweep.test_examples_papers import VECTORS, made_vectors

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([^|]+) \| `calsweep run examples/(\S+)\.yaml` \| ([^|]+) \|$", PAGE, re.M)
RATE = 11_490  # Images of 32 x 32 a second, ResNet-50: docs/results/gpu.md.
# Training images, and pixels a side.
SIZES = {
    **{"cifar10": (50_000, 32), "cifar100": (50_000, 32), "tiny-imagenet": (100_000, 64)},
    **{"cifar10-lt": (20_431, 32), "cifar100-lt": (19_573, 32), "imagenet": (1_281_167, 224)},
    **{"cub200": (5_994, 224), "voc2012": (1_464, 512), "20newsgroups": (0, 0)},
}
LARGE = ("timm:vit", "timm:swin")  # Take small images enlarged to 224 pixels.
STEMS = ("timm:", "torchvision:", "deeplab")  # Look at a quarter of each side.


def test_the_page_has_every_sweep_and_claim_of_the_papers():
    tables = {name for _, name, _ in ROWS if name.startswith("papers/")}
    named = {f"papers/{layout.replace('/', '-')}" for layout in layout_names()}
    assert tables == named - {"papers/cls-logits"}
    assert {claim.name for claim in load_claims()} <= {*re.findall(r"`([\w-]+)`", PAGE)}
    assert {name for _, name, _ in ROWS} >= {"cls-logits", "acls-weights", "acls-penalty"}
    assert "not yet" not in PAGE


@pytest.mark.parametrize("name", [name for _, name, _ in ROWS])
def test_each_sweep_on_the_page_of_papers_can_be_planned_and_takes_the_stated_hours(name, tmp_path):
    path = ROOT / "orchestrator" / "examples" / f"{name}.yaml"
    text = path.read_text(encoding="utf-8").replace(VECTORS, made_vectors())
    text = text.replace("logits: logits,", f"logits: {tmp_path / 'none'},")
    plan = make_plan(parse_sweep(text, name, path.parent))
    assert plan.trials > 0
    (state,) = (state for _, own, state in ROWS if own == name)
    told = re.search(r"([\d.]+) GPU hours", state)
    if told:
        seeds = len(plan.spec.all_seeds) - 1
        hours = 0.0
        for study in (study for study in plan if study.stage == "train"):
            images, side = SIZES[study.task.dataset]
            side = 224 if study.task.model.startswith(LARGE) else side
            side = side / 4 if study.task.model.startswith(STEMS) else side
            epochs = study.task.resolved_protocol.epochs
            hours += (study.trials + seeds) * epochs * images * (side / 32) ** 2 / RATE / 3600
        assert float(told[1]) == pytest.approx(hours, rel=0.06)
    if name.startswith("papers/"):
        assert "CPU form" in state
        small = path.with_name(f"{path.stem}-cpu.yaml").read_text(encoding="utf-8")
        assert ("CamVid" in state) == ("voc:data/camvid" in small)
