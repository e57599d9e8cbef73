"""What starts clusters and the tracking server: valid, pinned, with tokens, on the loopback."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
RAY_JOB = ROOT / "tests/orchestrator/nightly/schedule/schemas/rayjob.json"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


@pytest.fixture
def on_premise() -> dict[str, Any]:
    (document,) = documents("on-premise.yaml")
    return document


@pytest.fixture
def cloud() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8")))


def test_ray_accepts_the_cluster_of_own_machines(on_premise: dict[str, Any]) -> None:
    validate_config(prepare_config(copy.deepcopy(on_premise)))


def test_own_machines_get_what_cloud_machines_get(
    on_premise: dict[str, Any], cloud: dict[str, Any]
) -> None:
    assert on_premise["file_mounts"] == cloud["file_mounts"]
    assert "chmod 600 ~/.ray/auth_token" in on_premise["initialization_commands"]
    starts = [
        line
        for section in ("head_start_ray_commands", "worker_start_ray_commands")
        for line in on_premise[section]
        if "ray start" in line
    ]
    assert len(starts) == 2
    assert all("RAY_AUTH_MODE=token" in line for line in starts)
    assert "--dashboard-host=127.0.0.1" in starts[0]


@pytest.fixture
def services() -> dict[str, Any]:
    (document,) = documents("compose.yaml")
    return dict(document["services"])


def test_only_the_tracking_server_is_reached_and_from_this_machine_only(
    services: dict[str, Any],
) -> None:
    assert "ports" not in services["database"]
    assert services["tracking"]["ports"] == ["127.0.0.1:5000:5000"]


def test_no_password_is_written_down(services: dict[str, Any]) -> None:
    for service in services.values():
        for name, value in service["environment"].items():
            if re.search("PASSWORD|SECRET", name):
                assert value.startswith("${"), name
        assert not any("PASSWORD" in word for word in service.get("command", []))
    example = (DEPLOY / "tracking.env.example").read_text(encoding="utf-8")
    for line in example.splitlines():
        assert line.startswith("#") or line.endswith("=")
    asked = set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text(encoding="utf-8")))
    assert asked == set(re.findall(r"^(\w+)=", example, re.MULTILINE))


def test_the_tracking_server_asks_who_is_there(services: dict[str, Any]) -> None:
    command = services["tracking"]["command"]
    assert "--app-name=basic-auth" in command
    assert any(word.startswith("--allowed-hosts=127.0.0.1") for word in command)


@pytest.mark.parametrize("name", ["cluster.Dockerfile", "tracking.Dockerfile"])
def test_images_are_pinned_and_not_root(name: str) -> None:
    text = (DEPLOY / name).read_text(encoding="utf-8")
    assert re.search(r"pip install --no-cache-dir --constraint \S*constraints.txt", text)
    assert re.search(r"^USER (?!root)\w+$", text, re.MULTILINE)
    for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE):
        assert all((ROOT / source).exists() for source in line.split())


def test_the_clusters_image_can_compile() -> None:
    text = (DEPLOY / "cluster.Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"apt-get install --yes --no-install-recommends .*\bg\+\+", text)
    assert text.index("apt-get install") < text.index("USER ray")


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return list(pod["spec"]["containers"])


def ray_manifests() -> list[dict[str, Any]]:
    """Return all that KubeRay is given."""
    found = [document for path in DEPLOY.glob("*.yaml") for document in documents(path.name)]
    return [document for document in found if document.get("apiVersion") == "ray.io/v1"]


def fits(manifest: dict[str, Any]) -> None:
    schema = json.loads(RAY_JOB.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(manifest)


def test_kuberay_takes_every_job() -> None:
    jobs = [manifest for manifest in ray_manifests() if manifest["kind"] == "RayJob"]
    assert jobs
    for job in jobs:
        fits(job)


@pytest.mark.parametrize(
    "change", [{"backoffLimit": 2}, {"suspend": True}, {"submissionMode": "SidecarMode"}]
)
def test_a_job_on_a_cluster_that_is_there_is_neither_repeated_nor_suspended(
    change: dict[str, Any],
) -> None:
    (job,) = documents("kuberay-job.yaml")
    job["spec"] |= change
    with pytest.raises(jsonschema.ValidationError):
        fits(job)


def test_kuberay_hands_the_token_to_all_that_need_it() -> None:
    clusters = [manifest for manifest in ray_manifests() if manifest["kind"] == "RayCluster"]
    assert clusters
    for cluster in clusters:
        assert cluster["spec"]["authOptions"] == {"mode": "token"}
    # Of an environment of its own neither the autoscaler nor the operator's polling gets to know.
    assert not any("RAY_AUTH" in json.dumps(manifest) for manifest in ray_manifests())


def test_every_pod_has_the_storage() -> None:
    _, cluster = documents("kuberay-cluster.yaml")
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    for group in groups:
        volumes = {volume["name"] for volume in group["template"]["spec"]["volumes"]}
        for container in containers(group["template"]):
            mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            assert mounts["storage"] == "/storage"
            assert set(mounts) <= volumes
    assert groups[0]["rayStartParams"]["num-cpus"] == "0"
    assert groups[1]["minReplicas"] == 0


def test_a_pod_asks_for_what_it_may_use() -> None:
    _, cluster = documents("kuberay-cluster.yaml")
    for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]):
        for container in containers(group["template"]):
            assert container["resources"]["requests"] == container["resources"]["limits"]


def test_a_job_runs_on_that_cluster() -> None:
    claim, cluster = documents("kuberay-cluster.yaml")
    (job,) = documents("kuberay-job.yaml")
    assert job["spec"]["clusterSelector"] == {"ray.io/cluster": cluster["metadata"]["name"]}
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert job["spec"]["entrypoint"].split()[:2] == ["calsweep", "run"]


def test_the_versions_agree_with_the_pins() -> None:
    _, cluster = documents("kuberay-cluster.yaml")
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert f"ray=={cluster['spec']['rayVersion']}\n" in pins
