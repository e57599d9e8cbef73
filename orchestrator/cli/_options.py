"""Options shared by several sub-commands, and rules about their combinations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer
from typer.core import TyperCommand

from trainables.common.errors import InputError
from trainables.common.paths import DEFAULT_STORAGE, local_path, require_writable

if TYPE_CHECKING:
    from orchestrator.storage.results import StudyResult


Address = Annotated[
    str | None, typer.Option(help="A Ray cluster: auto or HOST:PORT; default: this machine.")
]
Bins = Annotated[int, typer.Option(min=1, max=10**6, help="Equal-width bins of the ECE.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan only.")]
Fresh = Annotated[
    bool, typer.Option(help="Start over under the next free name, keeping the old results.")
]
Json = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Kind = Annotated[
    str | None,
    typer.Option(help="Content of the file: logits or probs; default: from the array's name."),
]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin", help="Your file or package; installed plugins are loaded automatically."
    ),
]
Processes = Annotated[int | None, typer.Option(min=1, help="Processes; default: one per core.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
StorageFolder = Annotated[str, typer.Option(help="Storage folder.")]
DataRoot = Annotated[str, typer.Option(help="Folder of downloaded data sets.")]
Tolerance = Annotated[
    float, typer.Option(min=0.0, help="Largest difference at which figures count as equal.")
]
SweepFile = Annotated[Path, typer.Argument(help="The sweep file.", show_default=False)]
SweepName = Annotated[
    str, typer.Argument(help="The sweep's name.", autocompletion=lambda: _sweeps_here())
]
SweepStorage = Annotated[
    str | None, typer.Option(help="The storage to use, instead of the sweep file's.")
]
Sweeps = Annotated[
    list[str] | None,
    typer.Argument(
        help="Names of sweeps; demo if none is given.", autocompletion=lambda: _sweeps_here()
    ),
]
Take = Annotated[bool, typer.Option("--take", help="Even if the sweep is another user's.")]
TextFormat = Annotated[Literal["terminal", "markdown", "csv"], typer.Option(help="Output format.")]
TrackingUri = Annotated[
    str | None,
    typer.Option(
        help="MLflow URI; default: MLFLOW_TRACKING_URI, the sweep's, or the storage's database."
    ),
]


WRITTEN = ("--out", "--report", "--folder", "--diagram", "--plots")  # Options with output paths.


def use_paths(parameters: Iterable[Any], values: dict[str, Any]) -> None:
    """Expand ``~`` in a command's paths, and check that its output paths are writable."""
    for parameter in parameters:
        value = values.get(parameter.name)
        option = parameter.opts[0]
        if isinstance(value, list | tuple):
            values[parameter.name] = [_expanded(one, option) for one in value]
        else:
            values[parameter.name] = _expanded(value, option)
        if option in WRITTEN and isinstance(value, Path):
            require_writable(values[parameter.name], option)


def _expanded(value: Any, option: str) -> Any:
    """Expand ``~`` in a path; return other values unchanged."""
    if isinstance(value, Path) and str(value).startswith("~"):
        return local_path(value, option)
    return value


def _sweeps_here() -> list[str]:
    """Return the sweeps in the default storage, for shell completion."""
    return sorted(file.parent.name for file in Path(DEFAULT_STORAGE).glob("sweeps/*/sweep.yaml"))


def use_plugins(named: list[str] | None) -> None:
    """Register everything that these plugins and the installed ones define."""
    from trainables.plugins import load_plugins  # It imports PyTorch.

    load_plugins(named or (), installed=True)


def split_names(text: str) -> list[str]:
    """Return the names in a list separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def use_metrics(results: Iterable[StudyResult], metrics: Iterable[str], storage: str) -> None:
    """Load the plugins of the results' sweeps if a metric needs their code."""
    from orchestrator.storage.provenance import load_metric_plugins
    from orchestrator.storage.storage import Storage

    load_metric_plugins(Storage(storage), dict.fromkeys(r.sweep for r in results), metrics)


def use_columns(
    results: list[StudyResult], metrics: Iterable[str], storage: str
) -> list[StudyResult]:
    """Return the results with the values of ``metrics`` that are only computed on request."""
    from trainables.metrics import METRICS

    if not (columns := METRICS.columns(metrics)):
        return results
    from orchestrator.cli._console import complain
    from orchestrator.statistics import with_columns
    from orchestrator.storage.storage import Storage

    store = Storage(storage).store()
    return with_columns(results, columns, store, lambda text: complain(f"note: {text}"))


