"""Packages of figures with their predictions: published, verified and merged."""
