"""The registry that every suite adds itself to, and the names that lead to them."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from trainables.errors import InputError
from trainables.registry import Registry
from trainables.suites._base import Suite

SUITES: Registry[Suite] = Registry("suite", "trainables.suites")


def find_suite(name: str, root: Path | str) -> Suite:
    """Return the suite of ``name``: an entry, or an entry, a hyphen and what the entry takes.

    Raises:
        InputError: If there is none of that name; the text lists near names or all of them.
    """
    if name in SUITES:
        entry, argument = name, ""
    else:
        entry, _, argument = name.partition("-")
    if entry not in SUITES or not SUITES.get(entry).accepts(argument):
        known = suite_names()
        near = get_close_matches(name, known, n=3) or known
        raise InputError(f"unknown suite {name!r}; there are: {', '.join(near)}")
    return SUITES.get(entry)(name, argument, Path(root))


def suite_names() -> list[str]:
    """Return every suite's name, sorted; forms with an argument as ``ood-npz:PATH``."""
    return sorted(name for entry in SUITES.names() for name in SUITES.get(entry).names(entry))


def check_suites(names: Sequence[str], root: Path | str) -> None:
    """Make sure that all suites of a task are known and go by different labels.

    Raises:
        InputError: If not.
    """
    labels: dict[str, str] = {}
    for name in names:
        label = find_suite(name, root).label
        if label in labels:
            raise InputError(f"{labels[label]!r} and {name!r} are both called {label!r}")
        labels[label] = name
