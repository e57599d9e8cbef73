import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.cluster.local import elsewhere, missing_room, require_room, slots
from orchestrator.executors import _open
from orchestrator.executors.in_process import InProcess
from orchestrator.executors.processes import Processes
from orchestrator.sweep.plan import make_plan
from orchestrator.sweep.spec import parse_sweep
from trainables.common.errors import InputError
from trainables.store.artifacts import ArtifactStore


@pytest.mark.parametrize(
    ("resources", "cpu", "gpu", "count"),
    [
        ({"CPU": 8.0}, 1, 0.0, 8),
        ({"CPU": 8.0}, 3, 0.0, 2),
        ({"CPU": 8.0, "GPU": 1.0}, 1, 0.25, 4),
        ({"CPU": 8.0, "GPU": 2.0}, 1, 0.4, 4),
        ({"CPU": 8.0, "GPU": 2.0}, 1, 0.6, 2),
        ({"CPU": 8.0, "GPU": 2.0}, 1, 1.0, 2),
        ({"CPU": 8.0, "GPU": 4.0}, 1, 2.0, 2),
        ({"CPU": 2.0, "GPU": 4.0}, 1, 0.5, 2),
        ({"CPU": 64.0, "GPU": 3.0}, 1, 0.1, 30),
        ({"CPU": 2.0}, 4, 0.0, 1),
    ],
)
def test_slots(resources: dict[str, float], cpu: float, gpu: float, count: int) -> None:
    assert slots(resources, cpu, gpu) == count


@pytest.mark.parametrize(("cpu", "gpu"), [(3, 0.0), (1, 0.5), (1, 2.0)])
def test_a_trial_that_never_fits_is_refused(cpu: float, gpu: float) -> None:
    with pytest.raises(InputError) as caught:
        require_room({"CPU": 2.0}, "train", cpu, gpu)
    assert str(caught.value) == (
        f"resources.train: a trial of {cpu} CPUs and {gpu:g} GPUs does not fit on this machine "
        "with 2 CPUs and 0 GPUs"
    )
    require_room({"CPU": 2.0}, "train", 2, 0.0)
    require_room({"CPU": 2.0, "GPU": 1.0}, "train", 1, 1.0)


NODES = [
    {"NodeID": "a", "Alive": True, "Resources": {"CPU": 8.0, "GPU": 1.0}},
    {"NodeID": "b", "Alive": True, "Resources": {"CPU": 2.0}},
    {"NodeID": "c", "Alive": False, "Resources": {"CPU": 8.0, "GPU": 1.0}},
]


@pytest.mark.parametrize(
    ("cpu", "gpu", "fits"), [(8, 1.0, True), (2, 0.0, True), (9, 0.0, False), (1, 2.0, False)]
)
def test_trials_that_fit_on_no_node_are_reported(cpu: float, gpu: float, fits: bool) -> None:
    two = [*NODES, {"NodeID": "d", "Alive": True, "Resources": {"CPU": 8.0, "GPU": 1.0}}]
    assert missing_room(two, "train", cpu, gpu) == (
        ""
        if fits
        else f"resources.train: no node has {cpu} CPUs and {gpu:g} GPUs yet; these trials "
        "wait until one joins"
    )


def test_sweep_on_a_cluster_says_which_trials_wait(tmp_path, monkeypatch):
    nodes = [{**node, "NodeManagerHostname": os.uname().nodename} for node in NODES]
    ray = SimpleNamespace(nodes=lambda: nodes)
    monkeypatch.setattr(_open, "join_cluster", lambda *given: nullcontext(ray))
    spec = parse_sweep(
        "{name: s, tasks: [{dataset: digits, model: convnet, protocol: digits}], "
        "recipes: [ce+macal], resources: {refine: {gpu: 1}, train: {cpu: 9}}, "
        f"storage: {tmp_path}}}",
        "s",
    )
    said: list[str] = []
    with _open.open_executor(make_plan(spec), ArtifactStore(tmp_path), "auto", said.append):
        pass
    assert said == ["joining Ray at auto", missing_room(nodes, "train", 9, 0.0)]


@pytest.mark.parametrize(
    ("resources", "recipes", "kind"),
    [
        ("{}", "[ce, ls]", Processes),
        ("{}", "[ce]", InProcess),  # One job is all there is.
        ("{concurrent: 1}", "[ce, ls]", InProcess),
        ("{train: {cpu: 2}}", "[ce, ls]", InProcess),
        ("{train: {gpu: 1}}", "[ce, ls]", InProcess),
        ("{train: {gpu: 0.5}}", "[ce, ls]", Processes),
        ("{train: {gpu: 2}}", "[ce, ls]", InProcess),
    ],
)
def test_local_sweep_computes_as_many_jobs_at_once_as_fit(
    resources: str, recipes: str, kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a machine with two cores and one GPU."""
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    spec = parse_sweep(
        "{name: s, tasks: [{dataset: digits, model: convnet, protocol: digits}], executor: local, "
        f"recipes: {recipes}, search: {{trials: 1}}, resources: {resources}, storage: {tmp_path}}}",
        "s",
    )
    with _open.open_executor(make_plan(spec), ArtifactStore(tmp_path), None, print) as executor:
        assert type(executor) is kind


@pytest.mark.parametrize(
    ("cpu", "gpu", "failed", "avoided"),
    [
        (2, 0.0, "a", "a"),
        (2, 0.0, "b", "b"),
        (3, 0.0, "a", ""),  # No other living node has as much.
        (1, 0.5, "a", ""),
        (1, 0.5, "b", "b"),
        (1, 0.0, "ba", ""),
        (1, 0.0, "zb", "b,z"),
        (1, 0.0, "", ""),
    ],
)
def test_nodes_are_avoided_if_another_has_room(cpu, gpu, failed, avoided):
    labels = {"ray.io/node-id": f"!in({avoided})"} if avoided else {}
    assert elsewhere(NODES, set(failed), cpu, gpu) == labels


def test_machines_are_avoided_by_name_and_refused_for_good() -> None:
    nodes = [{**node, "NodeManagerHostname": f"host-{node['NodeID']}"} for node in NODES]
    assert elsewhere(nodes, {"host-b"}, 2, 0.0) == {"ray.io/node-id": "!in(b)"}
    assert elsewhere(nodes, {"host-a"}, 3, 0.0) == {}
    assert elsewhere(nodes, {"a"}, 3, 0.0, refused={"a"}) == {"ray.io/node-id": "!in(a)"}
