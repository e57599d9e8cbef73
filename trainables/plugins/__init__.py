"""Parts from outside: a file or a package of somebody's own that registers what sweeps may name."""

from trainables.plugins._find import GROUP, find_source
from trainables.plugins._load import (
    Pinned,
    Plugin,
    active_plugins,
    load_plugins,
    named_plugins_only,
    part_codes,
)
