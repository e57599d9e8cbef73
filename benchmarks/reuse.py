"""What a table of 40 recipes costs beyond its trainings, and 64 refinements together and alone.

Run it as ``python benchmarks/reuse.py --out benchmarks/results/reuse.md``. All on the handwritten
digits with the small network of the demo. Times are taken from journals, from a sweep's first trial
to its last test figure, so that neither starting Ray nor delivering to the tracking store counts.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from _page import load, options, publish, setting

from orchestrator.running.run import run_sweep
from orchestrator.search import study
from orchestrator.storage.journal import read_events
from orchestrator.sweep.spec import parse_sweep

METHODS = ("ce", "ls", "fl", "mbls", "acls", "brier", "mixup", "mdca")
STAGES = ("", "+macal", "+tst", "+ts", "+macal+ts")
REFINEMENTS = 64
WIDTHS = (16, 128, None)
# As in the papers, where a refinement has a fifth to a ninth of a training's epochs.
TRAINING_EPOCHS, REFINEMENT_EPOCHS = 100, 20
SWEEP = """
name: {name}
tasks:
  - name: digits/convnet/reuse
    dataset: digits
    model: convnet
    protocol: {{base: digits, epochs: {epochs}}}
recipes: [{recipes}]
search:
  trials: {trials}
  sampler: {sampler}
  accuracy_tolerance: null
  fixed: {fixed}
resources: {{concurrent: {processes}}}
storage: {storage}
"""


def sweep(
    folder: Path,
    recipes: list[str],
    trials: int = 3,
    sampler: str = "tpe",
    hidden: int | None = None,
    epochs: int = TRAINING_EPOCHS,
    processes: int | None = None,
) -> list[Any]:
    """Run a sweep in a storage of its own; return its journal's events."""
    folder.mkdir()
    text = SWEEP.format(
        name="reuse",
        recipes=", ".join(f'"{recipe}"' for recipe in recipes),
        trials=trials,
        sampler=sampler,
        epochs=epochs,
        fixed=json.dumps(fixed(recipes, hidden)),
        processes=json.dumps(processes),
        storage=folder,
    )
    outcome = run_sweep(parse_sweep(text, "reuse"))
    if outcome.status != "finished":
        raise RuntimeError(f"the sweep ended as {outcome.status}")
    return read_events(outcome.journal)[0]


def fixed(recipes: list[str], hidden: int | None) -> dict[str, dict[str, int]]:
    """Return the fixed parameters of the refinements among some recipes."""
    used = {part for recipe in recipes for part in recipe.split("+")}
    found = {part: {"epochs": REFINEMENT_EPOCHS} for part in ("macal", "tst") if part in used}
    if hidden is not None:
        found["macal"]["hidden"] = hidden
    return found


def seconds(events: list[Any], stage: str | None = None) -> float:
    """Return the time from the first trial's start to the last end, perhaps of one stage alone."""
    starts = {
        event.key: event.time
        for event in events
        if event.event == "trial_started" and stage in (None, event.stage)
    }
    ends = [
        event.time
        for event in events
        if event.event in ("trial_finished", "evaluated") and event.key in starts
        if stage is None or event.event == "trial_finished"
    ]
    return (max(ends) - min(starts.values())) / 1000


def from_scratch(folder: Path, recipes: list[str], trials: int) -> float:
    """Return the mean time of recipes that share nothing with each other."""
    times = [
        seconds(sweep(folder / recipe.replace("+", "-"), [recipe], trials)) for recipe in recipes
    ]
    return sum(times) / len(times)


def refinements(folder: Path, hidden: int | None) -> tuple[float, float]:
    """Return the time of many MaC-Cal trials on one network, one by one and together.

    All run in the process that trained the network: a second one would have to start first.

    Args:
        folder: Where both run.
        hidden: Width of every head; None if it is searched too.
    """
    folder.mkdir()

    def refined(name: str) -> float:
        wanted = folder / name, ["ce+macal"], REFINEMENTS, "random", hidden
        return seconds(sweep(*wanted, epochs=5, processes=1), "refine")

    with mock.patch.object(study, "_block", return_value=1):
        alone = refined("alone")
    return alone, refined("together")


def measure(folder: Path, trials: int) -> list[str]:
    """Run everything; return the report's lines."""
    recipes = [method + stage for method in METHODS for stage in STAGES]
    table = seconds(sweep(folder / "table", recipes, trials))
    trainings = seconds(sweep(folder / "trainings", list(METHODS), trials))
    scratch = folder / "scratch"
    scratch.mkdir()
    subset = ["mbls+macal", "fl+tst", "acls+ts", "ls+macal+ts", "brier"]
    each = from_scratch(scratch, subset, trials)
    heads = {hidden: refinements(folder / f"heads-{hidden}", hidden) for hidden in WIDTHS}
    return [
        "# Computing once",
        "",
        f"{setting('torch', 'ray', 'optuna')}; the digits, "
        f"`convnet`, {trials} trials a study, {TRAINING_EPOCHS} epochs a training, "
        f"{REFINEMENT_EPOCHS} a refinement, one run each; load averages {load()}.",
        "",
        "| what | seconds | ratio |",
        "| --- | --- | --- |",
        f"| the distinct trainings of a table alone | {trainings:.1f} | 1 |",
        f"| the whole table of {len(recipes)} recipes | {table:.1f} | {table / trainings:.2f} |",
        f"| every recipe from scratch (mean of {len(subset)}, times {len(recipes)}: extrapolated) "
        f"| {each * len(recipes):.1f} | {each * len(recipes) / trainings:.2f} |",
        "",
        f"{REFINEMENTS} MaC-Cal trials on one network, random search, one process:",
        "",
        "| width of the head | one by one, s | together, s | ratio |",
        "| --- | --- | --- | --- |",
        *(
            f"| {hidden or 'searched, 16 to 1024'} | {one:.1f} | {many:.1f} | {one / many:.1f} |"
            for hidden, (one, many) in heads.items()
        ),
    ]


def main() -> None:
    """Print the figures."""
    parser = options(__doc__)
    parser.add_argument("--trials", type=int, default=3)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = "\n".join(measure(Path(folder), wanted.trials)) + "\n"
    publish(text, wanted.out)


if __name__ == "__main__":
    main()
