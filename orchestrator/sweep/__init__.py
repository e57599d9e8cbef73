"""What a sweep file says: its specification, recipes and plan."""
