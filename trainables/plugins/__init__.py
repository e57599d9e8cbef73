"""Plugins: a user's file or package that registers parts for sweeps."""

from trainables.plugins._find import GROUP, find_source
from trainables.plugins._load import (
    Pinned,
    Plugin,
    active_plugins,
    load_plugins,
    named_plugins_only,
    part_codes,
)
