"""Runs sweeps: data, search, measurement on test data, and progress."""
