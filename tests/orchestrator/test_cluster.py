"""Joining a cluster that is not there."""

from __future__ import annotations

import pytest

from orchestrator._cluster import joined_cluster
from trainables.errors import InputError


def test_no_cluster_at_the_address(monkeypatch):
    def refuse(**options):
        raise ConnectionError("Could not find any running Ray instance.\nmore")

    monkeypatch.setattr("ray.init", refuse)
    with pytest.raises(InputError) as caught, joined_cluster("auto"):
        pass
    assert str(caught.value) == (
        "no Ray cluster answers at 'auto': Could not find any running Ray instance."
    )
