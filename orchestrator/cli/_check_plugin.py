"""``calsweep check-plugin``."""

from itertools import chain
from typing import Annotated

import typer

from orchestrator.cli._console import echo
from trainables.common.addresses import shown
from trainables.common.errors import InputError

KEPT, BROKEN = 0, 1


def check_plugin(
    plugin: Annotated[str, typer.Argument(help="A file, a folder, or an installed package.")],
    tracker: Annotated[
        str | None,
        typer.Option(
            help="Address of a tracker that it brings; the checks write there.", show_default=False
        ),
    ] = None,
) -> int:
    """Check that a plugin's parts keep to all that ours do: 0 if so, 1 if not."""
    from orchestrator.tracking.contract import tracker_checks
    from trainables.contracts import checks_of
    from trainables.plugins import load_plugins

    (found,) = load_plugins([plugin], installed=True)
    failed = total = 0
    unchecked = {f"{each.catalogue.noun} {each.name}" for each in found.additions}
    scheme = (tracker or "").partition(":")[0]
    if tracker and f"tracker {scheme}" not in unchecked:
        raise InputError(f"--tracker {shown(tracker)}: the plugin brings no tracker {scheme!r}")
    for check in chain(checks_of(found), tracker_checks(tracker) if tracker else ()):
        if (broken := check.broken()) is None:
            continue
        unchecked.discard(check.part)
        total, failed = total + 1, failed + bool(broken)
        echo(f"{'failed' if broken else 'ok':6}  {check.part}: {check.says}")
        if broken:
            echo(f"        {broken}")
    for part in sorted(unchecked):
        hint = " without --tracker ADDRESS" if part.startswith("tracker ") else ""
        echo(f"info    {part}: there is no check of it{hint}")
    echo(f"plugin {found.name}, code {found.code[:12]}: {total - failed} of {total} checks passed")
    return BROKEN if failed else KEPT
