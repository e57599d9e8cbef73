"""``calsweep check-plugin``."""

from typing import Annotated

import typer

from orchestrator.cli._console import echo

KEPT, BROKEN = 0, 1


def check_plugin(
    plugin: Annotated[str, typer.Argument(help="A file, a folder, or an installed package.")],
) -> int:
    """Check that a plugin's parts keep to all that ours do: 0 if so, 1 if not."""
    from trainables.contracts import checks_of
    from trainables.plugins import load_plugins

    (found,) = load_plugins([plugin], installed=True)
    failed = total = 0
    unchecked = {f"{each.catalogue.noun} {each.name}" for each in found.additions}
    for check in checks_of(found):
        broken, total = check.broken(), total + 1
        unchecked.discard(check.part)
        failed += bool(broken)
        echo(f"{'failed' if broken else 'ok':6}  {check.part}: {check.says}")
        if broken:
            echo(f"        {broken}")
    for part in sorted(unchecked):
        echo(f"info    {part}: there is no check of it")
    echo(f"plugin {found.name}, code {found.code[:12]}: {total - failed} of {total} checks passed")
    return BROKEN if failed else KEPT
