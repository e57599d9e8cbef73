"""``calsweep demo``, ``run`` and ``submit``: what computes sweeps."""

import shlex
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from orchestrator.cli._options import Address, DryRun, Fresh, Quiet, SweepFile, Take, split_names
from orchestrator.cli._plan import show_plan
from trainables.common.errors import InputError
from trainables.common.paths import DEFAULT_STORAGE

if TYPE_CHECKING:
    from orchestrator.cluster.slurm import Allocation
    from orchestrator.sweep.spec import SweepSpec

DEMO = "demo.yaml"
SLURM_TIME = "8:00:00"


def demo(
    tasks: Annotated[
        str | None, typer.Option(help="dataset/model/protocol, several separated by commas.")
    ] = None,
    recipes: Annotated[str | None, typer.Option(help="Recipes, separated by commas.")] = None,
    trials: Annotated[int | None, typer.Option(help="Trials of each study.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, separated by commas.")] = None,
    storage: Annotated[
        str | None, typer.Option(help="Folder for everything that the demo writes.")
    ] = None,
    fresh: Fresh = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> int:
    """Sweep 24 recipes on noisy handwritten digits of scikit-learn, in 40 seconds on two cores."""
    text = (files("orchestrator") / "examples" / DEMO).read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    chosen = any(choice is not None for choice in (tasks, recipes, trials, seeds))
    if not chosen and not dry_run:  # What is chosen may be wrong, and then nothing starts.
        _start_early(document)
    from orchestrator.cli._outcome import run_and_show
    from orchestrator.sweep.spec import parse_sweep
    from trainables.common.yaml_text import write_mapping
    from trainables.store.artifacts import stage_key

    if tasks is not None:
        document["tasks"] = [_task(text) for text in _items("--tasks", tasks)]
    if recipes is not None:
        document["recipes"] = _items("--recipes", recipes)
    if trials is not None:
        document["search"]["trials"] = trials
    if seeds is not None:
        document["seeds"] = [_whole("--seeds", item) for item in _items("--seeds", seeds)]
    if storage is not None:
        document["storage"] = storage
    if chosen:
        # The demo as shipped keeps its name: another selection is another sweep.
        content = {key: document[key] for key in ("tasks", "recipes", "search", "seeds")}
        document["name"] = f"demo-{stage_key('demo', **content)[:8]}"
        _drop_foreign_parts(document)
    spec = parse_sweep(write_mapping(document), "demo")
    if dry_run:
        show_plan(spec)
        return 0
    return run_and_show(spec, fresh=fresh, quiet=quiet)


def _items(option: str, text: str) -> list[str]:
    items = split_names(text)
    if not items:
        raise InputError(f"{option}: {text!r} names nothing")
    return items


def _whole(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise InputError(f"{option}: {text!r} is not a whole number") from error


def _task(text: str) -> dict[str, Any]:
    """Read ``dataset/model/protocol``; the data set may be a path with slashes of its own."""
    pieces = text.rsplit("/", 2)
    if len(pieces) == 3 and pieces[2].replace(".", "", 1).isdigit():
        # A short form such as mukhoti2020/0.1: the protocol itself holds a slash.
        pieces = text.rsplit("/", 3)
        pieces = [*pieces[:2], "/".join(pieces[2:])]
    if len(pieces) != 3 or not all(pieces):
        raise InputError(f"--tasks: {text!r} is not dataset/model/protocol")
    dataset, model, protocol = pieces
    return {"dataset": dataset, "model": model, "protocol": protocol}


def _drop_foreign_parts(document: dict[str, Any]) -> None:
    """Leave out settings of parts that the chosen recipes do not have."""
    from orchestrator.sweep.recipes import expand_recipes

    parts = {part for r in expand_recipes(document["recipes"]) for part in r.name.split("+")}
    for section in ("fixed", "spaces"):
        chosen = document["search"].get(section, {})
        document["search"][section] = {k: v for k, v in chosen.items() if k in parts}


def run(
    sweep: Annotated[str | None, typer.Argument(help="The sweep file.", show_default=False)] = None,
    resume: Annotated[
        str | None, typer.Option(help="Name of a sweep to resume; needs no sweep file.")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(help="The storage, instead of the file's; with --resume where the sweep is."),
    ] = None,
    dry_run: DryRun = False,
    fresh: Fresh = False,
    address: Address = None,
    quiet: Quiet = False,
    take: Take = False,
) -> int:
    """Run a sweep file, or resume a sweep that was interrupted."""
    if sweep is not None and resume is None and not dry_run:
        from orchestrator.sweep.documents import SWEEP, read_document
        from trainables.common.yaml_text import read_mapping

        _start_early(read_mapping(read_document(Path(sweep), sweep), sweep, *SWEEP))
    from orchestrator.cli._outcome import run_and_show
    from orchestrator.storage.storage import Storage
    from orchestrator.sweep.spec import load_sweep

    if (sweep is None) == (resume is None):
        raise InputError("give either a sweep file or --resume NAME")
    if resume is not None:
        spec = Storage(storage or DEFAULT_STORAGE).load_spec(resume)
    else:
        spec = load_sweep(str(sweep), storage)
    if dry_run:
        show_plan(spec)
        return 0
    return run_and_show(spec, resume is not None, fresh, address, quiet, take)


def _start_early(document: Mapping[str, Any]) -> None:
    """Start the executor's processes now: they import PyTorch while this process imports it."""
    from orchestrator.sweep.executors import DEFAULT_EXECUTOR, EXECUTORS

    executor, resources = document.get("executor", DEFAULT_EXECUTOR), document.get("resources")
    if executor in EXECUTORS.own_names():
        most = resources.get("concurrent") if isinstance(resources, dict) else None
        EXECUTORS[executor].start_early(most)


def submit(
    sweep: SweepFile,
    address: Annotated[
        str, typer.Option(help="The cluster's dashboard.")
    ] = "http://127.0.0.1:8265",
    wait: Annotated[bool, typer.Option("--wait", help="Show its output until it ends.")] = False,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="As a job of SLURM with a Ray cluster of its own.")
    ] = False,
    nodes: Annotated[int, typer.Option(min=1, help="With --slurm: nodes.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=0, help="With --slurm: GPUs of each.")] = 0,
    slurm_array: Annotated[
        int, typer.Option(min=0, help="With --slurm: further nodes that come and go, a job each.")
    ] = 0,
    time: Annotated[
        str, typer.Option(help="With --slurm: its limit; the job is queued again after it.")
    ] = SLURM_TIME,
    cpus_per_task: Annotated[
        int, typer.Option(min=0, help="With --slurm: CPUs of each node; 0: all of them.")
    ] = 0,
    partition: Annotated[
        str | None, typer.Option(help="With --slurm: its partition.", show_default=False)
    ] = None,
    account: Annotated[
        str | None, typer.Option(help="With --slurm: the account that pays.", show_default=False)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --slurm: print the script; submit nothing.")
    ] = False,
) -> int:
    """Run a sweep file on a cluster as a job, which keeps running when this machine is away."""
    from orchestrator.cluster.slurm import Allocation
    from orchestrator.sweep.spec import load_sweep

    wanted = Allocation(nodes, gpus_per_node, time, slurm_array, cpus_per_task, partition, account)
    spec = load_sweep(sweep)
    if slurm:
        _submit_to_slurm(sweep, spec, wanted, dry_run)
        return 0
    from orchestrator.cluster.jobs import follow
    from orchestrator.cluster.jobs import submit as start

    client, job = start(sweep, spec, address)
    typer.echo(f"job {job}; its output: ray job logs {job} --follow --address {address}")
    if not wait:
        return 0
    return follow(client, job, lambda text: typer.echo(text, nl=False))


def _submit_to_slurm(sweep: Path, spec: "SweepSpec", wanted: "Allocation", dry_run: bool) -> None:
    from orchestrator.cluster.size import PLENTY, ClusterSize
    from orchestrator.cluster.slurm import show_scripts, submit_to_slurm
    from orchestrator.sweep.plan import make_plan

    size = ClusterSize(wanted.nodes, wanted.gpus, wanted.cpus or PLENTY, "--cpus-per-task")
    size.require_room(make_plan(spec))
    if dry_run:
        typer.echo(show_scripts(sweep, spec, wanted), nl=False)
        return
    job = submit_to_slurm(sweep, spec, wanted)
    storage = shlex.quote(spec.storage)
    typer.echo(f"SLURM job {job}; calsweep status {spec.name} --storage {storage}")
