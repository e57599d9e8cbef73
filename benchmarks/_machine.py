"""Machine description and images for the scripts that time trainings."""

import io
import os
import platform
import time
from pathlib import Path

import numpy as np
import torch
import torchvision
from _page import load
from PIL import Image
from torch import Tensor

from trainables.data import DatasetInfo, Images, RowArrays, read_source
from trainables.data.imagenet import WHOLE
from trainables.refinements import HeadTrainer, build_refinement

SIDE, CLASSES = 32, 10


def describe(device: torch.device) -> str:
    """Return hardware, versions and load in one line."""
    if device.type == "cuda":
        libraries = f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
        hardware = f"{torch.cuda.get_device_name(device)}, {libraries}"
    else:
        hardware = f"{_processor()}, {torch.get_num_threads()} threads"
    versions = (
        f"Python {platform.python_version()}, PyTorch {torch.__version__}, "
        f"torchvision {torchvision.__version__}"
    )
    return f"{hardware}; {os.cpu_count()} cores; {versions}; load average at the end {load()}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def crops_a_second(count: int = 256) -> float:
    """Return the number of crops of JPEG images (500 x 375) per CPU second."""
    generator = np.random.default_rng(0)
    contents = np.empty(count, object)
    for row in range(count):
        blocks = generator.integers(0, 256, (48, 64, 3), dtype=np.uint8)
        Image.fromarray(blocks).resize((500, 375)).save(stream := io.BytesIO(), "JPEG", quality=95)
        contents[row] = stream.getvalue()
    batcher = WHOLE.batcher(contents)
    (batch,) = batcher.batches(torch.arange(count), count)
    used = time.process_time()
    batcher.view(batch, WHOLE.augmentation, torch.Generator().manual_seed(0))
    return count / (time.process_time() - used)


def training_images(path: Path | None, count: int) -> tuple[RowArrays, DatasetInfo]:
    """Return ``count`` training images of an .npz file, or random images in CIFAR-10's format."""
    if path is not None:
        source = read_source(f"npz:{path}", ".")
        arrays = RowArrays(source.train.read(0, count), source.train.labels[:count])
        return arrays, source.info
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)
    labels = np.arange(count, dtype=np.int64) % CLASSES
    info = DatasetInfo(
        name="random",
        classes=tuple(str(label) for label in range(CLASSES)),
        inputs=Images(
            size=(SIDE, SIDE),
            channels=3,
            mean=(0.5,) * 3,
            std=(0.25,) * 3,
            augmentation="crop-flip",
        ),
        split_rule="",
        source="",
    )
    return RowArrays(images, labels), info


def macal_heads(
    count: int, views: list[Tensor], labels: Tensor, classes: int, device: torch.device
) -> list[HeadTrainer]:
    """Return ``count`` trainers of MaC-Cal heads with different gammas, on features (N, D)."""
    return [
        HeadTrainer(
            build_refinement("macal", epochs=2, gamma=0.9 + 0.001 * number),
            views,
            labels,
            num_classes=classes,
            batch_size=128,
            momentum=0.9,
            weight_decay=5e-4,
            seed=0,
            device=device,
        )
        for number in range(count)
    ]


def clock(device: torch.device) -> float:
    """Return the wall-clock time in seconds, after the GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
