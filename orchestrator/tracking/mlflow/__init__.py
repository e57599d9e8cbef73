"""Runs on an MLflow server, or in a database of MLflow's."""
