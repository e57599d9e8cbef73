"""``calsweep best`` and ``sync``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli._options import Storage, TrackingUri
from trainables.errors import InputError

if TYPE_CHECKING:
    from orchestrator.selection import BestConfig

__all__ = ["best", "sync"]


class ConfigFormat(StrEnum):
    """How a configuration is printed."""

    yaml = "yaml"
    json = "json"


def best(
    task: Annotated[str, typer.Option(help="dataset/model/protocol, or the task's name.")],
    recipe: Annotated[str, typer.Option(help="Such as mbls+macal.")],
    sweep: Annotated[str | None, typer.Option(help="Only trials of this sweep.")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many, best first.")] = 1,
    format: Annotated[ConfigFormat, typer.Option(help="yaml or json.")] = ConfigFormat.yaml,
    out: Annotated[
        Path | None, typer.Option(help="Write OUT.yaml and OUT.json instead of printing.")
    ] = None,
    tracking_uri: TrackingUri = None,
    storage: Storage = "calsweep-storage",
) -> int:
    """Print the best configuration of a recipe: the `fixed` block for another sweep file."""
    from orchestrator.selection import best_config, default_tracking_uri

    uri = tracking_uri or default_tracking_uri(storage)
    for position, config in enumerate(
        best_config(task, recipe, tracking_uri=uri, sweep=sweep, top=top)
    ):
        if out is not None:
            _save(config, out, "" if top == 1 else f"-{position + 1}")
        elif format is ConfigFormat.json:
            typer.echo(config.to_json())
        else:
            typer.echo(config.to_yaml(), nl=False)
    return 0


def _save(config: BestConfig, out: Path, suffix: str) -> None:
    stem = out.stem if out.suffix in (".yaml", ".yml", ".json") else out.name
    texts = {"yaml": config.to_yaml(), "json": config.to_json()}
    for ending, text in texts.items():
        try:
            path = out.with_name(f"{stem}{suffix}.{ending}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InputError(f"--out {out}: cannot be written: {error}") from error
        typer.echo(f"wrote {path}")


def sync(
    journal: Annotated[Path, typer.Argument(help="A sweep's journal.jsonl, or its folder.")],
    tracking_uri: TrackingUri = None,
) -> int:
    """Deliver what a sweep recorded while the tracking server was away; twice changes nothing."""
    from orchestrator.run import JOURNAL, SPEC, load_existing
    from orchestrator.tracking import sync as deliver

    path = (journal / JOURNAL if journal.is_dir() else journal).absolute()
    if not path.is_file() or not path.with_name(SPEC).is_file() or len(path.parents) < 3:
        raise InputError(f"{path} is no sweep's journal: that is STORAGE/sweeps/NAME/{JOURNAL}")
    spec = load_existing(path.parent.name, str(path.parents[2]))
    uri = tracking_uri or spec.tracking_uri
    deliver(path, uri, spec.storage_path / "mlflow-artifacts")
    typer.echo(f"everything in {path} has reached {uri}")
    return 0
