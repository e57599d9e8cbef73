"""A script: a Ray cluster of several nodes on this machine, on the loopback, driven by lines.

Usage: nodes.py COUNT [jobs]. It prints ``address HOST:PORT`` when the nodes are up, with the
port to which jobs are submitted, if asked for. Then it obeys one line at a time: ``kill
N`` ends a node as a machine that loses its power does (its raylet and every process below it),
``add`` starts one more, ``end`` (or the end of the input) ends them all. Every command is answered
by ``done``.
"""

import contextlib
import os
import socket
import sys
from typing import Any

import psutil

NODE = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 100 * 2**20}


def kill(node: Any) -> None:
    """End a node's raylet and all that it started, without a word to anybody."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    victims = [*raylet.children(recursive=True), raylet]
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
    psutil.wait_procs(victims, timeout=10)


def obey(cluster: Any, nodes: list[Any], words: list[str]) -> bool:
    if words[:1] == ["kill"]:
        node = nodes.pop(int(words[1]))
        kill(node)
        cluster.remove_node(node, allow_graceful=False)
    elif words == ["add"]:
        nodes.append(cluster.add_node(**NODE))
    return words != ["end"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main() -> None:
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "num_gpus": 0}
    if "jobs" in sys.argv:
        head |= {"num_cpus": 1, "include_dashboard": True, "dashboard_port": free_port()}
        head["dashboard_agent_listen_port"] = free_port()  # Another cluster here has Ray's own.
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(**NODE) for _ in range(int(sys.argv[1]))]
    say(f"address {cluster.address} {head.get('dashboard_port', '')}")
    for line in sys.stdin:
        if not obey(cluster, nodes, line.split()):
            break
        say("done")
    cluster.shutdown()


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    main()
