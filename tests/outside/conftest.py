"""The sweeps with which the short histories of a module begin."""

from collections.abc import Iterator

import pytest

from tests.outside.short import Short


@pytest.fixture(scope="module")
def short(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Short]:
    """Yield the sweeps of a module's ``ROWS``."""
    found = Short(request.module.ROWS, tmp_path_factory.mktemp("ended"))
    yield found
    found.door.close()
