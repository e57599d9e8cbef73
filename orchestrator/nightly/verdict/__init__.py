"""Judge nights: comparisons with earlier ones, and the rules for alarms."""
