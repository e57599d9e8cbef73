"""Compare a change with the revision on which it is based."""
