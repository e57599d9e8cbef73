"""The compact letter display: recipes that share a letter do not differ significantly."""

from collections.abc import Collection, Sequence
from string import ascii_letters


def letters(names: Sequence[str], differing: Collection[frozenset[str]]) -> dict[str, str]:
    """Return the letters of each name, by insertion and absorption (Piepho, 2004).

    Args:
        names: Names, the best first; the best is in group ``a``.
        differing: The pairs that differ.

    Returns:
        The letters of each name. Two names share a letter if and only if they do not differ. Groups
        after the 52nd have numbers.
    """
    groups: list[frozenset[str]] = [frozenset(names)]
    for pair in differing:
        split = [group for group in groups if pair <= group]
        if split:
            parts = [group - {name} for group in split for name in pair]
            groups = _largest([group for group in groups if group not in split] + parts)
    place = {name: number for number, name in enumerate(names)}
    groups.sort(key=lambda group: sorted(place[name] for name in group))
    signs = [*ascii_letters, *(f"({number})" for number in range(len(ascii_letters), len(groups)))]
    return {
        name: "".join(sign for sign, group in zip(signs, groups, strict=False) if name in group)
        for name in names
    }


def _largest(groups: Sequence[frozenset[str]]) -> list[frozenset[str]]:
    distinct = list(dict.fromkeys(groups))
    return [group for group in distinct if not any(group < other for other in distinct)]
