"""Read sweep files: specification, recipes and plan."""
