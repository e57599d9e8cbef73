"""Recomputes a tracked run from its configuration and compares the figures."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from orchestrator.storage.provenance import fetch_plugins
from orchestrator.sweep.recipes import parse_recipe
from orchestrator.sweep.tracking_uri import default_tracking_uri
from orchestrator.tracking import TrackedTrial, tracked_trial
from trainables.common.devices import computed_on, trial_device
from trainables.common.errors import InputError
from trainables.common.stages import GIVEN
from trainables.common.words import many
from trainables.data import PreparedData, SplitSpec, prepare
from trainables.plugins import Pinned, load_plugins
from trainables.stages import StageRequest, TaskData, evaluate_on_test, open_stage, stage_precision
from trainables.store.artifacts import ArtifactStore

TOLERANCE = 1e-6
"""Largest difference of figures that count as equal; other hardware may round differently."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Comparison:
    """One figure (its name has ``val_`` or ``test_``), as tracked and as computed now."""

    metric: str
    recorded: float
    reproduced: float

    @property
    def difference(self) -> float:
        """Return the new figure minus the tracked one."""
        return self.reproduced - self.recorded


@dataclass(frozen=True)
class Reproduction:
    """The outcome of recomputing a run.

    Attributes:
        tolerance: Largest difference of figures that count as equal.
        artifact: Key of the new outcome.
        remarks: Reasons why figures may differ: a line for each stage that was recorded on another
            kind of device or in another precision, or that was or is not deterministic.
    """

    run: TrackedTrial
    figures: tuple[Comparison, ...]
    tolerance: float
    artifact: str
    remarks: tuple[str, ...] = ()

    @property
    def worst(self) -> Comparison:
        """Return the figure that differs most."""
        return max(self.figures, key=lambda figure: abs(figure.difference))

    @property
    def equal(self) -> bool:
        """Return True if no figure differs by more than the tolerance."""
        return abs(self.worst.difference) <= self.tolerance


def reproduce(
    run_id: str,
    *,
    tracking_uri: str | None = None,
    folder: str | Path,
    data_root: str = "data",
    tolerance: float = TOLERANCE,
    progress: Progress = lambda stage, epoch, epochs: None,
) -> Reproduction:
    """Recompute every stage of a finished trial in a fresh folder, without reusing anything.

    A refinement that was trained in one pass with others is trained alone, and may round
    differently.
    Validation metrics are compared, and clean test metrics if the run was measured on test data.

    Args:
        run_id: The run.
        tracking_uri: The tracking server of the run; see ``default_tracking_uri``.
        folder: Folder for artifacts, which must not have any.
        data_root: Folder of downloaded data sets.
        tolerance: Largest difference of figures that count as equal.
        progress: Receives stage, epoch and number of epochs after every epoch.
    """
    run = tracked_trial(tracking_uri or default_tracking_uri(), run_id)
    if not run.study.origin:
        raise InputError(f"run {run_id} was tracked without the settings to compute it again")
    root = Path(folder).absolute()
    if (root / "artifacts").exists():
        raise InputError(f"{root} already has artifacts; use a fresh folder")
    pinned = [Pinned(**each) for each in run.study.origin.get("plugins", ())]
    fetch_plugins(pinned)
    load_plugins(pinned, installed=True)
    data = _same_data(run, data_root, root)
    store, remarks = ArtifactStore(root / "artifacts"), []
    for request in _requests(run, data):
        device = prepare_process(run.study.origin, request.stage)
        remarks.append(_remark(run, request.stage, computed_on(device, request.precision)))
        metrics = compute_stage(request, store, TaskData(data, device), progress)
    now = {name: value for name, value in metrics.items() if name.startswith("val_")}
    if run.trial.test:
        tested, _ = evaluate_on_test(store, request.ref, data, device)
        now |= {f"test_{name}": value for name, value in tested.items()}
    figures = _compared(run, now)
    return Reproduction(run, figures, tolerance, request.key(), tuple(filter(None, remarks)))


