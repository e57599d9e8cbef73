"""Both kinds of trackers, for tests of what must hold for either."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["database", "folder"])
def either_store(request, database, tmp_path):
    """Return the address of a tracker, once of each kind."""
    return database if request.param == "database" else f"folder:{tmp_path}/tracked"
