"""``calsweep nightly install`` and ``uninstall``: what starts the nights."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from orchestrator import nightly
from orchestrator.cli._console import echo
from orchestrator.cli.nightly.common import File, TimeZone, load
from orchestrator.cli.nightly.run import Address, JobServer
from trainables.common.paths import local_path

Scheduler = Literal["systemd", "cron", "kubernetes", "ray"]


def install(
    at: Annotated[str, typer.Option(help="Time of the day, HH:MM.")],
    file: File = None,
    scheduler: Annotated[
        Scheduler | None,
        typer.Option("--with", help="What starts the nights; default: systemd, else cron."),
    ] = None,
    time_zone: TimeZone = None,
    address: Address = None,
    job_server: JobServer = None,
    image: Annotated[str | None, typer.Option(help="Kubernetes: image with calsweep.")] = None,
    kubectl_image: Annotated[
        str, typer.Option(help="Kubernetes: image with kubectl, as your cluster finds it.")
    ] = "kubectl:1.34",
    claim: Annotated[
        str | None, typer.Option(help="Kubernetes: PersistentVolumeClaim for the storage.")
    ] = None,
    namespace: Annotated[str, typer.Option(help="Kubernetes: where it lives.")] = "default",
    out: Annotated[Path | None, typer.Option(help="Kubernetes: where the manifests go.")] = None,
    show: Annotated[
        bool, typer.Option("--print", help="Print what would be written, and write nothing.")
    ] = False,
) -> int:
    """Have the system start the benchmark every night."""
    from orchestrator.cluster.jobs import check_cluster

    benchmark, out = load(file), out and local_path(out, "--out")
    if address is not None:
        check_cluster(address)
    cluster = None
    if image and claim:
        cluster = nightly.KubernetesOptions(image, claim, namespace, kubectl_image)
    options = ("--address", address) if address else ()
    request = nightly.Request(benchmark, at, time_zone, scheduler, options, job_server, cluster)
    if show:
        echo(nightly.preview(request), nl=False)
        return 0
    for line in nightly.install(request, out):
        echo(line)
    return 0


def uninstall(file: File = None) -> int:
    """Remove the schedule; nights, verdicts and summaries stay."""
    benchmark = load(file)
    for line in nightly.uninstall(benchmark) or [f"nothing was scheduled for {benchmark.name}"]:
        echo(line)
    return 0
