"""The size of a cluster, and how many trials fit on it."""

from dataclasses import dataclass

from orchestrator.cluster.local import fitting, require_spanning
from orchestrator.sweep.plan import Plan
from orchestrator.sweep.spec import StageResources
from trainables.common.errors import InputError

PLENTY = 10**9  # Number of CPUs that is never a limit.


@dataclass(frozen=True)
class ClusterSize:
    """A cluster of equal nodes.

    Attributes:
        gpus, cpus: Number per node; the default of ``cpus`` is never a limit.
        cpus_option: Option of ``cpus``, for messages.
    """

    nodes: int
    gpus: int
    cpus: int = PLENTY
    cpus_option: str = "--cpus-per-node"

    def room(self, share: StageResources) -> int:
        """Return the number of trials of a stage that fit at once."""
        return self.nodes * fitting({"CPU": self.cpus, "GPU": self.gpus}, share.cpu, share.gpu)

    def require_room(self, plan: Plan) -> None:
        """Raise ``InputError`` if some trials fit on no node or the executor uses one machine."""
        require_spanning(plan.spec)
        for stage, share in plan.shares().items():
            for option, kind, wanted, has in (
                ("--gpus-per-node", "gpu", share.gpu, self.gpus),
                (self.cpus_option, "cpu", share.cpu, self.cpus),
            ):
                if wanted > has:
                    raise InputError(
                        f"{option} {has}: a trial needs {wanted:g} {kind.upper()}s on one node "
                        f"(resources.{stage}); use larger nodes or ask for less"
                    )
