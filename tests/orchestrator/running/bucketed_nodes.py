"""A script: a sweep on two nodes that share nothing but a bucket. Prints its table.

The last line has the exit code, and whether both nodes hold artifacts.
"""

import os
import sys
import tempfile
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from orchestrator.cli import main
from tests.buckets import disturbed_buckets, log_in, make_bucket

NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
TABLE = ("--format", "markdown", "--metrics", "acc,ece,nll")


def run(folder: Path, sweep: str) -> None:
    with disturbed_buckets() as (server, weather), pytest.MonkeyPatch.context() as patch:
        log_in(server, patch)
        patch.setenv("CALSWEEP_CACHE", str(folder / "driver"))
        address = f"s3://{make_bucket(server)}/of/us"
        file = folder / "sweep.yaml"
        file.write_text(sweep.format(storage=address, folder=folder))
        one, two = (
            {**NODE, "env_vars": {"CALSWEEP_CACHE": str(folder / name)}} for name in ("one", "two")
        )
        head = {**one, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        cluster.add_node(**two)
        weather.share = 0.03
        code = main(["run", str(file), "--address", cluster.address, "--quiet"])
        cluster.shutdown()
        weather.share = 0.0
        patch.setenv("CALSWEEP_CACHE", str(folder / "elsewhere"))
        main(["table", "bucketed", "--storage", address, *TABLE])
        places = (folder / name / "buckets" for name in ("one", "two"))
        counts = [len([*place.glob("*/artifacts/*/*/*/manifest.json")]) for place in places]
        sys.stdout.write(f"{code} {min(counts) > 0}\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        run(Path(name), sys.argv[1])
