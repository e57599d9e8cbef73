import copy
import io
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from typer.main import get_command

from orchestrator.cli._app import app
from tests.orchestrator.cluster.slurm_daemons import free_port

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
TOKEN = "~/.ray/auth_token"
COMMANDS = (
    *("initialization_commands", "setup_commands", "head_setup_commands"),
    *("head_start_ray_commands", "worker_start_ray_commands"),
)
SCHEMAS = Path(__file__).with_name("deploy_schemas.yaml")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


@pytest.fixture
def on_premise() -> dict[str, Any]:
    (document,) = documents("on-premise.yaml")
    return document


@pytest.fixture
def cloud() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8")))


def test_ray_accepts_both_clusters(on_premise, cloud):
    validate_config(prepare_config(copy.deepcopy(on_premise)))
    prepared = prepare_config(copy.deepcopy(cloud))
    validate_config(prepared)
    assert prepared["available_node_types"]["gpu"]["max_workers"] == cloud["max_workers"]


def test_skypilot_gets_documented_fields_and_commands_that_a_shell_reads():
    (config,) = documents("skypilot.yaml")
    schema = yaml.safe_load(SCHEMAS.read_text(encoding="utf-8"))
    jsonschema.validate(config, {**schema["$defs"]["skypilot"], "$defs": schema["$defs"]})
    for script in (config["setup"], config["run"]):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    known = {option for each in get_command(app).commands["run"].params for option in each.opts}
    (line,) = (line for line in config["run"].splitlines() if "calsweep run" in line)
    assert {*re.findall(r"--[a-z-]+", line)} <= known
    assert TOKEN in config["file_mounts"]
    assert "ray stop" not in config["run"]


def commands(config: dict[str, Any]) -> list[str]:
    return [line for section in COMMANDS for line in config.get(section, [])]


def test_files_copied_to_a_cluster_exist(cloud):
    local = [path for path in cloud["file_mounts"].values() if path != TOKEN]
    assert [path for path in local if not (ROOT / path).exists()] == []


def test_setup_commands_name_only_files_that_are_copied_or_created(cloud):
    made = {"~/ray_bootstrap_config.yaml", "~/venv", "~/venv/bin/python", "~/venv/bin/ray"}
    copied = {parent for path in cloud["file_mounts"] for parent in (path, str(Path(path).parent))}
    for command in commands(cloud):
        for path in re.findall(r"~/[\w./-]+", command):
            assert path in made | copied, path


def test_files_that_the_installation_reads_are_copied(cloud):
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    packages = re.search(r"include = \[(.*)\]", project)
    assert packages is not None
    names = {name.strip(' "*') for name in packages[1].split(",")}
    names |= {"pyproject.toml", "constraints.txt", "README.md", "LICENSE"}
    assert {path.removeprefix("~/calsweep/") for path in cloud["file_mounts"]} - {TOKEN} == names


def test_every_installation_is_pinned(cloud):
    installs = [line for line in commands(cloud) if "pip install" in line]
    assert len(installs) == 2
    assert all("--constraint ~/calsweep/constraints.txt" in line for line in installs)


def test_ray_starts_with_a_token_that_is_its_owners_alone(on_premise, cloud):
    assert on_premise["file_mounts"] == cloud["file_mounts"]
    assert cloud["file_mounts"][TOKEN] == TOKEN
    for config in (on_premise, cloud):
        assert f"chmod 600 {TOKEN}" in config["initialization_commands"]
        starts = [line for line in commands(config) if "ray start" in line]
        assert len(starts) == 2
        for line in starts:
            assert "RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$HOME/.ray/auth_token" in line


def test_the_dashboard_is_reached_through_a_tunnel_only(on_premise, cloud):
    for config in (on_premise, cloud):
        (head,) = [line for line in config["head_start_ray_commands"] if "--head" in line]
        assert "--dashboard-host=127.0.0.1" in head
        assert "0.0.0.0" not in yaml.safe_dump(config)


def test_workers_are_spot_and_the_head_is_not(cloud):
    nodes = cloud["available_node_types"]
    assert nodes["gpu"]["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert "InstanceMarketOptions" not in nodes["head"]["node_config"]
    assert nodes["gpu"]["resources"]["GPU"] == 1
    assert nodes["head"]["resources"] == {"CPU": 0}


@pytest.fixture
def services() -> dict[str, Any]:
    (document,) = documents("compose.yaml")
    return dict(document["services"])


def test_only_the_tracking_server_is_reached_and_from_this_machine_only(services):
    assert "ports" not in services["database"]
    assert services["tracking"]["ports"] == ["127.0.0.1:5000:5000"]


def test_no_password_is_written_down(services):
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


def test_the_tracking_server_requires_a_login(services):
    command = services["tracking"]["command"]
    assert "--app-name=basic-auth" in command
    assert any(word.startswith("--allowed-hosts=127.0.0.1") for word in command)


@pytest.mark.parametrize("name", ["cluster.Dockerfile", "tracking.Dockerfile"])
def test_images_are_pinned_and_not_root(name):
    text = (DEPLOY / name).read_text(encoding="utf-8")
    assert re.search(r"pip install --no-cache-dir --constraint \S*constraints.txt", text)
    assert re.search(r"^USER (?!root)\w+$", text, re.MULTILINE)
    for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE):
        assert all((ROOT / source).exists() for source in line.split())


