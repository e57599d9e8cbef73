"""A script: one of two nodes sees altered code. Prints where jobs ran, and what was said.

The altered node has a view of the file system of its own, so it needs the right to mount.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from orchestrator.cluster.local import join_cluster
from orchestrator.executors.ray_tune import RayTune
from orchestrator.loop import Loop
from orchestrator.storage.machines import Machines
from tests.orchestrator.executors.small_jobs import Jobs, fit, prepared_logits

NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
CODE = Path(__file__).parents[3] / "trainables/losses/ce.py"
START = 'mount --bind "$1" "$2" && exec "$3" -m ray.scripts.scripts start --block --num-cpus 1 \
    --object-store-memory 100000000 --address "$4"'


def main(folder: Path) -> None:
    altered = folder / "ce.py"
    altered.write_text(f"{CODE.read_text()}# altered\n")
    data = prepared_logits(folder)
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    good = cluster.head_node.node_id
    places = [str(altered), str(CODE), sys.executable, cluster.address]
    command = ["unshare", "--mount", "sh", "-c", START, "sh", *places]
    node = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    jobs = Jobs([fit(data.directory, str(number)) for number in range(6)])
    said: list[str] = []
    try:
        with join_cluster(cluster.address):
            while sum(each["Alive"] for each in ray.nodes()) < 2:
                time.sleep(0.2)
            loop = Loop(jobs, lambda event: None, 0, said.append)
            executor = RayTune(folder / "artifacts", folder, growing=True)
            executor.run(loop, sealed=False)
            # As if it had been altered since it was inspected.
            executor._passed |= {node["NodeID"] for node in ray.nodes()}
            first = frozenset([good])  # So that they start on the altered one.
            names = map(str, range(6))
            after = Jobs([fit(data.directory, name, avoided=first) for name in names])
            machines = Machines(say=said.append)
            executor.run(Loop(after, lambda event: None, 0, machines=machines), sealed=False)
    finally:
        node.terminate()
        cluster.shutdown()
    reports = [*jobs.ends.values(), *after.ends.values()]
    where = Counter("good" if report.node == good else "altered" for report in reports)
    sys.stdout.write("\n".join([str(dict(where)), *said, ""]))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
