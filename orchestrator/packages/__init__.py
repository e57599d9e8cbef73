"""Publishes, verifies and merges packages: results of sweeps with their predictions."""
