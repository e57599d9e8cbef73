"""The gate: a change judged against the revision that it builds on."""
