"""``calsweep demo``, ``run`` and ``submit``: compute sweeps."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli._options import Address, DryRun, Fresh, Quiet, SweepFile, SweepStorage, Take
from orchestrator.cli._plan import show_plan
from trainables.common.errors import InputError
from trainables.common.paths import DEFAULT_STORAGE, sweep_command

if TYPE_CHECKING:
    from orchestrator.cluster.slurm import Allocation
    from orchestrator.sweep.spec import SweepSpec

SLURM_TIME = "8:00:00"


def demo(
    storage: Annotated[
        str | None, typer.Option(help="Folder for everything that the demo writes.")
    ] = None,
    fresh: Fresh = False,
    quiet: Quiet = False,
) -> int:
    """Sweep 24 recipes on noisy handwritten digits of scikit-learn, in 40 seconds on two cores."""
    file = files("orchestrator") / "examples" / "demo.yaml"
    return run(str(file), storage=storage, fresh=fresh, quiet=quiet)


def run(
    sweep: Annotated[str | None, typer.Argument(help="The sweep file.", show_default=False)] = None,
    resume: Annotated[
        str | None, typer.Option(help="Name of a sweep to resume; needs no sweep file.")
    ] = None,
    reproduce: Annotated[
        str | None,
        typer.Option(help="Tracked run to compute again; exit code 0 if all figures are equal."),
    ] = None,
    storage: SweepStorage = None,
    dry_run: DryRun = False,
    fresh: Fresh = False,
    address: Address = None,
    quiet: Quiet = False,
    take: Take = False,
    tolerance: Annotated[
        float,
        typer.Option(min=0.0, help="With --reproduce: difference up to which figures are equal."),
    ] = 1e-6,
    data_root: Annotated[
        str, typer.Option(help="With --reproduce: folder of downloaded data sets.")
    ] = "data",
    tracking_uri: Annotated[
        str | None, typer.Option(help="With --reproduce: MLflow URI of the run.")
    ] = None,
) -> int:
    """Run a sweep file, resume a sweep that was interrupted, or compute one run again."""
    if (sweep, resume, reproduce).count(None) != 2:
        raise InputError("give one of: a sweep file, --resume NAME, --reproduce RUN")
    if reproduce is not None:
        from orchestrator.cli._reproduce import reproduce as compute
        from orchestrator.tracking import storage_uri

        uri = tracking_uri or storage_uri(storage or DEFAULT_STORAGE)
        return compute(reproduce, uri, data_root, tolerance, quiet)
    from orchestrator.sweep.documents import SWEEP, read_document
    from trainables.common.yaml_text import read_mapping

    text = "" if sweep is None else read_document(Path(sweep), sweep)
    if sweep is not None and not dry_run:
        _start_early(read_mapping(text, sweep, *SWEEP))
    from orchestrator.cli._outcome import run_and_show
    from orchestrator.storage.storage import Storage
    from orchestrator.sweep.spec import parse_sweep

    if sweep is None:
        spec = Storage(storage or DEFAULT_STORAGE).load_spec(str(resume))
    else:
        spec = parse_sweep(text, sweep, Path(sweep).parent, storage)
    if dry_run:
        show_plan(spec)
        return 0
    return run_and_show(spec, resume is not None, fresh, address, quiet, take)


def _start_early(document: Mapping[str, Any]) -> None:
    """Start the executor's processes now, so that they import PyTorch while this process does."""
    from orchestrator.sweep.executors import DEFAULT_EXECUTOR, EXECUTORS

    executor, resources = document.get("executor", DEFAULT_EXECUTOR), document.get("resources")
    if executor in EXECUTORS.own_names():
        concurrent = resources.get("concurrent") if isinstance(resources, dict) else None
        EXECUTORS[executor].start_early(concurrent)


def submit(
    sweep: SweepFile,
    address: Annotated[
        str, typer.Option(help="The cluster's dashboard.")
    ] = "http://127.0.0.1:8265",
    wait: Annotated[bool, typer.Option("--wait", help="Show its output until it ends.")] = False,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Submit a SLURM job that starts its own Ray cluster.")
    ] = False,
    nodes: Annotated[int, typer.Option(min=1, help="With --slurm: nodes.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=0, help="With --slurm: GPUs per node.")] = 0,
    slurm_array: Annotated[
        int, typer.Option(min=0, help="With --slurm: more preemptible nodes, one job per node.")
    ] = 0,
    time: Annotated[
        str, typer.Option(help="With --slurm: time limit; the job is then queued again.")
    ] = SLURM_TIME,
    cpus_per_task: Annotated[
        int, typer.Option(min=0, help="With --slurm: CPUs per node; 0: all of them.")
    ] = 0,
    partition: Annotated[
        str | None, typer.Option(help="With --slurm: the partition.", show_default=False)
    ] = None,
    account: Annotated[
        str | None, typer.Option(help="With --slurm: the account.", show_default=False)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --slurm: print the script; submit nothing.")
    ] = False,
) -> int:
    """Run a sweep file on a cluster as a job that continues without this machine."""
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
    from orchestrator.storage.storage import SweepFolder
    from orchestrator.sweep.plan import make_plan

    size = ClusterSize(wanted.nodes, wanted.gpus, wanted.cpus or PLENTY, "--cpus-per-task")
    size.require_room(make_plan(spec))
    if dry_run:
        typer.echo(show_scripts(sweep, spec, wanted), nl=False)
        return
    job = submit_to_slurm(sweep, spec, wanted)
    typer.echo(f"SLURM job {job}; {sweep_command('status', SweepFolder.of(spec).path)}")