def tracked_results(
    sweeps: Iterable[str], tracking_uri: str | None, storage: str
) -> list[list[StudyResult]]:
    """Return each sweep's results from its journal in the storage.

    They come from the tracker if ``tracking_uri`` is given or the storage has no such journal.
    """
    from orchestrator.tracking import storage_uri, study_results

    names = list(dict.fromkeys(sweeps))
    found = {} if tracking_uri else journal_results(names, storage)
    absent = [name for name in names if name not in found]
    if absent:
        uri = tracking_uri or storage_uri(storage, absent)
        found |= {name: study_results(uri, name) for name in absent}
    return [found[name] for name in names]


def journal_results(names: list[str], storage: str) -> dict[str, list[StudyResult]]:
    """Return ``{sweep: results}`` for the named sweeps with a journal in the storage."""
    from orchestrator.storage.ledger import read_ledger
    from orchestrator.storage.status import current_results
    from orchestrator.storage.storage import Storage
    from orchestrator.sweep.names import is_sweep_name
    from orchestrator.tracking import delivered_runs

    found = {}
    for folder in (Storage(storage).sweep(name) for name in names if is_sweep_name(name)):
        folder.fetch()
        if folder.journal.is_file():
            runs = delivered_runs(folder.journal)
            found[folder.name] = current_results(folder, read_ledger(folder.journal), runs)
    return found


class Rule(NamedTuple):
    """``option`` excludes ``others`` if all of ``when`` and none of ``unless`` are given."""

    option: str
    others: str
    why: str
    unless: str = ""
    when: str = ""


PRINTS = Rule("--json", "--format", "--json is a format")
ASKS = "runs are read from only one place"
EXCLUDED: Mapping[str, tuple[Rule, ...]] = {
    "run": (
        Rule("--dry-run", "--fresh --address --quiet --take", "a dry run only shows the plan"),
        Rule("--resume", "--fresh", "--fresh starts over instead of resuming"),
        Rule(
            "--reproduce",
            "--resume --dry-run --fresh --address --take",
            "one run is computed again in this process",
        ),
        Rule("--tracking-uri", "--storage", ASKS),
    ),
    "submit": (Rule("--slurm", "--address --wait", "follow a SLURM job with `calsweep status`"),),
    "table": (PRINTS,),
    "best": (
        PRINTS,
        Rule("--out", "--format --json", "--out writes YAML and JSON"),
        Rule("--tracking-uri", "--storage", ASKS, "--promote"),
    ),
    "compare": (
        PRINTS,
        Rule(
            "--ranks",
            "--claims --task --baseline --draws --seed --over-seeds --format",
            "all recipes are ranked over all tasks, using stored figures",
        ),
        Rule(
            "--claims",
            "--task --baseline --metric --over-seeds",
            "a claim has its own recipes, tasks and metric",
        ),
        Rule("--tracking-uri", "--storage", ASKS, when="--ranks"),
        Rule(
            "--question",
            "--ranks --claims --baseline --over-seeds",
            "a question is about all recipes of a task",
        ),
    ),
    "package publish": (
        Rule("--to", "--out --logits", "a repository always has what `package verify` needs"),
    ),
    "doctor": (Rule("--plugin", "--storage --data-root", "only the plugin is checked"),),
    "list": (Rule("--storage", "--plugin", "plugins have no sweeps"),),
}
NEEDED: Mapping[str, Mapping[str, str]] = {
    "submit": {
        "--slurm": (
            "--nodes --gpus-per-node --slurm-array --time --cpus-per-task --partition --account "
            "--dry-run"
        )
    },
    "plan": {"--nodes": "--gpus-per-node --cpus-per-node"},
    "run": {"--reproduce": "--tolerance --data-root --tracking-uri"},
    "compare": {"--ranks": "--control --out", "--claims": "--claim"},
}


class Command(TyperCommand):
    """A command that first checks the combination of its options."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        name = " ".join(ctx.command_path.split()[1:])
        given = {
            parameter.opts[0]
            for parameter in self.params
            if parameter.name and ctx.get_parameter_source(parameter.name).name == "COMMANDLINE"
        }
        for problem in problems(name, given):
            raise InputError(problem)
        use_paths(self.params, ctx.params)
        return super().invoke(ctx)


def problems(command: str, given: set[str]) -> Iterator[str]:
    """Yield a line for each given option that excludes another one or lacks a required one."""
    for rule in EXCLUDED.get(command, ()):
        if {rule.option, *rule.when.split()} <= given and not given & {*rule.unless.split()}:
            for other in rule.others.split():
                if other in given:
                    yield f"{rule.option} and {other} exclude each other: {rule.why}"
    for needed, options in NEEDED.get(command, {}).items():
        for option in options.split():
            if option in given and needed not in given:
                yield f"{option} has no effect without {needed}: add {needed} or leave it out"
