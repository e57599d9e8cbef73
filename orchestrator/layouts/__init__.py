"""Layouts: which rows and columns a published table has, one YAML file each.

``load_layout("macal/table1")`` reads one that ships with the package, or one's own by its path;
``arrange_layout`` fills it with results, with the paper's figures beside ours if wanted.
"""

from orchestrator.layouts._fill import arrange_layout
from orchestrator.layouts._layout import (
    Layout,
    LayoutRow,
    NotOffered,
    layout_names,
    load_layout,
)
from orchestrator.layouts._published import PublishedKey, published_key

__all__ = [
    "Layout",
    "LayoutRow",
    "NotOffered",
    "PublishedKey",
    "arrange_layout",
    "layout_names",
    "load_layout",
    "published_key",
]
