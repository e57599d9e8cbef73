import os
import re
from pathlib import Path
from typing import Any

import pytest
from ray import job_submission
from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus

from orchestrator.cli import main
from orchestrator.cluster.jobs import check_cluster, job_client, read_portable, write_files
from orchestrator.cluster.local import short_reason, spans_machines
from orchestrator.running.run import _check_same
from orchestrator.storage.provenance import pin_plugins
from orchestrator.storage.storage import Storage
from orchestrator.sweep.spec import load_sweep
from trainables.common.errors import InputError
from trainables.plugins import _load

ROOT = Path(__file__).parents[3]
SWEEP = """
name: night
tasks: [{{dataset: digits, model: convnet, protocol: digits}}]
recipes: [ce]
tracking: {{uri: "{uri}"}}
storage: {storage}
"""


LINES = ["first line\n", "second\n", "third\n", "last line\n"]


class Client:
    """Stands in for a cluster."""

    jobs: list[dict[str, Any]] = []  # noqa: RUF012 - one cluster for all clients
    places: list[str] = []  # noqa: RUF012
    ends: JobStatus = JobStatus.SUCCEEDED

    def __init__(self, address: str) -> None:
        self.places.append(address)
        self.asked = 0

    def submit_job(self, **job: Any) -> None:
        folder = Path(job["runtime_env"]["working_dir"])
        self.jobs.append({**job, "files": {p.name: p.read_text() for p in folder.iterdir()}})

    def get_job_status(self, job: str) -> JobStatus:
        assert job == self.jobs[-1]["submission_id"]
        self.asked += 1
        return JobStatus.RUNNING if self.asked < len(LINES) else self.ends

    def get_job_logs(self, job: str) -> str:
        assert job == self.jobs[-1]["submission_id"]
        return "".join(LINES[: self.asked])


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[Client]:
    monkeypatch.setattr(job_submission, "JobSubmissionClient", Client)
    monkeypatch.setattr("orchestrator.cluster.jobs.POLL_SECONDS", 0.0)
    monkeypatch.setattr(Client, "jobs", [])
    monkeypatch.setattr(Client, "places", [])
    return Client


def sweep(folder: Path, storage: str = "/storage", uri: str = "http://127.0.0.1:5000") -> str:
    path = folder / "mine.yaml"
    path.write_text(SWEEP.format(storage=storage, uri=uri))
    return str(path)


def test_the_sweep_file_travels_with_the_job(client, tmp_path, capsys):
    path = sweep(tmp_path)
    assert main(["submit", path]) == 0
    (job,) = client.jobs
    assert job["files"] == {"sweep.yaml": Path(path).read_text()}
    assert job["entrypoint"] == "calsweep run sweep.yaml --address auto"
    assert (job["entrypoint_num_cpus"], job["metadata"]) == (0, {"sweep": "night"})
    assert re.fullmatch(r"calsweep-night-\d{8}-\d{6}", job["submission_id"])
    name, server = job["submission_id"], "http://127.0.0.1:8265"
    told = f"job {name}; its output: ray job logs {name} --follow --address"
    assert capsys.readouterr().out == f"{told} {server}\n"
    assert main(["submit", path, "--address", "https://head:8265"]) == 0
    assert capsys.readouterr().out.endswith(" --follow --address https://head:8265\n")
    assert client.places == [server, "https://head:8265"]


@pytest.mark.parametrize(
    ("ends", "code"), [(JobStatus.SUCCEEDED, 0), (JobStatus.FAILED, 1), (JobStatus.STOPPED, 1)]
)
def test_submit_wait_prints_the_output_of_the_job_to_the_end(
    client, tmp_path, capsys, monkeypatch, ends, code
):
    monkeypatch.setattr(Client, "ends", ends)
    assert main(["submit", sweep(tmp_path), "--wait"]) == code
    out = capsys.readouterr().out
    assert out.endswith("".join(LINES))
    assert [out.count(line) for line in LINES] == [1] * len(LINES)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"storage": "here"},
            "storage: on a cluster expected an absolute folder that every node sees, or "
            "s3://BUCKET/PATH or gs://BUCKET/PATH, got 'here'",
        ),
        (
            {"uri": "sqlite:////tmp/mlflow.db"},
            "tracking.uri: on a cluster expected a tracking server, got sqlite:////tmp/mlflow.db; "
            "deploy/README.md starts a server",
        ),
    ],
)
def test_places_of_one_machine_are_refused(client, tmp_path, capsys, change, text):
    assert main(["submit", sweep(tmp_path, **change)]) == 2
    assert capsys.readouterr().err == f"calsweep: {text}\n"
    assert client.jobs == []


