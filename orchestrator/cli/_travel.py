"""``calsweep package`` (without ``predictions``), and ``search blackbox``."""

import secrets
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from orchestrator.cli._console import echo, print_json, progress_bar
from orchestrator.cli._options import DataRoot, Json, StorageFolder, SweepName, Tolerance
from trainables.common.errors import InputError
from trainables.common.paths import DEFAULT_STORAGE
from trainables.common.words import many

ACCEPTED, REFUSED = 0, 3
Out = Annotated[
    Path, typer.Option(help="Folder for page and package, or FILE.calsweep.", show_default=False)
]


def publish(
    sweeps: Annotated[list[str], typer.Argument(help="Names of sweeps.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="Folder for page and package, or FILE.calsweep.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(help="Data set repository on the Hub, hf:ORG/NAME, or a folder like it."),
    ] = None,
    license: Annotated[
        str, typer.Option(help="The license of the results, such as a URL.")
    ] = "no license is stated",
    logits: Annotated[
        bool,
        typer.Option("--logits", help="With FILE.calsweep: add all that `package verify` needs."),
    ] = False,
    storage: StorageFolder = DEFAULT_STORAGE,
) -> None:
    """Write a page of sweeps' results, and the package by which anyone can verify them."""
    from orchestrator.packages.hub import HUB, YOURS, publish_repository
    from orchestrator.packages.publish import publish as write
    from orchestrator.storage.storage import Storage

    if out is None and to is None:
        raise InputError("expected --out or --to, got none; use --out FOLDER")
    place = Storage(storage)
    with progress_bar("gathering predictions") as show:
        if out is not None:
            written = list(map(str, write(place, sweeps, out, license, show, logits)))
        else:
            written = [publish_repository(place, sweeps, to or "", license, show)]
    for name in written:
        echo(f"wrote {name}")
    if to and not to.startswith(HUB):
        echo(f"the files name the repository {YOURS}; replace that by your own before the upload")
    for name in dict.fromkeys(sweeps):
        if place.load_spec(name).plugins:
            echo(
                f"{name} names plugins: the package has their code, and `calsweep package verify "
                f"{shlex.quote(_package(written))} --trust-plugins` runs it"
            )


def _package(written: Sequence[str]) -> str:
    return next(name for name in written if name.endswith((".zip", ".calsweep")))


def merge(
    packages: Annotated[
        list[Path], typer.Argument(help="Packages, zip files.", show_default=False)
    ],
    out: Out,
) -> None:
    """Join packages of several machines, computed by the same code on the same data."""
    from orchestrator.packages.merge import merge as join

    for path in join(packages, out):
        echo(f"wrote {path}")


def verify(
    package: Annotated[
        str, typer.Argument(help="The package, a zip file or hf:ORG/NAME.", show_default=False)
    ],
    retrain: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the trials to compute again.")
    ] = 0.1,
    trial: Annotated[
        list[str] | None,
        typer.Option(help="Compute again the trial whose key begins with this; repeatable."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed for choosing these trials; default: random.")
    ] = None,
    tolerance: Tolerance = 1e-6,
    revision: Annotated[
        str | None,
        typer.Option(help="Git commit that must have computed it; default: the present one."),
    ] = None,
    trust_plugins: Annotated[
        bool, typer.Option("--trust-plugins", help="Run the code of plugins inside the package.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Write the outcome as Markdown, for a pull request."),
    ] = None,
    data_root: DataRoot = "data",
    as_json: Json = False,
) -> int:
    """Verify a package by computing its figures again; exit codes: 0 accepted, 3 refused.

    Checks every figure, the data, splits, searches and choices; then computes some trials again.
    """
    from orchestrator.logits.files import write_whole
    from orchestrator.packages.hub import package_file
    from orchestrator.packages.markdown import to_markdown
    from orchestrator.packages.verify import VerifyOptions
    from orchestrator.packages.verify import verify as check
    from orchestrator.storage.provenance import git_commit

    options = VerifyOptions(
        share=retrain,
        trials=trial or (),
        seed=secrets.randbelow(2**32) if seed is None else seed,
        tolerance=tolerance,
        data_root=data_root,
        revision=git_commit() if revision is None else revision,
        trust_plugins=trust_plugins,
    )
    console = Console(stderr=True, highlight=False, markup=False)
    found = check(package_file(package), options, lambda text: console.print(text))
    if report is not None:
        write_whole(report, lambda stream: stream.write(to_markdown(found).encode()))
    if as_json:
        print_json({"accepted": found.accepted, **asdict(found)})
    else:
        for one in found.checks:
            echo(f"{'WRONG' if one.problems else 'ok':5} {one.title}: {one.detail}")
        for problem in found.problems:
            echo(f"  {problem}")
        echo("accepted" if found.accepted else "refused")
    return ACCEPTED if found.accepted else REFUSED


def board(
    packages: Annotated[
        list[str], typer.Argument(help="Zip files or hf:ORG/NAME.", show_default=False)
    ],
    out: Annotated[
        Path, typer.Option(dir_okay=False, help="The HTML file to write.", show_default=False)
    ],
    metric: Annotated[
        str, typer.Option(help="Metric by which rows are sorted and ties are found.")
    ] = "ece",
    retrain: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the trials to compute again.")
    ] = 0.0,
    data_root: DataRoot = "data",
) -> None:
    """Write a page with the rows of many packages, in which verified rows are marked.

    Rows that do not differ significantly share a letter. A package that is not verified stays on
    the page, with the reason.
    """
    from orchestrator.logits.files import write_whole
    from orchestrator.packages.board import render_board
    from orchestrator.packages.verify import VerifyOptions

    console = Console(stderr=True, highlight=False, markup=False)
    options = VerifyOptions(share=retrain, data_root=data_root)
    page = render_board(packages, metric, options, lambda text: console.print(text))
    write_whole(out, lambda stream: stream.write(page.encode()))
    echo(f"wrote {out}")


