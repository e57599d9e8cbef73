"""Several processes of one machine train one network together, each on a part of every batch.

Every process loads whole batches, with the same rows, views and random numbers, but runs the
extractor only on its part of the rows. The features are then exchanged, so that classifier and loss
see the whole batch, as in one process. Gradients of the extractor are summed over the processes.
Results equal those of one process up to the order of sums, except for random numbers inside the
extractor (dropout, stochastic depth).
"""

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing.connection import Connection, Pipe
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.nn import functional as shared

from trainables.common.files import code_files
from trainables.models import Network

PATIENCE = timedelta(minutes=10)  # Time limit of a collective operation.
LOOPBACK = "lo"  # All processes are on one machine.
WIDE = torch.float32  # Lowest precision of exchanged numbers; some backends cannot add lower ones.


class Team:
    """The ``size`` processes that train one network together; rank 0 is the leader."""

    def __init__(self, rank: int, size: int, device: torch.device, folder: str) -> None:
        self.rank, self.size, self.device = rank, size, device
        self.followers: list[tuple[subprocess.Popen[bytes], Connection]] = []
        self._seed = 0
        if os.path.exists(f"/sys/class/net/{LOOPBACK}"):
            for library in ("GLOO", "NCCL"):
                os.environ.setdefault(f"{library}_SOCKET_IFNAME", LOOPBACK)
        self.folder = folder

    def meet(self) -> None:
        """Wait for all processes and form their group; raise the error of one that failed."""
        for number, (process, connection) in enumerate(self.followers, 1):
            try:
                if (found := connection.recv()) is not None:
                    raise found
            except EOFError:
                process.wait()
                raise self._ended(number, process) from None
        store = distributed.FileStore(f"{self.folder}/store", self.size)
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        distributed.init_process_group(
            backend, store=store, rank=self.rank, world_size=self.size, timeout=PATIENCE
        )

    def send(self, order: str, *arguments: Any) -> None:
        """Make every follower call the method ``order`` of its trainer; raise if one has ended."""
        content = io.BytesIO()
        if self.followers:
            torch.save((order, arguments), content)
        for number, (process, connection) in enumerate(self.followers, 1):
            try:
                connection.send_bytes(content.getvalue())
            except OSError:
                raise self._ended(number, process) from None

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Raise a failed follower's error instead of the error that it caused in the block."""
        try:
            yield
        except RuntimeError:
            for number, (process, connection) in enumerate(self.followers, 1):
                with contextlib.suppress(EOFError, OSError):
                    if connection.poll(1):  # The connection fails shortly before the process ends.
                        raise connection.recv() from None
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(1)
                    raise self._ended(number, process) from None
            raise

    def _ended(self, number: int, process: subprocess.Popen[bytes]) -> ChildProcessError:
        code = process.poll()
        how = f"by signal {-code}" if code is not None and code < 0 else f"with code {code}"
        text = f"process {number + 1} of {self.size} that train together ended {how}"
        return ChildProcessError(text)

    def close(self) -> None:
        """End the followers and leave the group."""
        for process, connection in self.followers:
            connection.close()
            process.kill()
            process.wait()
        if self.followers:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.followers.clear()
        if distributed.is_initialized():
            distributed.destroy_process_group()

    def start_epoch(self, seed: int) -> None:
        """Begin an epoch; the seed determines the random numbers of extractors."""
        self._seed = seed * self.size + self.rank

    def share(self, network: Network) -> None:
        """Make the processes compute a network's features and batch statistics together."""
        self._upstream = {id(weight) for weight in network.extractor.parameters()}
        for parent in list(network.extractor.modules()):
            for name, child in parent.named_children():
                if isinstance(child, nn.modules.batchnorm._BatchNorm):
                    setattr(parent, name, SharedNorm(child))
        whole = network.features

        def features(inputs: Tensor) -> Tensor:
            if not network.training:
                return whole(inputs)
            parts = inputs.tensor_split(self.size)
            first = sum(len(part) for part in parts[: self.rank])
            cuda = [self.device] if self.device.type == "cuda" else []
            self._seed += self.size
            with torch.random.fork_rng(cuda):
                torch.manual_seed(self._seed)
                own = whole(parts[self.rank])
            found: Tensor = _Gathered.apply(own, first, len(inputs))
            return found

        network.features = features  # type: ignore[method-assign]

    def sum_gradients(self, network: Network) -> None:
        """Give every process the gradients of the whole batch."""
        weights = [weight for weight in network.parameters() if weight.requires_grad]
        pieces = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
        scales = [1.0 if id(weight) in self._upstream else 1 / self.size for weight in weights]
        present = [weight.grad is not None for weight in weights]
        scaled = [p.reshape(-1) * scale for p, scale in zip(pieces, scales, strict=True)]
        flat = torch.cat([*scaled, pieces[0].new_tensor(present)])
        distributed.all_reduce(flat)
        *summed, counted = flat.split([*(p.numel() for p in pieces), len(weights)])
        counts = present if all(present) else counted.tolist()
        # Copy in place: a fused optimiser needs gradients in the memory format of their weights.
        for weight, piece, total, count in zip(weights, pieces, summed, counts, strict=True):
            weight.grad = piece.copy_(total.view_as(piece)) if count else None


