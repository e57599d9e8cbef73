"""The training loop of all methods; no step waits for the device."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from trainables.common.devices import concrete
from trainables.common.errors import TrainingDivergedError
from trainables.common.fields import check_choice
from trainables.data import Batcher, DatasetInfo, RowArrays, move
from trainables.methods import TrainingMethod
from trainables.models import Network, build_model
from trainables.stages.casts import CastWeights
from trainables.stages.data_parallel import Team
from trainables.stages.graphed import GraphedStep
from trainables.stages.protocols import Protocol, learning_rate

BACKEND: str | Callable[..., Any] = "inductor"
MOST_GRAPHS = 8  # Limit per training, because compiling a graph takes a minute or more.


def as_written() -> AbstractContextManager[object]:
    """Return a context in which compiled networks run uncompiled."""
    # Importing dynamo takes a second; if nobody has imported it, nothing is compiled.
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


class CompiledFeatures:
    """A compiled ``Network.features`` for batches of one size; it replaces that method.

    Batches of another size, such as a short last one, run uncompiled, with the same result up to
    rounding: compiling a second graph would take minutes for one step per epoch. Everything runs
    uncompiled if the network cannot be compiled or its set of frozen weights changes too often.
    ``refused`` then has the reason; otherwise it is empty.
    """

    # Graphs are reused for networks of the same form, but they depend on which weights learn.
    learning: ClassVar[tuple[bool, ...]] = ()

    def __init__(self, network: Network, batch_size: int) -> None:
        self._written = network.features
        self._weights = list(network.parameters())
        self._batch_size = batch_size
        self._graphs = 1
        self._compiled = torch.compile(
            network.features, fullgraph=True, dynamic=False, backend=BACKEND
        )
        self.refused = ""

    def __call__(self, inputs: Tensor) -> Tensor:
        if self.refused or len(inputs) != self._batch_size:
            return self._written(inputs)
        # Imported late: it takes a second, and few trainings are compiled.
        from torch._dynamo.exc import FailOnRecompileLimitHit, Unsupported

        learning = tuple(weight.requires_grad for weight in self._weights)
        if learning != self.learning:
            self._forget_graphs()
            CompiledFeatures.learning = learning
        try:
            return self._compiled(inputs)
        except FailOnRecompileLimitHit:
            self._forget_graphs()
        except Unsupported as error:
            self.refused = str(error).strip().splitlines()[0]
        return self(inputs)

    def _forget_graphs(self) -> None:
        torch.compiler.reset()
        self._graphs += 1
        if self._graphs > MOST_GRAPHS + 1:
            self.refused = f"the set of frozen weights changed more than {MOST_GRAPHS} times"


EVALUATION_BATCH = 1024
HELD_BYTES = 2**30  # Outputs above this size move from the device to the host.
PRECISIONS = ("float32", "bfloat16")


def place(network: Network, device: torch.device, precision: str = "float32") -> Network:
    """Move a network to a device, in the memory format that is fastest for convolutions.

    The extractor computes in ``precision``, one of ``PRECISIONS``; weights, classifier and losses
    are always float32.

    Raises:
        ValueError: If ``precision`` is not one of ``PRECISIONS``.
    """
    network.precision = check_choice("precision", precision, PRECISIONS)
    # Otherwise convolutions on a GPU round float32 to the ten bits of TF32.
    torch.backends.cudnn.allow_tf32 = False
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    network.to(device)
    # Count batches on the CPU: nothing uses the counts, so GPU launches would be wasted.
    for module in network.modules():
        if isinstance(counter := getattr(module, "num_batches_tracked", None), Tensor):
            module.num_batches_tracked = counter.cpu()
    return network


def in_precision(network: Network) -> torch.autocast:
    """Return the context in which a network computes in its ``precision``."""
    device = network.classifier.weight.device
    return torch.autocast(device.type, torch.bfloat16, network.precision == "bfloat16")


def seeded_network(model: str, info: DatasetInfo, seed: int) -> Network:
    """Return a network whose initial weights depend only on ``seed``."""
    with _global_seed(seed):
        return build_model(model, info.num_classes, info.inputs.shape)


@contextmanager
def _global_seed(seed: int, *devices: torch.device) -> Iterator[None]:
    """Seed torch's global generators of the CPU and ``devices``; restore them afterwards."""
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


