"""The sweep file: one YAML document, which is validated before anything starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_serializer,
    field_validator,
    model_validator,
)

from orchestrator.sweep.documents import SWEEP, naming, read_document, validate
from orchestrator.sweep.executors import DEFAULT_EXECUTOR, EXECUTORS
from orchestrator.sweep.names import LONGEST_NAME, NAME, is_sweep_name
from orchestrator.sweep.plugins import FOLDER, PluginModel, read_plugins
from orchestrator.sweep.recipes import (
    Recipe,
    check_names,
    check_values,
    expand_recipes,
    is_part,
    narrow,
    near_parts,
    parameters_of,
)
from orchestrator.sweep.tracking_uri import check_tracking_uri, database_uri, tracker_kind
from search_spaces import Parameter
from trainables.common.errors import InputError
from trainables.common.paths import (
    DEFAULT_STORAGE,
    bucket_address,
    local_path,
    redacted,
    storage_folder,
)
from trainables.common.stages import GIVEN, splits
from trainables.common.yaml_text import read_mapping
from trainables.data import SOURCES, Inputs, SplitSpec, find_reader, logit_sets, split_address
from trainables.data.suites import check_suites
from trainables.metrics import METRICS, REPORTED
from trainables.models import PRETRAINED, begins_trained, check_model, check_takes
from trainables.plugins import Pinned, active_plugins
from trainables.schemes import SCHEMES
from trainables.stages import check_part
from trainables.stages.protocols import Protocol, protocol_from

TASK = re.compile(r"[A-Za-z0-9][\w.:@+-]*(/[A-Za-z0-9][\w.:@+-]*)*")
RESERVED = ("calsweep", "mlflow")  # Prefixes of tags that we and MLflow set.
PART = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

Value = bool | int | float | str
SEED_BITS = 31
Seed = Annotated[int, Field(ge=0, lt=2**SEED_BITS)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
# `true` means one standard error, `false` means none.
Errors = Annotated[
    float,
    BeforeValidator(lambda value: float(value) if isinstance(value, bool) else value),
    Field(ge=0, allow_inf_nan=False),
]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
CountOrZero = Annotated[int, Field(ge=0, lt=2**31)]
LEAST_HANG_SECONDS = 10


def _check_hang_seconds(value: float) -> float:
    if 0 < value < LEAST_HANG_SECONDS:
        raise ValueError(
            "fewer seconds may kill a healthy process on a busy machine; use "
            f"{LEAST_HANG_SECONDS} or more, or 0 for no limit"
        )
    return value


def _checked(check: Callable[[Any], object]) -> AfterValidator:
    """Return a validator that runs a check and returns the value unchanged."""

    def keep(value: Any) -> Any:
        check(value)
        return value

    return AfterValidator(keep)


def _objectives() -> list[str]:
    # Calibration errors first: they are the most common objectives.
    metrics = sorted(METRICS.values(), key=lambda metric: not metric.percent)
    return [metric.name for metric in metrics if metric.is_objective]


def _reported() -> list[str]:
    return [*REPORTED, *(metric.name for metric in METRICS.plugged)]


def _one_of(names: Callable[[], Sequence[str]]) -> AfterValidator:
    def check(name: str) -> None:
        if name not in names():
            columns = METRICS.columns(names())  # Too many for one line.
            listing = ", ".join(each for each in names() if each not in columns)
            more = ", or a lower-is-better column of docs/tables.md" if columns else ""
            raise ValueError(f"must be one of {listing}{more}")

    return _checked(check)


def _check_name(name: str) -> None:
    if not is_sweep_name(name):
        raise ValueError(
            f"must be up to {LONGEST_NAME} letters, digits, '.', '_' and '-', starting with a "
            "letter or digit"
        )


def _check_tags(tags: Mapping[str, str]) -> None:
    for name in tags:
        if not NAME.fullmatch(name) or name.split(".")[0] in RESERVED:
            raise ValueError(
                "a tag's name may have letters, digits, '.', '_' and '-', and must not begin "
                f"with {' or '.join(f'{word}.' for word in RESERVED)}"
            )


def _check_seeds(seeds: Sequence[int]) -> None:
    if len(set(seeds)) != len(seeds):
        raise ValueError("expected different seeds")


Objective = Annotated[str, _one_of(_objectives)]
Reported = Annotated[str, _one_of(_reported)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def __copy__(self) -> Self:
        """Return a copy without cached properties, as ``model_copy`` changes fields."""
        copied = super().__copy__()
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied


# Short forms of other keys of a task, and the keys that must not be given with them.
SHORT = {"logits": ("dataset", "model", "protocol", "features"), "features": ("dataset",)}
HEAD = {"model": "linear", "protocol": "features"}

# Placeholder protocol for given logits; its fields are not used.
NO_TRAINING = Protocol(name=GIVEN, epochs=1, batch_size=1, lr=1.0)


class SplitModel(_Strict):
    """How the rows of a data set are split; with ``vary``, each seed draws its validation rows."""

    validation: float | int | None = None
    test: float | int = 0.25
    train_limit: int | None = None
    test_limit: int | None = None
    seed: Seed = 0
    vary: bool = False


class TaskSpec(_Strict):
    """One task: data set x model x protocol, or logits that were computed elsewhere.

    ``logits: PATH`` means ``dataset: logits:PATH`` with model and protocol ``given``. In a sweep
    file, a folder or an HDF5 file of several sets makes one task per set. ``features: PATH`` means
    ``dataset: features:PATH``, by default with model ``linear`` and protocol ``features``.

    Attributes:
        dataset: A name from ``calsweep list datasets``, or a kind and a path, such as ``npz:PATH``
            or ``text:PATH``.
        model: A name from ``calsweep list models``.
        protocol: Name of a protocol, or a mapping of its fields (with ``base:`` for a named one).
        name: The task's name in tables; by default ``dataset/model/protocol``; for logits, the
            name of their file or set.
        split: The split of the rows; its default validation share is the protocol's or data's.
        inputs: Options of this kind of data, such as ``length``.
        suites: Additional test sets for chosen configurations; names from
            ``calsweep list suites``.
    """

    dataset: str
    model: str
    protocol: str | dict[str, Any]
    name: str = ""
    split: SplitModel = SplitModel()
    inputs: dict[str, Value] = {}
    suites: tuple[str, ...] = Field(default=(), strict=False)

    @model_validator(mode="before")
    @classmethod
    def _spell_out(cls, task: Any) -> Any:
        """Replace ``logits`` or ``features`` by the keys that they mean."""
        short = next((key for key in SHORT if isinstance(task, dict) and key in task), None)
        if short is None:
            return task
        for key in SHORT[short]:
            if key in task:
                raise ValueError(f"give either {short} or {key}, not both")
        rest = {key: value for key, value in task.items() if key != short}
        if not isinstance(path := task[short], str) or not path:
            raise ValueError(f"{short}={path!r} is not a path")
        usual = {"model": GIVEN, "protocol": GIVEN} if short == "logits" else HEAD
        return {**usual, **rest, "dataset": f"{short}:{path}"}

    @property
    def given(self) -> bool:
        """Return True if the task's logits were computed elsewhere."""
        return self.dataset.partition(":")[0] == "logits"

    @property
    def id(self) -> str:
        """Return the task's name in tables, MLflow and ``calsweep best``."""
        usual = (self.dataset_name, *(() if self.given else (self.model, self.protocol_name)))
        return self.name or "/".join(usual)

    @property
    def dataset_name(self) -> str:
        """Return the data set's name; for a path, its stem, or the name of a set in the file."""
        kind, _, place = self.dataset.partition(":")
        if kind == "logits":
            path, chosen = split_address(place)
            return chosen or path.stem
        is_place = place and kind in ("npz", "folder", "text", "voc", "features")
        return Path(place).stem if is_place else self.dataset

    @property
    def protocol_name(self) -> str:
        """Return the protocol's name, even if some of its fields were changed."""
        return self.protocol if isinstance(self.protocol, str) else self.resolved_protocol.name

    @cached_property
    def resolved_protocol(self) -> Protocol:
        """Return the protocol with all its fields."""
        return NO_TRAINING if self.given else protocol_from(self.protocol)

    @property
    def split_spec(self) -> SplitSpec:
        """Return the search's split; its default validation share is the protocol's or data's."""
        fields = self.split.model_dump(exclude_none=True, exclude={"vary"})
        if self.split.validation is None:
            own = SOURCES.get(self.dataset.partition(":")[0]).validation
            share = self.resolved_protocol.validation
            fields["validation"] = own if share is None else share
        return SplitSpec(**fields)

    @property
    def varies(self) -> bool:
        """Return True if every seed of the sweep has its own split."""
        return self.given or self.split.vary

    def split_on(self, seed: int, whole: bool) -> SplitSpec:
        """Return the split for a seed of the sweep.

        For given logits, a seed draws the whole split if ``whole``, else only the rows for fitting.
        """
        split = self.split_spec
        if self.given and whole:
            return replace(split, seed=(split.seed << SEED_BITS) + seed)
        return replace(split, validation_seed=seed) if self.varies else split

    def data_name(self, seed: int) -> str:
        """Return the name, within a sweep, of the task's data for a seed."""
        return f"{self.id} {seed}" if self.varies else self.id  # Names of tasks have no spaces.


