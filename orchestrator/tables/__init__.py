"""Comparison tables: their rows, columns and figures, and how they are rendered."""
