"""Sweeps from Python, for example in a notebook: ``sweep(...).run().table()``."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.sweep.documents import validate
from orchestrator.sweep.plugins import FOLDER
from orchestrator.sweep.spec import SweepSpec
from trainables.common.errors import InputError, known_names
from trainables.common.words import many

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.storage.ledger import Ledger
    from orchestrator.storage.storage import SweepFolder
    from orchestrator.tables.table import ComparisonTable
    from orchestrator.tracking import BestConfig


def sweep(
    tasks: Sequence[Mapping[str, Any]],
    recipes: Sequence[str],
    *,
    trials: int | None = None,
    seeds: Sequence[int] = (0,),
    name: str = "",
    **settings: Any,
) -> Sweep:
    """Describe a sweep; ``run()`` computes it.

    Args:
        tasks: The tasks to train on, such as
            ``[{"dataset": "digits", "model": "convnet", "protocol": "digits"}]``.
        recipes: The recipes to compare, such as ``["ce", "mbls", "*+ts"]``.
        trials: Trials per study; by default ``trials`` of ``search``, or else its default.
        seeds: The search uses the first seed unless ``search`` has a ``seed``; chosen
            configurations run with all of them.
        name: The name of the sweep's folder. By default it is derived from the other arguments, so
            that the same call resumes the same sweep.
        **settings: Other keys of a sweep file, such as ``search``, ``storage`` and ``resources``.

    Raises:
        InputError: If a value is not allowed; the message has the key, the value and the remedy.
    """
    search = {**settings.pop("search", {}), **({} if trials is None else {"trials": trials})}
    given = {"tasks": list(tasks), "recipes": list(recipes), "seeds": list(seeds)}
    document = {**given, "search": search, **settings}
    digest = hashlib.sha256(json.dumps(document, sort_keys=True, default=str).encode())
    document["name"] = name or f"sweep-{digest.hexdigest()[:8]}"
    return Sweep(validate(SweepSpec, document, "sweep(...)", {FOLDER: Path.cwd()}))


@dataclass(frozen=True)
class Sweep:
    """A checked sweep; ``Sweep(load_sweep("sweep.yaml"))`` reads it from a file."""

    spec: SweepSpec

    def run(
        self, *, progress: bool = True, fresh: bool = False, address: str | None = None
    ) -> SweepResult:
        """Run the sweep, or resume it where it was interrupted.

        Args:
            progress: Whether to show progress on standard error.
            fresh: Start over under the next free name instead of resuming.
            address: A Ray cluster to join; None for this machine.

        Raises:
            InputError: See ``run_sweep``.
        """
        from rich.console import Console

        from orchestrator.running.run import run_sweep

        console = Console(stderr=True) if progress else None
        outcome = run_sweep(self.spec, fresh=fresh, address=address, console=console)
        if not outcome.tracked:
            fault = f": {outcome.fault}" if outcome.fault else ""
            warnings.warn(f"not every run has reached the tracker{fault}", stacklevel=2)
        return SweepResult(outcome.spec)

    def __repr__(self) -> str:
        spec = self.spec
        tasks = ", ".join(task.id for task in spec.tasks)
        recipes = ", ".join(recipe.name for recipe in spec.expanded)
        budget = f"{many(spec.search.trials, 'trial')} per study, {many(len(spec.seeds), 'seed')}"
        return f"sweep {spec.name!r} on {tasks}: {recipes}; {budget}"


@dataclass(frozen=True)
class SweepResult:
    """The stored results of a sweep: its table, best configurations, trials and predictions."""

    spec: SweepSpec

    @cached_property
    def _folder(self) -> SweepFolder:
        from orchestrator.storage.storage import SweepFolder

        return SweepFolder.of(self.spec)

    @cached_property
    def _ledger(self) -> Ledger:
        from orchestrator.storage.ledger import read_ledger

        return read_ledger(self._folder.journal)

    @property
    def status(self) -> str:
        """Return ``finished``, ``failed`` (a study has no finished trial) or ``interrupted``.

        It is ``running`` before the sweep ends, or if it was killed.
        """
        return self._ledger.status

    def table(self, **options: Any) -> ComparisonTable:
        """Return the comparison table; ``options`` are the fields of ``TableOptions``.

        Raises:
            InputError: If an option names something unknown, such as a metric; the message lists
                the known ones.
        """
        from orchestrator.storage.status import current_results
        from orchestrator.tables.make import TableOptions, make_table
        from orchestrator.tracking import delivered_runs

        runs = delivered_runs(self._folder.journal)
        return make_table(
            current_results(self._folder, self._ledger, runs), TableOptions(**options)
        )

    def best(self, recipe: str, task: str | None = None) -> BestConfig:
        """Return the configuration that the search of a recipe chose.

        Args:
            recipe: The recipe, such as ``mbls+ts``.
            task: The task; it may be left out if the sweep has only one.

        Raises:
            InputError: If the recipe or task is unknown, the task is missing although the sweep has
                several, or no trial has finished.
        """
        from orchestrator.tracking import best_config

        tasks = [each.id for each in self.spec.tasks]
        if task is None and len(tasks) > 1:
            raise InputError(f"best({recipe!r}): name a task; {known_names('', tasks)}")
        uri, name = self.spec.tracking_uri, self.spec.name
        found = best_config(task or tasks[0], recipe, tracking_uri=uri, sweep=name)
        if not found:
            raise InputError(f"best({recipe!r}): no trial has finished")
        return found[0]

    def trials(self) -> pd.DataFrame:
        """Return one row per trial, similar to Optuna's ``trials_dataframe``.

        Columns ``params_PART.NAME`` hold the configuration, ``val_NAME`` the validation metrics.
        """
        import pandas as pd

        from orchestrator.packages.frames import trial_line
        from orchestrator.packages.package import Cell

        lines = []
        for study in self._ledger.studies.values():
            for trial in study.begun.values():
                line = {**trial_line(Cell(self.spec.name, study, trial)), "seconds": trial.seconds}
                del line["configuration"]
                parts = trial.configuration.items()
                line |= {f"params_{part}.{k}": v for part, own in parts for k, v in own.items()}
                lines.append(line)
        frame = pd.DataFrame.from_records(lines)
        first = ("task", "recipe", "number", "role", "seed", "status", "objective", "chosen")
        return frame[[*first, *(name for name in frame.columns if name not in first)]]

    def predictions(
        self, task: str | None = None, recipe: str | None = None, seed: int | None = None
    ) -> pd.DataFrame:
        """Return the label, the prediction and confidences of each test row.

        ``task``, ``recipe`` and ``seed`` select results; None selects all.

        Raises:
            InputError: If no such result exists, or its predictions were removed or are of pixels.
        """
        import pyarrow as pa

        from orchestrator.packages.frames import prediction_rows
        from orchestrator.packages.stored import StoredSweep

        stored = StoredSweep.open(self._folder.storage, self.spec.name)
        cells = stored.cells(task, recipe, seed)
        return pa.concat_tables(
            [prediction_rows(stored.tested(*cell)) for cell in cells]
        ).to_pandas()

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report as one HTML page, by default in the sweep's folder; return its path.

        Raises:
            InputError: If the file cannot be written.
        """
        from orchestrator.view import from_folder, write_report

        self._folder.fetch(files=True)
        return write_report(from_folder(self._folder), Path(path or self._folder.report))

    def __repr__(self) -> str:
        return f"sweep {self.spec.name!r}: {self.status}\n{self.table()!r}"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()