def _same_data(run: TrackedTrial, data_root: str, folder: Path) -> PreparedData:
    dataset, split = run.study.origin["dataset"], SplitSpec(**run.study.origin["split"])
    settings = run.study.origin["inputs"]
    data = prepare(dataset, Path(data_root), split, folder / "data", settings=settings)
    if data.key != run.study.fingerprint:
        raise InputError(
            f"run {run.trial.run_id} was computed on data with hash {run.study.fingerprint[:12]}, "
            f"but {dataset!r} now has hash {data.key[:12]}; only the same data can reproduce it"
        )
    own = run.study.origin.get("splits", {}).get(str(run.trial.seed))
    if own is None:
        return data
    return prepare(dataset, Path(data_root), SplitSpec(**own), folder / "data", settings=settings)


def _requests(run: TrackedTrial, data: PreparedData) -> Iterator[StageRequest]:
    """Yield the request of each stage, after the stage that it builds on."""
    variants: Mapping[str, str] = run.study.origin["variants"]
    training = run.study.origin["resources"]["train"]
    before: StageRequest | None = None
    recipe = parse_recipe(run.study.recipe, variants, given=run.study.model == GIVEN)
    for link in recipe.chain:
        before = StageRequest(
            stage=link.stage,
            parts={variants.get(p, p): run.trial.configuration[p] for p in link.own_parts},
            data=str(data.directory),
            model=run.study.model,
            protocol=run.study.origin["protocol"],
            seed=run.trial.seed,
            upstream=before.key() if before else None,
            upstream_stage=before.stage if before else None,
            precision=stage_precision(link.stage, training["gpu"], training.get("precision")),
            portable=run.study.origin.get("portable", False),
        )
        yield before


def prepare_process(origin: Mapping[str, Any], stage: str) -> torch.device:
    """Set this process's threads as in the trial's study, and return the device."""
    resources = origin["resources"][stage]
    torch.set_num_threads(max(1, int(resources["cpu"])))
    return trial_device(resources["gpu"], origin.get("deterministic", False))


def _remark(run: TrackedTrial, stage: str, now: Mapping[str, Any]) -> str:
    """Return the reason why a stage's figures may differ from the recorded ones, or ""."""
    then = run.trial.computed.get(stage)
    if then is None:
        on_gpu = run.study.origin["resources"][stage]["gpu"] > 0
        alone = "perhaps in one pass with others" if stage == "refine" else ""
        recorded = "on a GPU" if on_gpu and now["device"] == "cpu" else alone
    else:
        recorded = _described(then) if _described(then) != _described(now) else ""
    if not recorded and now["deterministic"]:
        return ""
    return f"{stage}: recorded {recorded or _described(now)}, computed now {_described(now)}"


def _described(computed: Mapping[str, Any]) -> str:
    order = "" if computed["deterministic"] else " (not deterministic)"
    others = computed.get("together", 1) - 1
    company = f" in one pass with {many(others, 'other')}" if others else ""
    return f"on {computed['device']} in {computed['precision']}{order}{company}"


def compute_stage(
    request: StageRequest, store: ArtifactStore, data: TaskData, progress: Progress
) -> dict[str, float]:
    """Compute a stage, store its outcome and return its last figures."""
    run = open_stage(request, store, data)
    metrics: dict[str, float] = {}
    while run.epoch < run.epochs:
        metrics = run.run_epoch()
        progress(request.stage, run.epoch, run.epochs)
    run.finish(metrics)
    return metrics


def _compared(run: TrackedTrial, now: Mapping[str, float]) -> tuple[Comparison, ...]:
    then = {
        **run.trial.metrics,
        **{f"test_{name}": value for name, value in run.trial.test.items()},
    }
    return tuple(Comparison(name, then[name], value) for name, value in now.items() if name in then)