class RangeModel(_Strict):
    """A range that replaces the search space's; omitted fields keep the space's value."""

    low: float | None = None
    high: float | None = None
    scale: Literal["linear", "log"] | None = None
    choices: tuple[Value, ...] | None = Field(default=None, min_length=1, strict=False)

    def applied_to(self, parameter: Parameter) -> Parameter:
        """Return a parameter with this range; see ``narrow``."""
        return narrow(parameter, self.model_dump(exclude_none=True))


class SearchModel(_Strict):
    """The settings of the search, the same for every study.

    Attributes:
        trials: Number of trials per study; a study with fewer configurations runs each once.
        sampler: ``tpe``, ``random`` and ``gp`` are samplers of Optuna. ``prior`` starts with the
            published default and with configurations that did well on other tasks, continues with a
            Gaussian process, and uses TPE after 20 trials or with ``pareto``. ``grid`` tries all
            combinations of the ``choices`` in ``spaces``, leaves other parameters at their
            defaults, and ignores ``trials``.
        scheduler: ``asha`` stops weak trials of a study early. The result then depends on the order
            in which trials report, so two runs may differ.
        stop: ``auto`` ends a study before ``trials`` if the expected improvement is small against
            the noise of the validation rows; null runs all trials.
        objective: The validation metric to minimise.
        pareto: More validation metrics to optimise: Optuna searches for the Pareto front of these
            and the objective. Only the objective decides which trial is chosen.
        seed: Seed of all searches; null for the first of the sweep's ``seeds``. With a seed that is
            not in ``seeds``, tables show only runs that were not used for choosing.
        accuracy_tolerance: How far, as a fraction, validation accuracy may fall below that of plain
            cross-entropy or of the given logits. A further fall is added to the objective; null
            for no guard.
        accuracy_errors: Additional tolerance, in standard errors of the difference in accuracy
            (paired by validation row).
        keep_default: The published default is chosen unless the best trial's objective is lower by
            this many standard errors of the difference, paired by validation row; with 0 or false
            the lowest objective is chosen.
        parallel_trials: Number of trials of one study that are suggested without knowing each
            other's results. It limits how many run at once, and makes suggestions the same on any
            machine. With ``random`` or ``grid`` and no scheduler, at least 64 trials of a
            refinement or of ``ts``, ``cts`` or ``vs`` are suggested together.
        spaces: Ranges that replace the search spaces' ranges, by part and parameter.
        fixed: Values of parameters that are not searched, by part and parameter.
        tune: Names of searched parameters by part, such as the few that a paper tuned by hand. With
            budget ``equal``, only these and those in ``spaces`` are searched.
        budget: ``equal`` runs the same number of trials for every method. ``paper`` searches the
            parameters in ``spaces``, the parameters that the method's paper tuned on this data
            (over the paper's grid if it has one), and parameters that a paper used with this data
            and network without stating a value. All others have their published values. With
            ``tune``, it searches only those of the paper-tuned parameters that ``tune`` names.
    """

    trials: Count = 20
    budget: Literal["equal", "paper"] = "equal"
    sampler: Literal["tpe", "prior", "random", "gp", "grid"] = "tpe"
    scheduler: Literal["none", "asha"] = "none"
    stop: Literal["auto"] | None = None
    objective: Objective = "nll"
    pareto: Annotated[tuple[Reported, ...], Field(strict=False)] = ()
    seed: Seed | None = None
    accuracy_tolerance: Annotated[float, Field(ge=0, le=1)] | None = 0.01
    accuracy_errors: Errors = 0.0
    keep_default: Errors = 2.0
    parallel_trials: Count = 4
    spaces: dict[str, dict[str, RangeModel]] = {}
    fixed: dict[str, dict[str, Value]] = {}
    tune: dict[str, Annotated[tuple[str, ...], Field(strict=False)]] | None = None


