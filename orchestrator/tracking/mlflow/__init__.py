"""Stores and reads runs on an MLflow server or in an MLflow database."""
