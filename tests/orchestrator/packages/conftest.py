"""One small sweep that every test of packages begins with."""

import pytest

from orchestrator.storage.storage import Storage
from tests.orchestrator.packages.boards import board


@pytest.fixture(scope="session")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    return board(tmp_path_factory.mktemp("board"))
