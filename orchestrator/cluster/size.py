"""How large a cluster is, and how many trials it holds."""

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.sweep.spec import StageResources
from trainables.common.errors import InputError


@dataclass(frozen=True)
class ClusterSize:
    """Nodes of one kind.

    Attributes:
        nodes: At least 1.
        gpus: Of each node.
        cpus: Of each node; None where processors do not limit what runs at once.
    """

    nodes: int
    gpus: int
    cpus: int | None = None

    def slots(self, share: StageResources) -> dict[str, int]:
        """Return how many trials of a stage its GPUs hold, and its CPUs, where these limit it."""
        held = {}
        if share.gpu:
            # A trial takes whole GPUs, or its part of a single one.
            a_node = self.gpus // share.gpu if share.gpu >= 1 else self.gpus * (1 // share.gpu)
            held["gpu"] = self.nodes * int(a_node)
        if self.cpus is not None:
            held["cpu"] = self.nodes * (self.cpus // share.cpu)
        return held

    def require_room(self, shares: Mapping[str, StageResources]) -> None:
        """Raise an ``InputError`` if no node can hold a trial of one of the stages."""
        for stage, share in shares.items():
            for kind, count in self.slots(share).items():
                if not count:
                    raise InputError(
                        f"--{kind}s-per-node {getattr(self, f'{kind}s')}: no node can hold a "
                        f"trial, for which resources.{stage} asks for "
                        f"{getattr(share, kind):g} {kind.upper()}s"
                    )
