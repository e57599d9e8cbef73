"""A plain version of the training loop in the papers' repositories, to compare with our engine.

A ``DataLoader`` with workers augments one PIL image after the other with torchvision; every step
moves a float32 batch to the device and reads the loss back. Network, order of the layers and the
optimiser's arithmetic are the same as in the engine.
"""

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from trainables.data import DatasetInfo, RowArrays
from trainables.stages.engine import seeded_network
from trainables.stages.protocols import Protocol, learning_rate

PADDING = 4


class _Pictures(Dataset[tuple[Tensor, int]]):
    def __init__(self, arrays: RowArrays, steps: transforms.Compose) -> None:
        self._arrays = arrays
        self._steps = steps

    def __len__(self) -> int:
        return len(self._arrays.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        picture = Image.fromarray(self._arrays.values[row])
        return self._steps(picture), int(self._arrays.labels[row])


class PlainLoop:
    """Trains with cross-entropy, as the released code of the papers does.

    Args:
        model: Name of the network.
        arrays: The training images.
        info: Description of the data set.
        protocol: Epochs, learning rate and batch size of SGD.
        seed: Seed of the initial weights, the order and the augmentation.
        device: The device to train on.
        workers: Number of processes that augment; 0 augments in this process.
    """

    def __init__(
        self,
        model: str,
        arrays: RowArrays,
        info: DatasetInfo,
        protocol: Protocol,
        seed: int,
        device: torch.device,
        workers: int,
    ) -> None:
        self.network: nn.Module = seeded_network(model, info, seed).to(device)
        self.device = device
        self.epoch = 0
        self._protocol = protocol
        self._normalise = transforms.Normalize(info.inputs.mean, info.inputs.std)
        steps = [
            transforms.RandomCrop(info.inputs.size, padding=PADDING),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            self._normalise,
        ]
        self._loader = DataLoader(
            _Pictures(arrays, transforms.Compose(steps)),
            protocol.batch_size,
            shuffle=True,
            num_workers=workers,
            pin_memory=device.type == "cuda",
            persistent_workers=workers > 0,
            generator=torch.Generator().manual_seed(seed),
        )
        self._optimizer = torch.optim.SGD(
            self.network.parameters(),
            lr=protocol.lr,
            momentum=protocol.momentum,
            weight_decay=protocol.weight_decay,
        )

    def train_epoch(self) -> float:
        """Run one epoch; return its mean loss over the rows."""
        self.network.train()
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self._protocol, self.epoch)
        total, rows = 0.0, 0
        for images, labels in self._loader:
            images, labels = images.to(self.device), labels.to(self.device)
            loss = F.cross_entropy(self.network(images), labels)
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            total += loss.item() * len(labels)
            rows += len(labels)
        self.epoch += 1
        return total / rows

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Return the logits (N, K) of images, uint8 (N, H, W, C), on the CPU."""
        self.network.eval()
        rows = []
        for part in images.split(1000):
            batch = self._normalise(part.permute(0, 3, 1, 2) / 255).to(self.device)
            rows.append(self.network(batch).cpu())
        return torch.cat(rows)