class VariantModel(_Strict):
    """A part under another name with its own settings, such as one row of an ablation.

    Parameters in ``fixed`` have these values and are not searched.
    """

    of: str
    fixed: dict[str, Value] = {}


class StageResources(_Strict):
    """The resources of one trial; a fraction of a GPU lets several share it."""

    cpu: Count = 1
    gpu: Annotated[float, Field(ge=0)] = 0.0

    @field_validator("gpu")
    @classmethod
    def _check_gpu(cls, value: float) -> float:
        if value > 1:
            raise ValueError("a trial can use at most one GPU; give 1, or a fraction of it")
        return value


class TrainResources(StageResources):
    """The resources of one training.

    With several GPUs of one machine, one process per GPU trains on its part of every batch; ``cpu``
    is the total number of threads.

    Attributes:
        processes: Number of processes that train one network on CPUs.
        precision: Number format of networks; null for bfloat16 on GPUs and float32 on CPUs.
            bfloat16 is faster only on CPUs with matrix instructions for it.
    """

    processes: Count = 1
    precision: Literal["float32", "bfloat16"] | None = None

    @field_validator("gpu")
    @classmethod
    def _check_gpu(cls, value: float) -> float:
        if value > 1 and value % 1:
            raise ValueError("give a fraction of a GPU, or a whole number of them")
        return value

    @model_validator(mode="after")
    def _check_processes(self) -> TrainResources:
        if self.gpu and self.processes > 1:
            raise ValueError(
                f"processes={self.processes} is for CPUs; with GPUs there is one process per GPU"
            )
        return self

    @property
    def together(self) -> int:
        """Return the number of processes that train one network."""
        return max(self.processes, int(self.gpu))


