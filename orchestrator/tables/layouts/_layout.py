"""The layout file: its fields, and how it is found and read."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from orchestrator.sweep.documents import read_document, validate
from orchestrator.tables.columns import column
from orchestrator.tables.published import load_published
from trainables.common.errors import InputError, known_names, listed_by
from trainables.common.paths import local_path
from trainables.common.yaml_text import read_mapping

FOLDER = files("orchestrator.tables.layouts")
ENDING = ".yaml"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class LayoutRow(_Strict):
    """One row; in a file, a string is short for ``recipe``.

    Attributes:
        mean: Recipes whose mean the row shows, instead of ``recipe``.
        label: Name of the row; by default the recipe.
        baseline: Label of the row to compare with, or empty.
        published: The row's name in the published table, if it does not follow from the recipe:
            ``method``, ``stage2``, ``posthoc``, and the beginning of the ``note``.
    """

    recipe: str = ""
    mean: tuple[str, ...] = Field(default=(), strict=False)
    label: str = ""
    baseline: str = ""
    published: dict[str, str] = {}

    @model_validator(mode="after")
    def _check(self) -> LayoutRow:
        if bool(self.recipe) == bool(self.mean):
            raise ValueError("a row has either a recipe or a mean of recipes")
        if self.mean and not self.label:
            raise ValueError("a mean of recipes needs a label")
        if set(self.published) - {"method", "stage2", "posthoc", "note"}:
            raise ValueError("published has the keys method, stage2, posthoc and note")
        return self

    @property
    def name(self) -> str:
        """Return the label, or else the recipe."""
        return self.label or self.recipe

    @property
    def recipes(self) -> tuple[str, ...]:
        """Return the recipe, or the recipes of the mean."""
        return self.mean or (self.recipe,)


class NotOffered(_Strict):
    """A part of a published table that this package lacks, by its published name, and why."""

    what: str
    reason: str


def _row(value: Any) -> Any:
    return {"recipe": value} if isinstance(value, str) else value


def _names(value: Any) -> Any:
    return {name: name for name in value} if isinstance(value, list) else value


Strings = Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
OneOrMore = str | Strings
Models = Annotated[dict[str, OneOrMore], BeforeValidator(_names), Field(min_length=1)]


class Layout(_Strict):
    """Rows and columns of a table.

    Attributes:
        table: Name of the table in the paper, such as ``Table 1``.
        metrics: The metrics of each data set and model.
        columns: Maps a published data set to its models, or to a mapping of published to our names
            of models. Several of our models are shown as their mean; ``logits:NAME`` is a file of
            logits. By default, columns are the tasks of the sweep.
        datasets: Maps published names of data sets to ours, where they differ.
        suite_metrics: Whether the table shows each metric's mean over suites.
        suites: Maps a published data set to the suites in this mean; by default all ``ood-NAME``.
        incomparable: Maps a published data set or model (or ``all``) to the reason why its figures
            are never shown next to ours.
        not_offered: Parts of the published table that this package lacks.
    """

    title: str
    paper: str = ""
    table: str = ""
    metrics: tuple[str, ...] = Field(min_length=1, strict=False)
    rows: tuple[Annotated[LayoutRow, BeforeValidator(_row)], ...] = Field(
        min_length=1, strict=False
    )
    columns: dict[str, Models] = {}
    datasets: dict[str, str] = {}
    suites: dict[str, Strings] = {}
    suite_metrics: bool = False
    incomparable: dict[str, str] = {}
    not_offered: tuple[NotOffered, ...] = Field(default=(), strict=False)
    note: str = ""
    name: Annotated[str, Field(exclude=True)] = ""

    @model_validator(mode="after")
    def _check(self) -> Layout:
        for metric in self.metrics:
            column(metric)
        labels = [row.name for row in self.rows]
        for label in labels:
            if labels.count(label) > 1:
                raise InputError(f"rows: {label!r} is there twice; give each row its own label")
        for row in self.rows:
            if row.baseline and row.baseline not in labels:
                listing = ", ".join(labels)
                raise InputError(
                    f"rows: baseline of {row.name!r}: no row is named {row.baseline!r}; rows are "
                    f"{listing}"
                )
        self._check_source()
        return self

    def _check_source(self) -> None:
        if not self.paper and not self.table:
            return
        known = load_published("results")[["paper", "table"]].drop_duplicates()
        pairs = list(known.itertuples(index=False, name=None))
        if (self.paper, self.table) not in pairs:
            listing = ", ".join(f"{paper} {table}" for paper, table in pairs)
            raise InputError(
                f"paper, table: expected a published table, got {self.paper!r} {self.table!r}; "
                f"use {listing}"
            )


def layout_names() -> list[str]:
    """Return the names of the package's own layouts, such as ``macal/table1``."""
    return sorted(
        f"{folder.name}/{entry.name.removesuffix(ENDING)}"
        for folder in FOLDER.iterdir()
        if folder.is_dir()
        for entry in folder.iterdir()
        if entry.name.endswith(ENDING)
    )


def load_layout(name: str) -> Layout:
    """Read a layout: one of ``layout_names``, or the path of a YAML file."""
    shipped = name in layout_names()
    if not shipped and not name.endswith((ENDING, ".yml")):
        there = known_names(name, layout_names())
        raise InputError(f"unknown layout {name!r}; {there}, or PATH.yaml; {listed_by('layouts')}")
    where = f"layout {name}"
    path: Traversable = FOLDER / f"{name}{ENDING}" if shipped else local_path(name, where)
    text = read_document(path, where)
    document = read_mapping(text, where, "a layout", "title, metrics and rows")
    return validate(Layout, {**document, "name": name}, where)
