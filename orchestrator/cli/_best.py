from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orchestrator.cli._console import complain, echo
from orchestrator.cli._options import Json, StorageFolder, TrackingUri
from trainables.common.errors import InputError, UnwrittenError
from trainables.common.paths import DEFAULT_STORAGE

if TYPE_CHECKING:
    from orchestrator.tracking import BestConfig

NONE_FINISHED = 1  # Exit code; a sweep in which a study has no finished trial returns it, too.

Format = Literal["yaml", "json", "fixed"]


def best(
    sweep: Annotated[
        str | None, typer.Argument(help="Only trials of this sweep.", metavar="[NAME]")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="dataset/model/protocol, or the task's name; default: all.")
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="Such as mbls+macal; default: all.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Trials per task and recipe, best first.")] = 1,
    since: Annotated[
        str | None, typer.Option(help="Only studies started on DATE or later.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Only studies started on DATE or before.")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(help="Only sweeps with KEY=VALUE in `tags`; repeatable.")
    ] = None,
    fingerprint: Annotated[
        str | None, typer.Option(help="Only this hash prefix of data; any: rank all data together.")
    ] = None,
    code: Annotated[
        str | None, typer.Option(help="Only this git commit; any: rank all commits together.")
    ] = None,
    format: Annotated[
        Format, typer.Option(help="yaml, json, or fixed: a block for another sweep file.")
    ] = "yaml",
    out: Annotated[
        Path | None, typer.Option(help="Write OUT.yaml and OUT.json instead of printing.")
    ] = None,
    promote: Annotated[
        bool, typer.Option("--promote", help="Register the best trial's weights as the champion.")
    ] = False,
    as_json: Json = False,
    tracking_uri: TrackingUri = None,
    storage: StorageFolder = DEFAULT_STORAGE,
) -> int:
    """Print the best configuration of each recipe on each task, with its validation metrics."""
    from orchestrator.tracking import best_config, known_studies, storage_uri

    uri = tracking_uri or storage_uri(storage, None if sweep is None else [sweep])
    asked = [(task, recipe)] if task and recipe else known_studies(uri, sweep, task, recipe)
    if promote and len(asked) > 1:
        raise InputError("--promote: expected one recipe on one task; add --task and --recipe")
    ask = partial(
        best_config,
        tracking_uri=uri,
        sweep=sweep,
        top=top,
        since=_day("--since", since),
        until=_day("--until", until, after=True),
        tags=dict(_pair(text) for text in tag or ()),
        fingerprint=fingerprint,
        code=code,
    )
    found = []
    for of_task, of_recipe in asked:
        found += (best_of := ask(of_task, of_recipe))
        if not best_of:
            complain(f"no trial of {of_recipe!r} on {of_task!r} has finished")
        elif best_of[0].note:
            echo(f"calsweep: {best_of[0].note}", err=True)
    if not found:
        return NONE_FINISHED
    several = top > 1 or len(asked) > 1
    if out is not None:
        for position, config in enumerate(found):
            _save(config, out, f"-{position + 1}" if several else "")
    else:
        # The options decide whether JSON is a list, not the number of results.
        listed = top > 1 or not (task and recipe)
        echo(_text(found, "json" if as_json else format, listed), nl=False)
    if promote:
        from orchestrator.tracking.champion import promote as register

        champion = register(found[0].run_id, uri, storage)
        named = f"{champion.model} version {champion.version} is the {champion.alias}"
        echo(f"calsweep: {named}{'' if champion.new else ' already'}", err=True)
    return 0


def _text(found: list[BestConfig], format: Format, several: bool) -> str:
    """Return configurations as one JSON document or several YAML documents."""
    if format == "json":
        listed = [config.to_dict() for config in found]
        return json.dumps(listed if several else listed[0], indent=2) + "\n"
    return "---\n".join(c.to_fixed() if format == "fixed" else c.to_yaml() for c in found)


def _day(option: str, text: str | None, after: bool = False) -> datetime | None:
    """Parse a time; a date means the local start of that day (of the next day if ``after``)."""
    if text is None:
        return None
    try:
        day = date.fromisoformat(text) + timedelta(days=int(after))
        return _local(datetime(day.year, day.month, day.day))
    except (ValueError, OverflowError):
        pass
    try:
        return _local(datetime.fromisoformat(text))
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"{option} {text!r} is not a date; use 2026-05-01 or 2026-05-01T13:30"
        ) from error


def _local(time: datetime) -> datetime:
    """Return a time with a time zone: the local one, except on ``date.max``.

    From Python 3.12 on, a time on ``date.max`` cannot be converted; without a zone it gets UTC.
    """
    if time.date() == date.max:
        return time if time.tzinfo else time.replace(tzinfo=UTC)
    return time.astimezone()


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise InputError(f"--tag {text!r} is not KEY=VALUE")
    return name, value


def _save(config: BestConfig, out: Path, suffix: str) -> None:
    stem = out.stem if out.suffix in (".yaml", ".yml", ".json") else out.name
    texts = {"yaml": config.to_yaml(), "json": config.to_json()}
    for ending, text in texts.items():
        try:
            path = out.with_name(f"{stem}{suffix}.{ending}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UnwrittenError(f"--out {out}: cannot be written: {error}") from error
        except ValueError as error:
            raise InputError(f"--out {out}: cannot be written: {error}") from error
        echo(f"wrote {path}")