class _Gathered(torch.autograd.Function):
    """Gathers a batch from the parts of all processes; each part gets its own gradient."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, first: int, rows: int) -> Tensor:
        """Return the batch (N, ...); ``own`` (n, ...) has its rows from ``first`` on."""
        ctx.part = slice(first, first + len(own))
        found = own.new_zeros((rows, *own.shape[1:]), dtype=torch.promote_types(own.dtype, WIDE))
        found[ctx.part] = own.to(found.dtype)
        distributed.all_reduce(found)
        return found.to(own.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[ctx.part], None, None


class SharedNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation with statistics of the whole batch; it uses another module's weights."""

    def __init__(self, own: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__(1, own.eps, own.momentum, affine=False, track_running_stats=False)
        self.num_features, self.affine = own.num_features, own.affine
        self.track_running_stats = own.track_running_stats
        self.weight, self.bias = own.weight, own.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(own, name))
        self.train(own.training)

    def _check_input_dim(self, input: Tensor) -> None:
        pass

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised values (n, C, ...) in the input's dtype."""
        if not self.training:
            return super().forward(input)
        values = input.to(torch.promote_types(input.dtype, WIDE))
        axes = [axis for axis in range(values.ndim) if axis != 1]
        shape = [1, -1, *[1] * (values.ndim - 2)]
        count = values.new_tensor([values.numel() / values.shape[1]])
        totals = shared.all_reduce(torch.cat([values.sum(axes), count]))
        rows = totals[-1].detach()
        mean = totals[:-1] / rows
        centred = values - mean.view(shape)
        variance = shared.all_reduce(centred.square().sum(axes)) / rows
        self._keep(mean, variance, rows)
        found = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            found = found * self.weight.view(shape) + self.bias.view(shape)
        return found.to(input.dtype)

    @torch.no_grad()
    def _keep(self, mean: Tensor, variance: Tensor, rows: Tensor) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        unbiased = variance * rows / (rows - 1).clamp(min=1)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)


def lead(size: int, device: torch.device, *setup: Any) -> Team:
    """Start a team's other processes (on GPUs, each has its own) and return the team.

    ``setup`` has the plugins, the request and the folder of the data for their trainers.
    """
    determinism = torch.are_deterministic_algorithms_enabled()
    computing = torch.get_num_threads(), determinism, device.type == "cuda"
    team = Team(0, size, device, tempfile.mkdtemp(prefix="calsweep-team-"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for rank in range(1, size):
        ours, theirs = Pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", "trainables.stages.follower", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Only rank 0 handles Ctrl-C; the others end with it.
        )
        theirs.close()
        team.followers.append((process, ours))
        ours.send((rank, size, team.folder, code_files(), computing, *setup))
    return team
