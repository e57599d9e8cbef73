"""What is said at a sweep's end of where things are."""

from __future__ import annotations

import pytest

from orchestrator.cli._outcome import _tracking


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("http://ada:secret@mlflow:5000", "http://mlflow:5000"),
        ("folder:/data/runs", "folder:/data/runs"),
        (
            "sqlite:////data/my runs.db",
            "mlflow ui --backend-store-uri 'sqlite:////data/my runs.db'",
        ),
        (
            "postgresql://ada:secret@mlflow/runs",
            "mlflow ui --backend-store-uri postgresql://ada@mlflow/runs",
        ),
    ],
)
def test_a_server_is_a_page_and_a_store_needs_a_command(uri: str, text: str) -> None:
    assert _tracking(uri) == text
