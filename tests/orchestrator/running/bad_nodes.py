"""A script: what three nodes of a cluster get that fail in a way of their own each.

Prints, a line each: where jobs ended while one of two pretended GPUs fails what starts on it, which
GPU Ray gives to others while that one is held, how many of two wait for one, and which they get
afterwards; the nodes of a job and of one that avoids the first's; where jobs ran while one node
sees altered code; then what was said. The altered node has a view of the file system of its own,
so it needs the right to mount: without it, it is not there.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import ray
import torch
from ray.cluster_utils import Cluster

from orchestrator.cluster.local import join_cluster
from orchestrator.executors import _held_gpus, ray_tune
from orchestrator.executors.ray_tune import RayTune
from orchestrator.loop import Loop, Pause
from orchestrator.storage.machines import IN_A_ROW, Machines
from orchestrator.storage.storage import Storage
from tests.orchestrator.executors.small_jobs import Jobs, fit, prepared_logits
from trainables.jobs import Job
from trainables.ray_edge import Holder, JobTrainable, gpu_here

NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
FAULT = "CUDA error: uncorrectable ECC error"
CODE = Path(__file__).parents[3] / "trainables/losses/ce.py"
START = 'mount --bind "$1" "$2" && exec "$3" -m ray.scripts.scripts start --block --num-cpus 1 \
    --object-store-memory 100000000 --address "$4"'


class Avoiding(Jobs):
    """The second avoids the node of the first, whose process could be used again."""

    def next(self) -> Job | Pause:
        given = self.count - len(self.left)
        if given in (1, 2) and len(self.ends) < given:
            return Pause.WAIT
        job = super().next()
        if given == 1 and isinstance(job, Job):
            return replace(job, avoided=frozenset({self.ends["0"].node}))
        return job


class OnTwoGpus(Jobs):
    """Each job takes a GPU."""

    sizes = ((1.0, 1.0),)


def failing_gpu(folder: Path, data: Path, said: list[str]) -> str:
    storage, marks = Storage(folder / "storage"), folder / "marks"
    marks.mkdir()

    class OnPretendedCards(JobTrainable):
        busy = False

        def _begin(self, job: Job) -> None:
            self.mark = marks / job.key
            fault = RuntimeError(FAULT) if gpu_here() == "1" else [torch.device("cpu")]
            with mock.patch("trainables.worker.worker.trial_device", side_effect=fault):
                super()._begin(job)

        def step(self) -> dict[str, Any]:
            if gpu_here() == "1":
                self.mark.touch()
            # After its first job the good one is busy until the other has had its three, for
            # whose process to start takes longer than all these jobs.
            while self.busy and len(list(marks.iterdir())) < IN_A_ROW:
                time.sleep(0.1)
            self.busy = gpu_here() == "0"
            return super().step()

    jobs = OnTwoGpus([fit(data, str(number), gpus=1) for number in range(9)])
    loop = Loop(jobs, lambda event: None, 20, machines=Machines(storage, said.append))
    with (
        mock.patch.object(ray_tune, "JobTrainable", OnPretendedCards),
        # Trials have both GPUs when the bad one is left out: it comes free later.
        mock.patch.object(_held_gpus, "FIRST_SECONDS", 1),
    ):
        RayTune(storage.artifacts, folder).run(loop, sealed=False)
    ends = {report.gpu for report in jobs.ends.values()}
    held = ray_tune.HeldGpus(jobs.sizes)
    with mock.patch.object(_held_gpus, "FIRST_SECONDS", 300):
        held.keep(loop.machines.gpus_left_out())
    use = ray.remote(num_gpus=1, num_cpus=0)(Holder)
    first, second = use.remote(), use.remote()
    answers = [first.gpu.remote(), second.gpu.remote()]
    given, waiting = ray.wait(answers, timeout=300)
    _, waiting = ray.wait(waiting, timeout=5)
    told = f"{ends} {ray.get(given)} {len(waiting)}"
    held.close()
    return f"{told} {ray.get(waiting)}"


@contextmanager
def altered_node(folder: Path, address: str) -> Iterator[None]:
    altered, count = folder / "ce.py", len(ray.nodes())
    altered.write_text(f"{CODE.read_text()}# altered\n")
    places = [str(altered), str(CODE), sys.executable, address]
    command = ["unshare", "--mount", "sh", "-c", START, "sh", *places]
    node = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while len(ray.nodes()) == count:
            time.sleep(0.2)
        yield
    finally:
        node.terminate()


def three_nodes(folder: Path, data: Path, address: str, said: list[str]) -> Iterator[str]:
    good = frozenset(node["NodeID"] for node in ray.nodes())
    jobs = Avoiding([fit(data, str(number)) for number in range(6)])
    mounts = not subprocess.run(["unshare", "--mount", "true"], check=False).returncode
    with altered_node(folder, address) if mounts else nullcontext():
        executor = RayTune(folder / "artifacts", folder, growing=True)
        executor.run(Loop(jobs, lambda event: None, 0, said.append), sealed=False)
        yield " ".join(jobs.ends[key].node for key in "01")
        if not mounts:
            return
        # As if it had been altered since it was inspected.
        executor._passed |= {node["NodeID"] for node in ray.nodes()}
        # So that they start on the altered one.
        after = Jobs([fit(data, str(number), avoided=good) for number in range(2)])
        machines = Machines(say=said.append)
        executor.run(Loop(after, lambda event: None, 0, machines=machines), sealed=False)
    reports = [*jobs.ends.values(), *after.ends.values()]
    yield str(dict(Counter("good" if r.node in good else "altered" for r in reports)))


def main(folder: Path) -> None:
    data, said = prepared_logits(folder).directory, list[str]()
    head = {**NODE, "num_cpus": 2, "num_gpus": 2, "include_dashboard": False}
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # As ``join_cluster`` has it.
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        with join_cluster(cluster.address):
            told = [failing_gpu(folder, data, said)]
            cluster.add_node(**NODE)
            told.extend(three_nodes(folder, data, cluster.address, said))
    finally:
        cluster.shutdown()
    sys.stdout.write("\n".join([*told, *said]))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
