"""Layouts: rows and columns of published tables, one YAML file each."""

from orchestrator.tables.layouts._fill import arrange_layout, published_key
from orchestrator.tables.layouts._layout import Layout, layout_names, load_layout

__all__ = ["Layout", "arrange_layout", "layout_names", "load_layout", "published_key"]
