from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from orchestrator.replay import load_replay
from orchestrator.sweep.plan import make_plan, starting_values
from orchestrator.sweep.spec import SweepSpec, parse_sweep
from orchestrator.tables.published import load_published

FOLDER = files("orchestrator") / "examples"
REPLAY = "replay.yaml"  # Strategies, no sweep.
NAMES = sorted({e.name for e in FOLDER.iterdir() if e.name.endswith(".yaml")} - {REPLAY})
# What each row of the published ablation adds: the setting of the switch before and after.
SWITCHES = {
    "Masked Retraining": ("q0", None, 0.5),
    "Gradient Restriction": ("restrict_gradient", False, True),
    "Classifier Restructure": ("restructure", False, True),
    "Static Adaptive Sparsity": ("sparsity", "fixed", "adaptive"),
    "Decaying Adaptive Sparsity": ("sparsity", "adaptive", "decaying"),
}


def load(name: str) -> SweepSpec:
    return parse_sweep((FOLDER / name).read_text(encoding="utf-8"), name, Path(str(FOLDER)))


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_a_valid_sweep_of_its_own_name(name):
    spec = load(name)
    assert spec.name == name.removesuffix(".yaml")
    assert make_plan(spec).trials > 0


def test_the_replay_file_compares_strategies_with_the_sweep_as_it_ran():
    settings = load_replay(Path(str(FOLDER / REPLAY)))
    assert settings.strategies["as run"] == {}
    assert len(settings.strategies) > 5


@pytest.mark.parametrize(
    ("name", "reading"),
    [
        ("macal-ablation", "ours"),
        ("papers/macal-table5", "ours"),
        ("papers/macal-table5", "paper"),
        ("papers/macal-table5-cpu", "ours"),
        ("papers/macal-table5-cpu", "paper"),
    ],
)
def test_the_ablation_has_the_published_rows_each_adding_one_component(name, reading):
    spec = load(f"{name}.yaml")
    published = load_published("results").query("paper == 'macal' and table == 'Table 5'")
    notes = list(dict.fromkeys(note.split(";")[0].lstrip("+") for note in published["note"]))
    assert notes == ["Vanilla", *SWITCHES]
    vanilla, *others = spec.expanded
    assert vanilla.name == "ce"
    found = [starting_values(spec, recipe.own_parts[0], spec.tasks[0]) for recipe in others]
    rows = [row for row in found if row.get("variant", "ours") == reading]
    assert {row["q_role"] for row in rows} == {{"ours": "drop", "paper": "keep"}[reading]}
    before: dict[str, Any] = {}
    for after, (switch, off, on) in zip(rows, SWITCHES.values(), strict=True):
        assert after[switch] == on
        if before:
            assert before[switch] == off
            changed = {key for key, value in after.items() if before[key] != value}
            # A fixed sparsity knows no gamma.
            assert changed - ({"gamma"} if before["sparsity"] == "fixed" else set()) == {switch}
        before = after


@pytest.mark.parametrize(
    ("name", "part", "varied"),
    [
        ("macal-gamma", "macal", "gamma"),
        ("macal-gamma-cifar100", "macal", "gamma"),
        ("macal-masks", "macal", "q0"),
        ("macal-masks", "masked-inference", "dropped"),
    ],
)
def test_a_curve_of_macal_is_a_grid_with_the_default_first(name, part, varied):
    studies = [s for s in make_plan(load(f"{name}.yaml")) if s.recipe.name == f"ce+{part}"]
    assert studies
    for study in studies:
        (parameters,) = study.searched.values()
        assert list(parameters) == [varied]
        assert study.trials == len(parameters[varied].choices) >= 8
        assert study.defaults[part][varied] in parameters[varied].choices