@pytest.mark.parametrize(
    ("address", "fine"),
    [
        ("auto", True),
        ("local", True),
        ("10.0.0.1:6379", True),
        ("head_1.cluster-2:65535", True),
        ("[::1]:6379", True),
        ("https://head:8265", True),
        ("me:secret@head:6379", False),
        ("http://head:8265/?token=secret", False),
        ("http://", False),
        ("head:port", False),
    ],
)
def test_an_address_of_a_cluster_holds_no_login(address: str, fine: bool) -> None:
    if fine:
        check_cluster(address)
        return
    for asked in (check_cluster, job_client):
        with pytest.raises(InputError, match=r"^--address ") as caught:
            asked(address)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "address", ["hü:6379", "-h:6379", "h-:6379", "a b:1", "h\x07:1", "h", "h:0", "h:65536", "h:"]
)
def test_an_odd_address_is_refused_with_its_value(address: str) -> None:
    with pytest.raises(InputError) as caught:
        check_cluster(address)
    assert str(caught.value) == (
        f"--address {address!r} is not HOST:PORT; expected auto, HOST:PORT, or "
        "http(s)://HOST:PORT of a dashboard"
    )


def test_an_address_is_named_by_the_option_that_gave_it() -> None:
    with pytest.raises(InputError) as caught:
        check_cluster("http://", "--job-server")
    assert str(caught.value) == (
        "--job-server 'http://' has no host; allowed: auto, HOST:PORT, or "
        "http(s)://HOST:PORT of a dashboard"
    )
    with pytest.raises(InputError) as caught:
        check_cluster("http://me:secret@head:1", "--job-server")
    assert str(caught.value) == (
        "--job-server 'http://head:1' has a login or a query; give a cluster's token by "
        "RAY_AUTH_TOKEN_PATH (deploy/README.md)"
    )


def test_the_client_port_is_refused_with_the_way_that_remains() -> None:
    with pytest.raises(InputError, match=r"^--address: Ray's client port .* `calsweep submit`"):
        check_cluster("ray://me:secret@head:10001")


@pytest.mark.parametrize(
    ("recipes", "resources", "stage", "gpus"),
    [
        ("[ce]", "train: {gpu: 4}", "train", 4),
        ("[ce+macal]", "refine: {gpu: 0.5}", "refine", 0.5),
        ("[ce+ts]", "calibrate: {gpu: 1}", "calibrate", 1),
    ],
)
def test_job_without_a_gpu_that_its_trials_ask_for_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    recipes: str,
    resources: str,
    stage: str,
    gpus: float,
) -> None:
    path = Path(sweep(tmp_path))
    text = path.read_text().replace("[ce]", recipes)
    path.write_text(f"{text}resources: {{{resources}}}\n")
    assert main(["submit", "--slurm", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"calsweep: --gpus-per-node 0: a trial needs {gpus} GPUs on one node "
        f"(resources.{stage}); use larger nodes or ask for less\n"
    )


def test_jobs_need_their_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(job_submission, "JobSubmissionClient")
    with pytest.raises(InputError) as caught:
        job_client("http://127.0.0.1:8265")
    lacking = caught.value.__cause__
    assert isinstance(lacking, ImportError)
    assert str(caught.value) == f"Ray jobs need `pip install 'calsweep[cluster]'`: {lacking}"


def test_a_sweep_file_that_holds_a_login_stays_here(tmp_path: Path) -> None:
    for login, fine in (("", True), ("me:secret@", False)):
        path = Path(sweep(tmp_path, "~/storage", f"http://{login}127.0.0.1:5000"))
        spec = load_sweep(path)
        if fine:
            assert read_portable(path, spec) == {"sweep.yaml": path.read_bytes()}
            continue
        with pytest.raises(InputError) as caught:
            read_portable(path, spec)
        assert str(caught.value) == (
            "tracking.uri 'http://127.0.0.1:5000': its login or query would be stored on the "
            "cluster in plain text; leave it out, and set MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, or PGPASSWORD, where the cluster's head is started"
        )


@pytest.mark.parametrize("options", [[], ["--slurm"]])
def test_a_sweep_for_one_machine_cannot_be_submitted(client, tmp_path, capsys, options):
    path = Path(sweep(tmp_path))
    path.write_text(f"{path.read_text()}executor: local\n")
    assert main(["submit", *options, str(path)]) == 2
    assert capsys.readouterr().err == (
        "calsweep: executor: local computes on one machine; remove the key to use a cluster\n"
    )
    assert client.jobs == []


def test_no_cluster_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", sweep(tmp_path), "--address", "http://127.0.0.1:9"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    refused = "calsweep: no Ray job server accepts jobs at http://127.0.0.1:9: "
    assert line.startswith(refused)
    assert line.count("no Ray job server") == 1


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("No available agent\nto submit job"),
        AuthenticationError("Forbidden"),
        ConnectionError("Nobody is there"),
        ValueError("No such scheme"),
    ],
)
def test_a_refusal_of_the_cluster_is_one_line(client, tmp_path, capsys, monkeypatch, error):
    def refuse(self: Client, **job: Any) -> None:
        raise error

    monkeypatch.setattr(Client, "submit_job", refuse)
    assert main(["submit", sweep(tmp_path)]) == 2
    refused = "calsweep: no Ray job server accepts jobs at http://127.0.0.1:8265: "
    assert capsys.readouterr().err == f"{refused}{short_reason(error)}\n"


