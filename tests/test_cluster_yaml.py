"""The cluster launcher's file: valid for the pinned Ray, and its commands find what they name."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = (
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
)
TOKEN = "~/.ray/auth_token"


@pytest.fixture
def config() -> dict[str, Any]:
    document = yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def commands(config: dict[str, Any], *sections: str) -> list[str]:
    return [line for section in sections or COMMANDS for line in config[section]]


def test_ray_accepts_it(config):
    prepared = prepare_config(copy.deepcopy(config))
    validate_config(prepared)
    assert prepared["available_node_types"]["gpu"]["max_workers"] == config["max_workers"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"max_wrokers": 8}, jsonschema.ValidationError),
        ({"max_workers": "eight"}, jsonschema.ValidationError),
        ({"head_node_type": "haed"}, ValueError),
    ],
)
def test_ray_would_refuse_a_mistake(config, change, error):
    with pytest.raises(error):
        validate_config(prepare_config({**config, **change}))


def test_what_is_copied_exists(config):
    local = [path for path in config["file_mounts"].values() if path != TOKEN]
    assert [path for path in local if not (ROOT / path).exists()] == []


def test_commands_name_only_what_is_copied_or_made_there(config):
    made = {"~/ray_bootstrap_config.yaml", "~/venv", "~/venv/bin/python", "~/venv/bin/ray"}
    copied = {parent for path in config["file_mounts"] for parent in (path, str(Path(path).parent))}
    for command in commands(config):
        for path in re.findall(r"~/[\w./-]+", command):
            assert path in made | copied, path


def test_what_the_installation_reads_is_copied(config):
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    packages = re.search(r"include = \[(.*)\]", project)
    assert packages is not None
    names = {name.strip(' "*') for name in packages[1].split(",")}
    names |= {"pyproject.toml", "constraints.txt", "README.md", "LICENSE"}
    assert {path.removeprefix("~/calsweep/") for path in config["file_mounts"]} - {TOKEN} == names


def test_every_installation_is_pinned(config):
    installs = [line for line in commands(config) if "pip install" in line]
    assert len(installs) == 2
    assert all("--constraint ~/calsweep/constraints.txt" in line for line in installs)


def test_ray_starts_with_a_token_that_is_its_owners_alone(config):
    assert config["file_mounts"][TOKEN] == TOKEN
    assert f"chmod 600 {TOKEN}" in config["initialization_commands"]
    starts = [line for line in commands(config) if "ray start" in line]
    assert len(starts) == 2
    for line in starts:
        assert "RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$HOME/.ray/auth_token" in line


def test_the_dashboard_is_reached_through_a_tunnel_only(config):
    (head,) = [line for line in config["head_start_ray_commands"] if "--head" in line]
    assert "--dashboard-host=127.0.0.1" in head
    assert "0.0.0.0" not in (ROOT / "cluster.yaml").read_text(encoding="utf-8")


def test_workers_are_spot_and_the_head_is_not(config):
    nodes = config["available_node_types"]
    assert nodes["gpu"]["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert "InstanceMarketOptions" not in nodes["head"]["node_config"]
    assert nodes["gpu"]["resources"]["GPU"] == 1
    assert nodes["head"]["resources"] == {"CPU": 0}