class Trainer:
    """Trains one network with one method on one device.

    The same arguments give the same weights, whatever else the process computes: bitwise on a CPU
    with the same number of threads, up to the rounding of its kernels on a GPU.

    Args:
        model: Name of the network, see ``trainables.models``.
        method: The training method.
        data: The training rows.
        info: Describes the data.
        protocol: The training protocol.
        seed: Determines the initial weights, the order of the batches and the augmentation.
        device: The device.
        precision: See ``place``.
        graph: Whether a GPU launches whole steps, see ``GraphedStep``; ignored on a CPU.
        team: The processes that train this network together, if there are several; each has its
            own trainer. They neither compile nor record steps.

    Raises:
        ValueError: If ``precision`` is neither ``float32`` nor ``bfloat16``.
    """

    def __init__(
        self,
        model: str,
        method: TrainingMethod,
        data: RowArrays,
        info: DatasetInfo,
        protocol: Protocol,
        seed: int,
        device: torch.device,
        precision: str = "float32",
        graph: bool = False,
        team: Team | None = None,
    ) -> None:
        self.method = method
        self._team = team
        self.protocol = protocol
        self.device = device = concrete(device)
        self.epoch = 0
        self._seed = seed
        self._generator = torch.Generator().manual_seed(seed)
        network = seeded_network(model, info, seed)
        with _global_seed(seed):
            network = method.attach(network, len(data.labels), info.num_classes)
        self.network = place(network, device, precision)
        self.network.extractor.requires_grad_(protocol.learns == "all")
        if team is not None:
            team.meet()
            team.share(self.network)
        elif protocol.compile:
            # Move the batch counters as well; otherwise code for the host would be compiled.
            self.network.to(device)
            # Replace only the method, so that the names of the weights stay the same.
            compiled = CompiledFeatures(self.network, protocol.batch_size)
            self.network.features = compiled  # type: ignore[method-assign]
        self.method.loss.to(device)
        self._batcher = info.inputs.batcher(data.values, device)
        self._one = torch.ones((), device=device)  # Created once instead of in every step.
        self._total = torch.zeros((), device=device)  # Sum of the losses of an epoch's rows.
        self._labels = torch.from_numpy(data.labels.copy()).to(device)
        self._augmentation = protocol.augmentation or info.inputs.augmentation
        lowers = precision == "bfloat16"
        self._casts = CastWeights(self.network.extractor).cast if lowers else nullcontext
        self._optimizer = _optimizer(self.network, protocol, graph)
        _start_velocities(self._optimizer)
        self._graphed: GraphedStep | None = None
        if graph and device.type == "cuda" and team is None:
            self._graphed = GraphedStep(self._step, self.network, protocol.batch_size)

    def train_epoch(self) -> dict[str, float]:
        """Run one epoch; return its mean loss, its learning rate and the method's metrics.

        Raises:
            TrainingDivergedError: If the mean loss is not finite.
            ChildProcessError: If a process of the team has ended.
        """
        with self._together("train_epoch"):
            self.network.train()
            self.network.extractor.train(self.protocol.learns == "all")
            self.method.start_epoch(self.network, self.epoch, self.protocol.epochs)
            rate = learning_rate(self.protocol, self.epoch)
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            if self._team is not None:
                self._team.start_epoch(self._epoch_seed())
            # Seed the global generators (for dropout), so that epochs do not depend on each other.
            gpus = [self.device] if self.device.type == "cuda" else []
            with _global_seed(self._epoch_seed(), *gpus):
                loss = self._run_batches()
            if not math.isfinite(loss):
                raise TrainingDivergedError(
                    f"training loss became {loss} in epoch {self.epoch + 1}"
                )
            figures = self.method.end_epoch(self.network, self.epoch)
            self.epoch += 1
            return {"train_loss": loss, "lr": rate, **figures}

    @contextmanager
    def _together(self, order: str, *arguments: Any) -> Iterator[None]:
        if self._team is None:
            yield
            return
        self._team.send(order, *arguments)
        with self._team.watched():
            yield

    def remarks(self) -> list[str]:
        """Return messages for the user about the computation, one line each."""
        parts = {
            "compile: the network runs uncompiled": self.network.features,
            "graph: steps run one operation at a time": self._graphed,
        }
        reasons = {text: getattr(part, "refused", "") for text, part in parts.items()}
        if self._team is not None and self.protocol.compile:
            reasons["compile: the network runs uncompiled"] = "several processes train it"
        return [f"{text}: {reason}" for text, reason in reasons.items() if reason]

    def _epoch_seed(self) -> int:
        return int(np.random.SeedSequence((self._seed, self.epoch)).generate_state(1)[0])

    def _run_batches(self) -> float:
        self._total.zero_()
        step = self._step if self._graphed is None else self._graphed
        if self._graphed is not None:
            self._graphed.start_epoch()
        order, size = self._order(), self.protocol.batch_size
        rows = order.to(self.device)
        parts = zip(self._labels[rows].split(size), rows.split(size), strict=True)
        for raw, (targets, indices) in zip(self._batcher.batches(order, size), parts, strict=True):
            shown = self._batcher.example(raw, targets, self._augmentation, self._generator)
            drawn = self.method.draw(self.network, shown[0], self._generator)
            step(*shown, indices, *(move(part, self.device) for part in drawn))
        return float(self._total) / len(order)

    def _step(self, inputs: Tensor, targets: Tensor, indices: Tensor, *drawn: Tensor) -> None:
        """Update the weights with one batch; add its loss, summed over rows, to the total."""
        with in_precision(self.network), self._casts():
            loss, _ = self.method.training_loss(self.network, inputs, targets, indices, *drawn)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward(self._one)
        if self._team is not None:
            self._team.sum_gradients(self.network)
        if self.protocol.clip_norm is not None:
            clip_grad_norm_(self.network.parameters(), self.protocol.clip_norm)
        self._optimizer.step()
        self._total.add_(loss.detach(), alpha=len(indices))

    def _order(self) -> Tensor:
        """Return the epoch's order of rows (M,), on the CPU; drop a last batch of one row."""
        order = torch.randperm(len(self._labels), generator=self._generator)
        size = self.protocol.batch_size
        return order[:-1] if len(order) > size > 1 == len(order) % size else order

    def state_dict(self) -> dict[str, Any]:
        """Return the state for resuming with exactly the same results."""
        return {
            "epoch": self.epoch,
            "network": self.network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "loss": self.method.loss.state_dict(),
            "scheme": self.method.scheme.state_dict(),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a ``state_dict``."""
        with self._together("load_state_dict", state):
            self.epoch = state["epoch"]
            self.network.load_state_dict(state["network"])
            self._optimizer.load_state_dict(state["optimizer"])
            _start_velocities(self._optimizer)
            self.method.loss.load_state_dict(state["loss"])
            self.method.scheme.load_state_dict(state["scheme"])
            self._generator.set_state(state["generator"])


def _optimizer(network: Network, protocol: Protocol, graph: bool) -> torch.optim.Optimizer:
    parameters = [weight for weight in network.parameters() if weight.requires_grad]
    common: dict[str, Any] = {"weight_decay": protocol.weight_decay, "fused": True}
    if protocol.optimizer == "sgd":
        momentum, nesterov = protocol.momentum, protocol.nesterov
        return torch.optim.SGD(parameters, protocol.lr, momentum, nesterov=nesterov, **common)
    kind = torch.optim.Adam if protocol.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, protocol.lr, capturable=graph and parameters[0].is_cuda, **common)


def _start_velocities(optimizer: torch.optim.Optimizer) -> None:
    """Add a momentum buffer of zeros to every weight that has none.

    The result of the first step stays the same. Fused SGD needs buffers for all weights with a
    gradient or for none, but stochastic depth skips different weights in each step.
    """
    for group in optimizer.param_groups:
        if group.get("momentum"):
            for weight in group["params"]:
                optimizer.state[weight].setdefault("momentum_buffer", torch.zeros_like(weight))


def predict(network: Network, batcher: Batcher) -> Tensor:
    """Return the logits (N, K) of all rows, unaugmented; see ``in_batches``."""
    return in_batches(network, lambda batch: network(batcher.plain(batch)), every_row(batcher))


def every_row(batcher: Batcher) -> Iterator[Tensor]:
    """Yield all rows in their order, in the batches of evaluations."""
    return batcher.batches(torch.arange(len(batcher)), EVALUATION_BATCH)


@torch.inference_mode()
def in_batches(
    network: Network, compute: Callable[[Tensor], Tensor], batches: Iterable[Tensor]
) -> Tensor:
    """Apply ``compute``, which uses ``network``, to all ``batches``.

    Networks run in the precision of their training, but uncompiled, so that stored outputs do not
    depend on whether a training was compiled.

    Returns:
        The concatenated results, float32; on the CPU if they exceed ``HELD_BYTES``, otherwise on
        the device, without waiting for it.
    """
    network.eval()
    rows: list[Tensor] = []
    brought: list[Tensor] = []
    with as_written():
        for batch in batches:
            with in_precision(network):
                rows.append(compute(batch).float())
            if len(rows) * rows[-1].nbytes >= HELD_BYTES:
                brought.append(torch.cat(rows).cpu())
                rows = []
    return torch.cat([*brought, *(part.cpu() for part in rows)] if brought else rows)
