"""The data of a sweep's tasks: prepared for a run, or inspected for a plan."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from rich.console import Console

from orchestrator.running.control import say
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.storage import Storage
from orchestrator.sweep.documents import naming
from orchestrator.sweep.plan import searches
from orchestrator.sweep.spec import SweepSpec, TaskSpec
from trainables.common.errors import InputError
from trainables.data import (
    Copies,
    Features,
    PreparedData,
    SplitSpec,
    find_prepared,
    missing_download,
    prepare,
    preview_copies,
)
from trainables.data.suites import find_suite, prepare_suite
from trainables.models import begins_trained, build_model, check_takes


@dataclass(frozen=True)
class DataPreview:
    """Prepared data (by ``TaskSpec.data_name``), missing downloads, and copied rows by task."""

    prepared: Mapping[str, PreparedData]
    missing: tuple[str, ...] = ()
    copies: Mapping[str, Copies] = field(default_factory=dict)


def prepare_data(spec: SweepSpec, console: Console | None = None) -> dict[str, PreparedData]:
    """Read, split and store the data of every task and its suites, by ``TaskSpec.data_name``."""
    prepared, whole = {}, spec.given and not searches(spec)
    for number, task in enumerate(spec.tasks):
        for name, split in _splits(task, spec, whole).items():
            with naming(f"tasks[{number}] ({task.id})"):
                prepared[name] = _prepare_task(task, split, spec, console)
        copies = prepared[task.data_name(spec.all_seeds[0])].copies
        if copies is not None:
            copies.tell(task.dataset)
    return prepared


def _splits(task: TaskSpec, spec: SweepSpec, whole: bool) -> dict[str, SplitSpec]:
    """Return the splits of a task's data by name: one, or one per seed if seeds choose rows."""
    return {task.data_name(seed): task.split_on(seed, whole) for seed in spec.all_seeds}


def preview_data(spec: SweepSpec) -> DataPreview:
    """Look up and check the data of every task, as far as this needs no preparation or download."""
    place, root = Storage.of(spec).data, spec.data_root
    prepared: dict[str, PreparedData] = {}
    missing: dict[str, None] = {}  # Ordered, without duplicates: tasks may share their data.
    copies: dict[str, Copies] = {}
    whole = spec.given and not searches(spec)
    for number, task in enumerate(spec.tasks):
        for name, split in _splits(task, spec, whole).items():
            with naming(f"tasks[{number}] ({task.id})"):
                found = find_prepared(task.dataset, root, split, place, task.inputs)
                missing |= dict.fromkeys(_missing_downloads(task, split, root, found))
                counted = _copies(task, split, root, found)
            if found is not None:
                prepared[name] = found
            if counted is not None:
                copies.setdefault(task.id, counted)
    return DataPreview(prepared, tuple(missing), copies)


def _copies(
    task: TaskSpec, split: SplitSpec, root: str, found: PreparedData | None
) -> Copies | None:
    """Return the counts of copied rows in prepared data or a small source; None if unknown."""
    return found.copies if found else preview_copies(task.dataset, root, split, task.inputs)


def _prepare_task(
    task: TaskSpec, split: SplitSpec, spec: SweepSpec, console: Console | None
) -> PreparedData:
    root, place = spec.data_root, Storage.of(spec).data

    def notice(name: str) -> Callable[[str], None]:
        return lambda text: say(console, f"preparing {name}: {text}")

    report = notice(task.dataset)
    data = prepare(task.dataset, root, split, place, notice=report, settings=task.inputs)
    if not task.given:
        check_takes(task.model, type(data.info.inputs.shape))
    if begins_trained(task.model) or isinstance(data.info.inputs, Features):
        # Missing weights and embeddings are reported now, not by every trial.
        build_model(task.model, data.info.num_classes, data.info.inputs.shape)
    for name in task.suites:
        find_suite(name, root).check(data.info)
    for name in task.suites:
        prepare_suite(name, root, data, notice=notice(name))
    return data


def _missing_downloads(
    task: TaskSpec, split: SplitSpec, root: str, found: PreparedData | None
) -> Iterator[str]:
    """Yield the downloads that a task needs; prepared data need no source."""
    if found is None:
        yield from filter(None, [missing_download(task.dataset, root, split, task.inputs)])
    for suite in (find_suite(name, root) for name in task.suites):
        if found is not None:
            suite.check(found.info)
        yield from filter(None, [suite.missing_download()])


def stored_data(storage: Storage, ledger: Ledger, spec: SweepSpec) -> dict[str, PreparedData]:
    """Return the stored data that a sweep was computed on, by ``TaskSpec.data_name``.

    Deleted or damaged data is left out.
    """
    folders = sorted(path.parent for path in storage.data.glob("*/split.json"))
    prepared = {found.key: found for found in filter(None, map(_opened, folders))}
    tasks = {task.id: task for task in spec.tasks}
    names: dict[str, PreparedData] = {}
    for study in ledger.studies.values():
        task, first = tasks[study.task], prepared.get(study.fingerprint)
        if first is None:
            continue
        same = [found for found in prepared.values() if found.fingerprint == first.fingerprint]
        for seed in spec.all_seeds:
            split = task.split_on(seed, first.split.validation_seed is None)
            own = (found for found in same if found.split == split)
            names |= {task.data_name(seed): found for found in islice(own, 1)}
        names[task.data_name(spec.all_seeds[0])] = first
    return names


def _opened(folder: Path) -> PreparedData | None:
    try:
        return PreparedData.open(folder)
    except InputError:  # A run prepares damaged data again.
        return None
