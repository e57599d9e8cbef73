"""BibTeX entries of what stands in recipes, from the sources that search spaces name."""

import re
from collections.abc import Iterable

from search_spaces import KINDS, load_space, space_names
from trainables.plugins import active_plugins

WORK = re.compile(
    r"(?P<authors>[^,]+), (?P<title>.+), (?P<venue>[^,]*?)\s*(?P<year>(?:19|20)\d\d)(?: \(.*\))?"
)


def bibliography(parts: Iterable[str]) -> str:
    """Return an entry for the paper of each part of recipes, by the part's name, each once.

    Where a source is no single paper it is a note; parts of other people's packages are left out.
    """
    spaces = {name: kind for kind in reversed(KINDS) for name in space_names(kind)}
    for plugin in active_plugins():  # Whoever verifies a package does not have them.
        for space in plugin.spaces:
            spaces.pop(space.name, None)
    wanted: set[str] = set()
    for part in parts:
        # A calibrator's name may be followed by its fitting objective's.
        wanted.update([part] if part in spaces else part.split("-"))
    known = sorted(wanted & set(spaces))
    return "\n".join(_entry(name, load_space(spaces[name], name).source) for name in known)


def _entry(name: str, source: str) -> str:
    found = WORK.fullmatch(source)
    fields = {"note": source}
    if found is not None and ";" not in source:
        authors = found["authors"].replace(" et al.", " and others").replace(" & ", " and ")
        fields = {"author": authors, "title": f"{{{found['title']}}}", "year": found["year"]}
        fields |= {"booktitle": found["venue"]} if found["venue"] else {}
    lines = "".join(f"  {field} = {{{_tex(value)}}},\n" for field, value in fields.items())
    return f"@misc{{{name},\n{lines}}}\n"


def _tex(text: str) -> str:
    return re.sub(r"([&%$#_])", r"\\\1", text)
