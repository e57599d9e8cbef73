"""Layouts: which rows and columns a published table has, one YAML file each.

``load_layout("macal/table1")`` reads one that ships with the package, or one's own by its path;
``arrange_layout`` fills it with results, with the paper's figures beside ours if wanted.
"""

from orchestrator.tables.layouts._fill import arrange_layout, published_key
from orchestrator.tables.layouts._layout import Layout, layout_names, load_layout

__all__ = ["Layout", "arrange_layout", "layout_names", "load_layout", "published_key"]