def accept(
    base: Annotated[
        Path, typer.Argument(help="The package from before the change.", show_default=False)
    ],
    new: Annotated[
        Path, typer.Argument(help="The package of the same sweep after it.", show_default=False)
    ],
    metric: Annotated[str, typer.Option(help="Metric that must improve, such as ece.")] = "ece",
    draws: Annotated[int, typer.Option(min=100, help="Resamples of the test data.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the resamples.")] = 0,
    as_json: Json = False,
) -> int:
    """Decide whether a change is significantly better; exit codes: 0 keep it, 3 discard it.

    The significance level is corrected for the changes tried so far, stored in BASE.tries.json.
    """
    from orchestrator.packages.accept import accept as decide
    from orchestrator.tables.columns import column

    found = decide(base, new, metric, draws, seed)
    if as_json:
        print_json(asdict(found))
    else:
        cells = f"{many(len(found.cells), 'cell')}, {many(len(found.seeds), 'seed')}"
        echo(
            f"{'keep' if found.keep else 'discard'}: {column(metric).label} "
            f"{column(metric).show_change(found.difference)} over {cells}, p {found.p_value:.2g}, "
            f"needed at most {found.level:.2g} (try {found.tries})"
        )
    return ACCEPTED if found.keep else REFUSED


def export_blackbox(
    sweep: SweepName,
    out: Annotated[
        Path, typer.Option(dir_okay=False, help="The .npz file to write.", show_default=False)
    ],
    recipe: Annotated[
        list[str] | None, typer.Option(help="Only the search of this recipe; repeatable.")
    ] = None,
    every_epoch: Annotated[
        bool,
        typer.Option("--every-epoch", help="Compute trials again, for predictions of all epochs."),
    ] = False,
    storage: StorageFolder = DEFAULT_STORAGE,
) -> None:
    """Write all trials of a sweep with their predictions, as a benchmark for searches."""
    from orchestrator.packages.blackbox import export_blackbox as export
    from orchestrator.storage.storage import Storage

    with progress_bar("gathering trials") as show:
        about = export(Storage(storage), sweep, out, recipe or (), every_epoch, show)
    runs = sum(len(study["runs"]) for study in about["studies"])
    echo(f"wrote {out}: {many(len(about['studies']), 'study', 'studies')}, {many(runs, 'run')}")