class ResourcesModel(_Strict):
    """The resources of trials by stage, and the limit of concurrent trials.

    Attributes:
        concurrent: Maximum number of concurrent trials or evaluations; null for as many as fit.
        checkpoint_seconds: Seconds between checkpoints of a stage; null for no checkpoints.
        max_failures: How often a trial is restarted after its process died or hung, or its machine
            failed.
        hang_seconds: Seconds without progress after which a trial's process is killed; 0 for never,
            null for ten times the longest pause so far, and at least ten minutes.
        deterministic: Compute bitwise repeatable results on GPUs; slower.
        graph: Record training steps on GPUs as CUDA graphs and replay them.
        portable: Compute bitwise equal results on every x86-64 processor with AVX2, on one CPU
            thread in float32.
    """

    train: TrainResources = TrainResources()
    refine: StageResources = StageResources()
    calibrate: StageResources = StageResources()
    concurrent: Count | None = None
    checkpoint_seconds: Seconds | None = 20.0
    max_failures: CountOrZero = 3
    hang_seconds: Annotated[Seconds, AfterValidator(_check_hang_seconds)] | None = None
    deterministic: bool = False
    graph: bool = True
    portable: bool = False

    @model_validator(mode="after")
    def _check_portable(self) -> ResourcesModel:
        for stage in ("train", "refine", "calibrate") if self.portable else ():
            share = getattr(self, stage)
            if share.gpu or share.cpu > 1:
                raise ValueError(
                    f"portable needs one CPU thread per trial; use {stage}: {{cpu: 1}}"
                )
        if self.portable and self.train.precision == "bfloat16":
            raise ValueError("portable computes in float32; delete train.precision: bfloat16")
        return self

    @property
    def given(self) -> StageResources:
        """Return the resources for reading given logits: those of stage ``calibrate``."""
        return self.calibrate


