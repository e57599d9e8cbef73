"""Settings of a replay: strategies of search, by name, and how their choices are judged."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from orchestrator.sweep.documents import read_document, validate
from orchestrator.sweep.spec import Count, SearchModel, SweepSpec
from trainables.common.errors import InputError
from trainables.common.yaml_text import read_mapping
from trainables.metrics import METRICS

if TYPE_CHECKING:
    Judge: TypeAlias = str
else:
    # Exclude objectives that are not measured on test data.
    _UNMEASURED = ("search", "rows")
    _JUDGES = [m.name for m in METRICS.values() if m.is_objective and m.source not in _UNMEASURED]
    Judge = Literal[tuple(_JUDGES)]
AS_RUN = "as run"
STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    AS_RUN: {},
    "random": {"sampler": "random"},
    "nll": {"objective": "nll"},
    "default kept": {"keep_default": 2.0},
}
"""The default strategies."""


class ReplaySettings(BaseModel):
    """A replay file; every key has a default.

    Attributes:
        searches: Number of simulated searches of each study by each strategy.
        resample: Whether each search draws validation rows with replacement.
        validation: Number of validation rows that each search draws instead, without replacement,
            from the validation and test rows together; choices are judged on the other rows.
        test: Whether test rows are used. If not, ``validation`` is required: choices are judged on
            the validation rows that the search has not drawn, and no test data is used.
        judge: Test metric by which choices are judged.
        budgets: Numbers of trials after which a search chooses. It also chooses after its last
            trial; larger budgets are ignored.
        recipes: Recipes whose studies are replayed; all with a search if empty.
        strategies: Maps a name to the keys of ``search:`` that differ from the sweep's.
        seed: Search number n (from 0) draws its validation rows with ``seed + n``, and adds this
            to the sweep's seed for its sampler.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    searches: Count = 20
    resample: bool = True
    validation: Count | None = None
    test: bool = True
    judge: Judge = "nll"
    budgets: Annotated[tuple[Count, ...], Field(strict=False)] = (1, 2, 5, 10, 20, 50)
    recipes: Annotated[tuple[str, ...], Field(strict=False)] = ()
    strategies: Annotated[dict[str, dict[str, Any]], Field(min_length=1)] = {
        name: dict(changes) for name, changes in STRATEGIES.items()
    }
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0

    @model_validator(mode="after")
    def _check_test(self) -> Self:
        if not self.test and self.validation is None:
            raise ValueError(
                "`test: false` needs `validation`, the number of rows for the search; the other "
                "validation rows score its choices"
            )
        return self

    @property
    def resampled(self) -> bool:
        """Return True if a search draws its validation rows with replacement."""
        return self.resample and self.validation is None

    @field_validator("strategies")
    @classmethod
    def _check_strategies(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name, changes in value.items():
            found = validate(SearchModel, changes, f"strategies.{name}")
            if found.scheduler != "none":
                raise InputError(
                    f"strategies.{name}: expected scheduler none, since a replay cannot stop "
                    f"trials early, got {found.scheduler}"
                )
        return value


def load_replay(path: str | Path) -> ReplaySettings:
    """Return the checked settings of a replay file."""
    where = str(path)
    text = read_document(Path(path), where)
    return validate(ReplaySettings, read_mapping(text, where, "a replay", "strategies"), where)


def changed(spec: SweepSpec, name: str, changes: Mapping[str, Any]) -> SweepSpec:
    """Return a sweep with the ``search:`` keys of a strategy."""
    document = spec.model_dump(mode="json", exclude_unset=True)
    document["search"] = {**document.get("search", {}), **changes}
    return validate(SweepSpec, document, f"strategies.{name}")