def test_the_clusters_image_can_compile_and_be_probed():
    text = (DEPLOY / "cluster.Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"apt-get install --yes --no-install-recommends g\+\+ wget ", text)
    assert text.index("apt-get install") < text.index("USER ray")


class Images:
    """Builds images with buildah in a storage of their own, and runs commands in them."""

    def __init__(self, folder: Path) -> None:
        self._places = [f"--root={folder / 'root'}", f"--runroot={folder / 'run'}"]

    def __call__(self, *words: str) -> str:
        """Run buildah; return what it prints, or fail with what it says last."""
        command = ["buildah", *self._places, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}: {done.stdout[-1000:]} {done.stderr[-3000:]}"
        return done.stdout.strip()

    def run(self, container: str, script: str, *arguments: str) -> str:
        words = ("--isolation=chroot", "--network=host", container, "bash", "-euc", script, "-")
        return self("run", *words, *arguments)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    """Return what builds, with our base image made of Debian's packages: no registry is asked."""
    for tool in ("buildah", "debootstrap"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    if os.geteuid() != 0:
        pytest.skip("debootstrap needs root")
    folder = tmp_path_factory.mktemp("images")
    base, found = folder / "base", Images(folder)
    words = ["--variant=minbase", "--include=ca-certificates,python3-dev,python3-pip"]
    command = ["debootstrap", *words, "bookworm", str(base)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout[-1000:] + made.stderr[-1000:]
    # As in the official image, `python` is Python 3.11 and pip may install beside it.
    (base / "usr/bin/python").symlink_to("python3")
    (base / "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink()
    trusted = Path("/etc/ssl/certs/ca-certificates.crt")  # May name the proxy of this network.
    shutil.copyfile(trusted, base / trusted.relative_to("/"))
    try:
        container = found("from", "scratch")
        found("add", "--quiet", container, str(base), "/")
        found("config", f"--env=PIP_CERT={trusted}", container)
        found("commit", "--quiet", "--rm", container, "python:3.11-slim")
        yield found
    finally:
        found("rm", "--all")
        found("rmi", "--all", "--force")
        subprocess.run(["umount", str(folder / "root/overlay")], capture_output=True, check=False)
        shutil.rmtree(folder)


def built(images: Images, name: str) -> str:
    words = ("--pull-never", "--isolation=chroot", "--network=host", f"--tag={name.lower()}")
    images("build", *words, f"--file={DEPLOY / name}", str(ROOT))
    return images("from", "--pull-never", name.lower())


TINY = """
name: tiny
tasks:
  - name: digits/tiny
    dataset: digits
    model: convnet
    protocol: {base: digits, epochs: 1, compile: true}
    split: {train_limit: 150, test_limit: 120}
recipes: [ce, ce+ts]
search: {trials: 2}
storage: storage
"""
# The question that KubeRay's probes ask of a node, word for word but for the port.
PROBE = """
RAY_USAGE_STATS_ENABLED=0 timeout 100 ray start --head --block --num-cpus=1 --port=$1 \
    --dashboard-agent-listen-port=$2 --include-dashboard=false >/dev/null 2>&1 &
address=http://localhost:$2/api/local_raylet_healthz
for second in {1..80}; do
    if bash -c "wget --tries 1 -T 2 -q -O- $address | grep success"; then break; fi
    sleep 1
done
kill %1; wait %1 || true
"""


@pytest.mark.long  # Quarter of an hour, most of it pip; 16 GB of disk.
@pytest.mark.timeout(3600)
def test_a_sweep_runs_in_the_clusters_image(images):
    container = built(images, "cluster.Dockerfile")
    assert images.run(container, "id -un; pwd; test ! -w /opt/calsweep") == "ray\n/home/ray"
    assert images.run(container, "calsweep --version").startswith("calsweep ")
    told = images.run(container, "calsweep doctor")
    assert "ok   versions: Python 3.11." in told
    assert "ok   Ray: starts" in told
    script = (
        'printf %s "$1" > tiny.yaml; calsweep run tiny.yaml >&2; cat storage/sweeps/tiny/table.csv'
    )
    table = pd.read_csv(io.StringIO(images.run(container, script, TINY)))
    assert list(table["recipe"]) == ["ce", "ce+ts"]
    assert list(table["status"]) == ["finished", "finished"]
    ports = [str(free_port()) for _ in range(2)]
    assert images.run(container, PROBE, *ports) == "success"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_trackings_image_has_logins_and_the_database(images):
    container = built(images, "tracking.Dockerfile")
    script = "id -un; pwd; touch users.db /artifacts/one; python -c 'import mlflow.server.auth'"
    told = images.run(container, f"{script}; python -c 'import psycopg2'")
    assert told == "mlflow\n/var/lib/mlflow"


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return list(pod["spec"]["containers"])


def ray_manifests() -> list[dict[str, Any]]:
    found = [document for path in DEPLOY.glob("*.yaml") for document in documents(path.name)]
    return [document for document in found if document.get("apiVersion") == "ray.io/v1"]


def fits(manifest: dict[str, Any]) -> None:
    schemas = yaml.safe_load(SCHEMAS.read_text(encoding="utf-8"))
    kind = f"#/$defs/{manifest['kind']}"
    jsonschema.Draft202012Validator({**schemas, "$ref": kind}).validate(manifest)


def test_kuberay_takes_every_job():
    jobs = [manifest for manifest in ray_manifests() if manifest["kind"] == "RayJob"]
    assert jobs
    for job in jobs:
        fits(job)


@pytest.mark.parametrize(
    "change", [{"backoffLimit": 2}, {"suspend": True}, {"submissionMode": "SidecarMode"}]
)
def test_the_schema_refuses_to_repeat_or_suspend_a_job_on_a_running_cluster(change):
    (job,) = documents("kuberay-job.yaml")
    job["spec"] |= change
    with pytest.raises(jsonschema.ValidationError):
        fits(job)


def test_kuberay_hands_the_token_to_all_that_need_it():
    clusters = [manifest for manifest in ray_manifests() if manifest["kind"] == "RayCluster"]
    assert clusters
    for cluster in clusters:
        assert cluster["spec"]["authOptions"] == {"mode": "token"}
    # Of an environment of its own neither the autoscaler nor the operator's polling gets to know.
    assert not any("RAY_AUTH" in json.dumps(manifest) for manifest in ray_manifests())


def test_every_pod_has_the_storage():
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


def test_a_pod_requests_as_much_as_its_limits():
    _, cluster = documents("kuberay-cluster.yaml")
    for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]):
        for container in containers(group["template"]):
            assert container["resources"]["requests"] == container["resources"]["limits"]


def test_a_job_runs_on_that_cluster():
    claim, cluster = documents("kuberay-cluster.yaml")
    (job,) = documents("kuberay-job.yaml")
    assert job["spec"]["clusterSelector"] == {"ray.io/cluster": cluster["metadata"]["name"]}
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert job["spec"]["entrypoint"].split()[:2] == ["calsweep", "run"]


def test_the_versions_agree_with_the_pins():
    _, cluster = documents("kuberay-cluster.yaml")
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert f"ray=={cluster['spec']['rayVersion']}\n" in pins


NIGHTLY = DEPLOY / "nightly"


def test_kubernetes_takes_the_nightly_cron_job():
    (job,) = documents("nightly/cronjob.yaml")
    fits(job)
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    claim, _ = documents("kuberay-cluster.yaml")
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert job["spec"]["concurrencyPolicy"] == "Forbid"


@pytest.mark.parametrize(
    "name", ["crontab", "calsweep-nightly.service", "cronjob.yaml", "ray-job.sh"]
)
def test_every_schedule_runs_a_night_with_options_that_exist(name):
    text = (NIGHTLY / name).read_text(encoding="utf-8").replace("\\\n", " ")
    (found,) = re.findall(r"calsweep,? nightly,? run,? ([^\n>\]]*)", text)
    file, *options = re.split(r",? +", found.strip())
    assert file.endswith("nightly.yaml")
    known = {
        option
        for parameter in get_command(app).commands["nightly"].commands["run"].params
        for option in parameter.opts
    }
    assert {word for word in options if word.startswith("--")} <= known


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_timer(tmp_path):
    service = (NIGHTLY / "calsweep-nightly.service").read_text(encoding="utf-8")
    (tmp_path / "calsweep-nightly.service").write_text(
        re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", service)
    )
    timer = shutil.copy(NIGHTLY / "calsweep-nightly.timer", tmp_path)
    command = ["systemd-analyze", "verify", "--user", str(timer)]
    where = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=where)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_ray_job_names_the_night_and_its_submission(tmp_path):
    (tmp_path / "ray").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "ray").chmod(0o755)
    paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    told = subprocess.run(
        [str(NIGHTLY / "ray-job.sh")], env=paths, check=True, capture_output=True, text=True
    ).stdout.split()
    night = told[told.index("--night") + 1]
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", night)
    assert told[told.index("--submission-id") + 1] == f"nightly-{night}"
    assert told[told.index("--") + 1 :][:3] == ["calsweep", "nightly", "run"]