class TrackingModel(_Strict):
    """The address of the tracker; null for a SQLite database inside the storage.

    ``model_dump`` removes logins (see ``redacted``), as its result is stored in plain files.
    """

    uri: Annotated[str, _checked(check_tracking_uri)] | None = Field(default=None, repr=False)

    @field_serializer("uri")
    def _without_secrets(self, value: str | None) -> str | None:
        return None if value is None else redacted(value)


class SweepSpec(_Strict):
    """A sweep: tasks x recipes with a budget.

    Attributes:
        name: Name of the sweep's folder and its MLflow experiment.
        plugins: Your own packages and files with parts, models, data sets, metrics and so on.
            Installed packages with an entry point in the group ``calsweep.plugins`` need not be
            listed.
        tasks: Data sets with networks and protocols.
        recipes: Methods to compare; wildcards are allowed.
        variants: Parts under other names, for use in recipes.
        search: Budget and rules of the search.
        seeds: Seeds of all chosen configurations; the search uses the first, or ``search.seed``.
        executor: ``ray`` (this machine or a cluster), ``local`` (processes of this machine, or the
            current one if only one trial may run at once), or one of a plugin.
        resources: Resources per trial.
        tags: Your own tags on every run of the sweep.
        tracking: Address of the tracking server.
        storage: Folder for artifacts, journal and the default tracking database, or its address in
            object storage, ``s3://BUCKET/PATH`` or ``gs://BUCKET/PATH``.
        data_root: Folder for downloaded data sets.
        keep: ``logits`` removes the weights of the trials that a study did not choose, as soon as
            the study has chosen; the published default keeps its weights.
    """

    name: Annotated[str, _checked(_check_name)]
    # Keep this before the fields that name parts: they are validated with these plugins loaded.
    plugins: Annotated[
        tuple[PluginModel, ...], BeforeValidator(read_plugins), Field(validate_default=True)
    ] = ()
    tasks: tuple[TaskSpec, ...] = Field(min_length=1, strict=False)
    recipes: tuple[str, ...] = Field(min_length=1, strict=False)
    variants: dict[str, VariantModel] = {}
    search: SearchModel = SearchModel()
    seeds: Annotated[tuple[Seed, ...], _checked(_check_seeds)] = Field(
        default=(0,), min_length=1, strict=False
    )
    executor: Annotated[str, _one_of(EXECUTORS.names)] = DEFAULT_EXECUTOR
    resources: ResourcesModel = ResourcesModel()
    tags: Annotated[dict[str, str], _checked(_check_tags)] = {}
    tracking: TrackingModel = TrackingModel()
    storage: Annotated[str, _checked(storage_folder)] = DEFAULT_STORAGE
    data_root: Annotated[str, _checked(partial(local_path, what="data_root"))] = "data"
    keep: Literal["all", "logits"] = "all"

    @field_validator("tasks", mode="before")
    @classmethod
    def _one_a_set(cls, tasks: Any) -> Any:
        """Replace a task for a folder or file with several sets of logits by one task per set."""
        if not isinstance(tasks, list | tuple):
            return tasks
        return [own for number, task in enumerate(tasks) for own in _sets_of(number, task)]

    @model_validator(mode="after")
    def _check_all(self) -> SweepSpec:
        _check_tasks(self.tasks, self.data_root)
        _check_variants(self.variants)
        _check_kinds(self)
        _check_search(self)
        EXECUTORS.get(self.executor).check(self)
        bucket = bucket_address(storage_folder(self.storage))
        if self.keep != "all" and bucket is not None:
            raise ValueError(f"keep: {self.keep} needs a storage that is a folder, not {bucket}")
        return self

    @cached_property
    def expanded(self) -> tuple[Recipe, ...]:
        """Return the recipes without wildcards, in the order of the sweep file."""
        variants = {name: v.of for name, v in self.variants.items()}
        return tuple(expand_recipes(self.recipes, variants, self.given))

    @property
    def given(self) -> bool:
        """Return True if the tasks are given logits."""
        return self.tasks[0].given

    @property
    def used_plugins(self) -> tuple[PluginModel, ...]:
        """Return the plugins in the sweep file, and installed plugins that the sweep uses.

        Plugins with a metric always count as used.
        """
        named = {plugin.code for plugin in self.plugins}
        used = {part for recipe in self.expanded for part in map(self.base, recipe.parts)}
        used |= {piece for part in used for split in splits(part) for piece in split}
        for task in self.tasks:
            used |= {task.model, *task.suites, *(name.partition("-")[0] for name in task.suites)}
            used |= {task.dataset.partition(":")[0], task.model.partition(":")[0] + ":"}
        chosen = EXECUTORS.get(self.executor), tracker_kind(self.tracking_uri)
        others = (
            PluginModel.of(plugin)
            for plugin in active_plugins()
            if plugin.code not in named
            and any(
                each.entry in chosen or each.name in used or each.catalogue is METRICS
                for each in plugin.additions
            )
        )
        return (*self.plugins, *others)

    @property
    def pinned(self) -> tuple[Pinned, ...]:
        """Return the plugins that workers import before they compute jobs."""
        return tuple(Pinned(plugin.path, plugin.code) for plugin in self.used_plugins)

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """Return the seeds of all runs, beginning with the seed of the search."""
        first = self.seeds[0] if self.search.seed is None else self.search.seed
        return (first, *(seed for seed in self.seeds if seed != first))

    def base(self, part: str) -> str:
        """Return the part on which a variant is based; other parts are returned unchanged."""
        return self.variants[part].of if part in self.variants else part

    def fixed(self, part: str) -> dict[str, Value]:
        """Return the fixed parameters of a part, with their values."""
        own = self.variants[part].fixed if part in self.variants else {}
        return {**own, **self.search.fixed.get(part, {})}

    @property
    def tracking_uri(self) -> str:
        """Return the tracker's address, by default a SQLite database inside the storage."""
        return self.tracking.uri or database_uri(storage_folder(self.storage))


