"""Read the nightly file: a sweep of fixed configurations, limits, and report settings."""

import hashlib
import json
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from orchestrator.nightly.book import Book, BucketBook
from orchestrator.nightly.record import WHOLE_NIGHT, Row, Shape
from orchestrator.nightly.verdict.limits import Limits, StrictModel, measure_of
from orchestrator.storage.storage import Storage, SweepFolder
from orchestrator.sweep.documents import read_document, validate
from orchestrator.sweep.spec import SweepSpec, load_sweep, parse_sweep
from orchestrator.tables.columns import DEFAULT_METRICS
from trainables.common.errors import InputError
from trainables.common.paths import check_server, local_path
from trainables.common.yaml_text import read_mapping, write_mapping
from trainables.store.artifacts import stage_key

COSTS = ("images_per_second", "wall_seconds", "peak_memory")
"""Costs of every recipe, recorded in addition to the metrics in the nightly file."""


class ReportModel(StrictModel):
    """Where a night's verdict is reported, in addition to the folder of the night.

    Attributes:
        markdown, html, junit: Paths of the summary in Markdown, as a self-contained page, and as
            JUnit XML with one test case for each recipe and task, and one for the night. By
            default, ``report.md``, ``report.html`` and ``junit.xml`` in ``STORAGE/nightly/NAME``.
        webhook: http(s) address that receives a JSON object by POST.
        mail: Local command that reads the summary in Markdown from standard input, such as
            ``[mail, -s, "{subject}", team@example.org]``. It runs without a shell; the argument
            ``{subject}`` is replaced by the headline.
        when: When webhook and mail are used: ``alarm`` for alarms and nights that could not run,
            ``always`` for every night. The files are written for every night.
    """

    markdown: str | None = None
    html: str | None = None
    junit: str | None = None
    webhook: str | None = None
    mail: tuple[str, ...] = Field(default=(), strict=False)
    when: Literal["alarm", "always"] = "alarm"

    @field_validator("markdown", "html", "junit")
    @classmethod
    def _is_place(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None:
            local_path(value, f"report.{info.field_name}")
        return value

    @field_validator("webhook")
    @classmethod
    def _is_web(cls, value: str | None) -> str | None:
        if value is None:
            return None
        fits = value.isascii() and value.startswith(("http://", "https://")) and "@" not in value
        try:
            check_server("webhook", value, "")
        except InputError:
            fits = False
        if not fits:
            # The value is not shown: any part of it may be secret.
            raise InputError(
                "report.webhook: must be http://HOST[:PORT]/... or https://HOST[:PORT]/... with a "
                "port from 1 to 65535, without @ (write %40), spaces, or letters beyond ASCII"
            )
        return value


class GateModel(StrictModel):
    """How ``nightly gate`` runs the benchmark on a revision and on the working tree.

    Attributes:
        repository: Folder of the repository; by default the repository of the current folder.
        setup: Command that is run before each night, in its checked-out commit or in the working
            tree, such as ``[make, setup]``; it runs without a shell. If there is a ``.venv``
            afterwards, the night runs with the Python in it, so that a commit's own library
            versions are used. In all other cases the installed libraries are used.
    """

    repository: str | None = None
    setup: tuple[str, ...] = Field(default=(), strict=False)

    @property
    def place(self) -> Path | None:
        """Return the folder of the repository, if one is named."""
        return None if self.repository is None else local_path(self.repository, "repository")


class NightlyModel(StrictModel):
    """The keys of a nightly file.

    Attributes:
        sweep: Content of a sweep file, or its path relative to the nightly file.
        metrics: Test metrics that are judged, such as ``ece`` or ``cifar10-c/ece``.
        history: Largest number of earlier nights that a night is compared with.
        keep: Number of nights whose weights, logits and journals are kept. Older nights keep only
            record, verdict and summaries, as soon as the tracker has them.
    """

    sweep: dict[str, Any] | str
    limits: Limits = Limits()
    report: ReportModel = ReportModel()
    gate: GateModel = GateModel()
    metrics: tuple[str, ...] = Field(default=DEFAULT_METRICS, min_length=1, strict=False)
    history: Annotated[int, Field(ge=5, le=3650)] = 90
    keep: Annotated[int, Field(ge=1)] = 3

    @field_validator("metrics")
    @classmethod
    def _are_quality(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for metric in value:
            if measure_of(metric).family != "quality":
                raise ValueError(f"{metric!r} is always recorded; name quality metrics such as ece")
        return value


@dataclass(frozen=True)
class Nightly:
    """A validated nightly file and the sweep that every night computes."""

    path: Path
    model: NightlyModel
    sweep: SweepSpec

    @property
    def name(self) -> str:
        """Return the benchmark's name, which is the sweep's."""
        return self.sweep.name

    @property
    def folder(self) -> Path:
        """Return the folder of all nights, inside the sweep's storage or its local copy."""
        return Storage.of(self.sweep).nightly(self.name)

    def book(self, fresh: bool = True) -> Book:
        """Return the book of all nights; if ``fresh``, first update it from the bucket."""
        address = Storage.of(self.sweep).address
        if address is None:
            return Book(self.folder)
        book = BucketBook(self.folder, address)
        if fresh:
            book.fetch()
        return book

    def sweep_folder(self, night: str) -> SweepFolder:
        """Return the folder of a night's sweep; each night has its own storage."""
        return Storage(self.folder / "nights" / night).sweep(f"{self.name}-{night}")

    @property
    def shape(self) -> Shape:
        """Return the recipes, tasks, metrics and seeds that every night must have."""
        return Shape(
            recipes=tuple(recipe.name for recipe in self.sweep.expanded),
            tasks=tuple(task.id for task in self.sweep.tasks),
            metrics=(*self.model.metrics, *COSTS),
            seeds=self.sweep.seeds,
        )

    @property
    def fingerprint(self) -> str:
        """Return a hash (hex) of tasks, recipes, variants, search and code of plugins."""
        content = self.sweep.model_dump(mode="json")
        facts = {key: content[key] for key in ("tasks", "recipes", "variants", "search")}
        if plugins := self.sweep.used_plugins:
            facts["plugins"] = [plugin.code for plugin in plugins]
        return stage_key("nightly", **facts)[:12]

    @property
    def rows(self) -> dict[tuple[str, str], Row]:
        """Return the computation of each recipe on each task, and of the whole night."""
        content = self.sweep.model_dump(mode="json")
        # A night has one trial per study, so `spaces` and `stop` have no effect (older records lack
        # `stop`); what `fixed` sets is in `parts`.
        unused = ("spaces", "fixed", "stop")
        search = {k: v for k, v in content["search"].items() if k not in unused}
        rows = {}
        for recipe, task in product(self.sweep.expanded, self.sweep.tasks):
            parts = {part: [self.sweep.base(part), self.sweep.fixed(part)] for part in recipe.parts}
            definition = _digest(task.model_dump(mode="json"), parts, search)
            rows[recipe.name, task.id] = Row(recipe.stage, definition)
        whole = _digest([row.definition for row in rows.values()], content["seeds"])
        return {**rows, WHOLE_NIGHT: Row("", whole)}


def _digest(*content: Any) -> str:
    """Return a hash (hex) of plain values that is the same in all versions of calsweep."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def benchmark_file() -> Path:
    """Return the nightly file that ships with the package."""
    return Path(__file__).with_name("nightly.yaml")


def load_nightly(path: str | Path) -> Nightly:
    """Read a nightly file."""
    path = local_path(path, "nightly file")
    document = read_mapping(read_document(path, str(path)), str(path), "a nightly file", "sweep")
    model = validate(NightlyModel, document, str(path))
    if isinstance(model.sweep, str):
        sweep = load_sweep(path.parent / model.sweep)
    else:
        text = write_mapping(model.sweep)
        sweep = parse_sweep(text, f"{path}: sweep", path.parent)
    if sweep.search.trials != 1 or sweep.search.sampler == "grid":
        raise InputError(
            f"{path}: sweep.search: a night compares fixed configurations, so expected `trials: 1` "
            f"and a sampler other than grid, got trials {sweep.search.trials}, sampler "
            f"{sweep.search.sampler}; write values other than the published ones in search.fixed"
        )
    return Nightly(path, model, sweep)