def test_nodes_of_other_machines_are_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"Alive": True, "NodeManagerHostname": "one"}
    monkeypatch.setattr("os.uname", lambda: type("Name", (), {"nodename": "one"}))
    assert not spans_machines([here, here])
    assert not spans_machines([here, {"Alive": False, "NodeManagerHostname": "two"}])
    assert spans_machines([here, {"Alive": True, "NodeManagerHostname": "two"}])


def test_job_of_slurm_is_the_sweep_that_was_submitted_with_an_installed_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example, programs, point = ROOT / "examples/plugin/calsweep_example", tmp_path / "bin", "x-1"
    for name, text in {
        f"{point}.dist-info/METADATA": "Metadata-Version: 2.1\nName: x\nVersion: 1\n",
        f"{point}.dist-info/entry_points.txt": "[calsweep.plugins]\nexample = calsweep_example\n",
        "bin/sbatch": "#!/bin/sh\necho 7\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (programs / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(example.parent)
    _load._installed.cache_clear()
    path = Path(sweep(tmp_path, str(tmp_path / "storage")))
    path.write_text(path.read_text().replace("[ce]", "[gce]"))
    try:
        assert main(["submit", "--slurm", str(path)]) == 0
        (code,) = (tmp_path / "storage/plugins").iterdir()
        (tmp_path / "storage/sweeps/night/slurm.json").unlink()
        for again in (tmp_path / "storage/sweeps/night/submitted-sweep.yaml", path):
            spec = pin_plugins(load_sweep(again))
            assert [plugin.code for plugin in spec.plugins] == [code.name]
            _check_same(spec, resume=False)
        assert Storage(tmp_path / "storage").load_spec("night").plugins == spec.plugins
    finally:
        monkeypatch.undo()
        _load._installed.cache_clear()


def test_plugins_travel_with_the_sweep_file(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    path, loss = Path(sweep(here)), here / "gce.py"
    loss.write_bytes((ROOT / "examples/plugin/calsweep_example/gce.py").read_bytes())
    text = path.read_text().replace("[ce]", "[gce]")
    path.write_text(f"plugins: [./gce.py]{text}tags: {{quiet: no}}\n")
    spec = load_sweep(path)
    write_files(there, read_portable(path, spec))
    received = load_sweep(there / "sweep.yaml")
    (sent,) = received.plugins
    assert received.tags == {"quiet": "no"}
    assert sent.code == spec.plugins[0].code
    assert Path(sent.path).read_bytes() == loss.read_bytes()
    assert Path(sent.path).is_relative_to(there)