def without_places(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain fields of a sweep without storage, data root and tracker address."""
    places = ("tracking", "storage", "data_root", "mirror")
    return {name: value for name, value in spec.items() if name not in places}


def _sets_of(number: int, task: Any) -> list[Any]:
    if not isinstance(task, dict) or not isinstance(path := task.get("logits"), str) or not path:
        return [task]
    if not split_address(path)[0].exists():  # Reported when the data are read.
        return [task]
    with naming(f"tasks[{number}].logits"):
        sets = logit_sets(path)
    if list(sets.values()) == [path]:
        return [task]
    prefix = f"{task['name']}/" if task.get("name") else ""
    return [
        {**task, "logits": address, "name": f"{prefix}{name}"} for name, address in sets.items()
    ]


def _check_tasks(tasks: tuple[TaskSpec, ...], root: str) -> None:
    seen: set[str] = set()
    for number, task in enumerate(tasks):
        where = f"tasks[{number}]"
        for key, check in (
            ("dataset", lambda task=task: find_reader(task.dataset, root, task.inputs).full_name()),
            ("protocol", lambda task=task: task.resolved_protocol),
            ("split", lambda task=task: task.split_spec),
            ("model", lambda task=task: _check_model(task)),
            ("suites", lambda task=task: check_suites(task.suites, root)),
        ):
            with naming(f"{where}.{key}"):
                check()
        if not TASK.fullmatch(task.id):
            raise InputError(
                f"{where}: task {task.id!r} cannot be a name; give it a `name` of letters, digits "
                "and ._:@+- in parts between slashes, each beginning with a letter or digit"
            )
        if task.id in seen:
            raise InputError(f"{where}: task {task.id!r} occurs twice; give one of them a `name`")
        seen.add(task.id)


def _check_kinds(spec: SweepSpec) -> None:
    """Check that networks, augmentations and parts of recipes fit the data of each task."""
    for number, task in enumerate(spec.tasks):
        if task.given != spec.given:  # No recipe is valid for both.
            raise InputError(
                f"tasks[{number}]: a sweep has tasks of logits or of data sets, not both"
            )
    parts = dict.fromkeys(part for recipe in spec.expanded for part in recipe.parts)
    for number, task in enumerate(spec.tasks):
        kind = find_reader(task.dataset, spec.data_root, task.inputs).kind
        if not task.given:
            _check_training(f"tasks[{number}]", task, kind)
            if spec.resources.portable and task.resolved_protocol.compile:
                raise InputError(
                    f"tasks[{number}].protocol: `compile: true` makes kernels only for this "
                    "processor; delete it, or set resources.portable to false"
                )
        head = not task.given and task.resolved_protocol.learns == "head"
        for part in parts:
            with naming(f"recipes: tasks[{number}] ({task.id})"):
                check_part(spec.base(part), spec.fixed(part), kind)
                if head and spec.base(part) in SCHEMES and SCHEMES.get(spec.base(part)).freezes:
                    raise InputError(f"{part!r} freezes weights itself; delete `learns: head`")


def _check_training(where: str, task: TaskSpec, kind: type[Inputs]) -> None:
    with naming(f"{where}.model"):
        check_takes(task.model, kind.seen_as)
    if task.resolved_protocol.learns == "head" and not begins_trained(task.model):
        raise InputError(
            f"{where}.protocol: `learns: head` needs a pretrained network, got "
            f"{task.model!r}; use timm:NAME{PRETRAINED}"
        )
    view = task.resolved_protocol.augmentation
    if view is not None and kind.views and view not in kind.views:
        raise InputError(
            f"{where}.protocol: augmentation {view!r} is not for {kind.kind}; "
            f"use one of: {', '.join(kind.views)}"
        )


def _check_model(task: TaskSpec) -> None:
    if task.given and (task.model, task.protocol) != (GIVEN, GIVEN):
        raise InputError(
            f"for logits, model and protocol must be {GIVEN!r}; write only logits: PATH"
        )
    if task.given and task.suites:
        raise InputError("suites need a network, and logits have none; delete `suites`")
    if not task.given:
        check_model(task.model)


def _check_variants(variants: Mapping[str, VariantModel]) -> None:
    for name, variant in variants.items():
        where = f"variants.{name}"
        if not PART.fullmatch(name):
            raise InputError(f"{where}: use only lower-case letters, digits and '-' in names")
        if is_part(name):
            raise InputError(f"{where}: {name!r} is the name of a part; use another name")
        if not is_part(variant.of):
            raise InputError(
                f"{where}.of: {variant.of!r} is not a method, refinement or calibrator"
                f"{near_parts(variant.of)}"
            )
        check_values(f"{where}.fixed", variant.of, variant.fixed)


def _check_search(spec: SweepSpec) -> None:
    parts = {part for recipe in spec.expanded for part in recipe.parts}
    spaces, fixed, tune = spec.search.spaces, spec.search.fixed, spec.search.tune or {}
    for section in ("spaces", "fixed", "tune"):
        for part, values in (getattr(spec.search, section) or {}).items():
            if part not in parts:
                listing = ", ".join(sorted(parts))
                raise InputError(
                    f"search.{section}: {part!r} is not part of any recipe; parts are: {listing}"
                )
            check_names(f"search.{section}.{part}", spec.base(part), values)
    for section, named in (("spaces", spaces), ("tune", tune)):
        for part, names in named.items():
            _check_variant_is_not_searched(f"search.{section}.{part}", spec.base(part), names)
    for part, ranges in spaces.items():
        _check_ranges(f"search.spaces.{part}", spec.base(part), ranges)
    for part, values in fixed.items():
        check_values(f"search.fixed.{part}", spec.base(part), values)
        known = spec.variants[part].fixed if part in spec.variants else {}
        for name in sorted({*values} & {*known}):
            if values[name] != known[name]:
                raise InputError(
                    f"search.fixed.{part}.{name}: expected {known[name]!r}, as in variants.{part}."
                    f"fixed, got {values[name]!r}; delete one of the two"
                )
    for part, names in tune.items():
        for name in sorted({*names} & {*spec.fixed(part)}):
            raise InputError(f"search.tune.{part}: {name!r} is also fixed; tune it or fix it")
    for part, ranges in spaces.items():
        for name in sorted({*ranges} & {*spec.fixed(part)}):
            own = name in fixed.get(part, {})
            place = f"search.fixed.{part}" if own else f"variants.{part}.fixed"
            raise InputError(
                f"search.spaces.{part}: {name!r} has a range here and one value in {place}; "
                "delete one of the two"
            )
    for part, names in tune.items() if spec.search.budget == "paper" else ():
        for name in (name for name in names if not parameters_of(spec.base(part))[name].tuned):
            raise InputError(
                f"search.tune.{part}: no paper tuned {name!r}, and budget `paper` searches only "
                "tuned parameters; give it a range in `spaces`"
            )
    metrics = (spec.search.objective, *spec.search.pareto)
    for name in spec.search.pareto:
        if metrics.count(name) > 1:
            raise InputError(
                f"search.pareto: {name!r} is the objective or occurs twice; delete it here"
            )
    if spec.search.pareto and spec.search.scheduler == "asha":
        raise InputError(
            "search.pareto: asha stops trials only by the objective; use `scheduler: none`"
        )
    required = {"sampler": "prior", "scheduler": "none", "pareto": ()}
    for name, value in required.items() if spec.search.stop else ():
        if (actual := getattr(spec.search, name)) != value:
            shown = actual if isinstance(actual, str) else ", ".join(actual)
            raise InputError(
                f"search.{name}: expected {value or 'no metric'} with `stop: auto`, got {shown}; "
                "change it or delete `stop`"
            )
    if spec.search.sampler == "grid":
        if spec.search.budget == "paper":
            raise InputError(
                "search.sampler: expected another sampler than `grid` with `budget: paper`, which "
                "searches ranges without `choices`; use `budget: equal` with `spaces`"
            )
        if tune:
            raise InputError(
                "search.tune: the grid sampler searches only parameters in `spaces`; delete `tune`"
            )
        for part, ranges in spaces.items():
            for name, change in ranges.items():
                if not change.choices:
                    where = f"search.spaces.{part}.{name}"
                    raise InputError(f"{where}: the grid sampler needs `choices`")


def _check_variant_is_not_searched(where: str, part: str, names: Collection[str]) -> None:
    """Raise ``InputError`` if ``variant`` is searched but sets defaults of other parameters."""
    of_variant = [name for name, p in parameters_of(part).items() if p.variants]
    if of_variant and "variant" in names:
        raise InputError(
            f"{where}: 'variant' sets the defaults of {', '.join(of_variant)} and cannot be "
            f"searched; add a row for each value under `variants`, such as {part}-paper: "
            f"{{of: {part}, fixed: {{variant: paper}}}}"
        )


def _check_ranges(where: str, part: str, ranges: Mapping[str, RangeModel]) -> None:
    known = parameters_of(part)
    for name, change in ranges.items():
        with naming(where):
            narrowed = change.applied_to(known[name])
        ends = [end for end in (change.low, change.high) if end is not None]
        for value in (*narrowed.choices, *ends):
            check_values(where, part, {name: value})


def load_sweep(path: str | Path, storage: str | None = None) -> SweepSpec:
    """Read and validate a sweep file; ``storage`` replaces the one in the file.

    Raises:
        InputError: If the file is missing or not valid; one line with file, key, value and the
            allowed values.
    """
    text, folder = read_document(Path(path), str(path)), Path(path).parent
    return parse_sweep(text, str(path), folder, storage)


def parse_sweep(
    text: str, where: str, folder: Path | str = ".", storage: str | None = None
) -> SweepSpec:
    """Read a sweep from the text of a sweep file; ``where`` is its name in messages.

    Paths of plugins are relative to ``folder``; ``storage`` replaces the one in the text.
    """
    document = read_mapping(text, where, *SWEEP)
    if storage is not None:
        document = {**document, "storage": storage}
    return validate(SweepSpec, document, where, {FOLDER: Path(folder).absolute()})
