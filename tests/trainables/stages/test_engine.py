import io
import math
import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._inductor import config as inductor
from torch.nn import functional as F

from trainables.common.devices import trial_device
from trainables.contracts import NoWaiting
from trainables.data import Batcher, DatasetInfo, Images, RowArrays
from trainables.losses import build_loss
from trainables.methods import TrainingMethod, build_method
from trainables.schemes._base import Scheme
from trainables.stages import engine
from trainables.stages.engine import PRECISIONS, Trainer, place, predict, seeded_network
from trainables.stages.protocols import Protocol, learning_rate, protocol_from

CPU = torch.device("cpu")
CLASSES, BATCH = 3, 24
QUICK: dict[str, Any] = {"epochs": 4, "batch_size": BATCH, "lr": 0.05, "schedule": "cosine"}
SGD = {"momentum": 0.9, "weight_decay": 5e-4}
METHODS: dict[str, Mapping[str, Mapping[str, Any]]] = {
    "ce": {"ce": {}},
    "au": {"au": {}},
    "crl": {"crl": {}},
    "mixup": {"mixup": {}},
    "cutmix of a margin loss": {"mbls": {}, "cutmix": {}},
    "balcal": {"balcal": {}},
    "plp": {"plp": {}},
    "mcdrop": {"mcdrop": {}},
}


def images(rows: int = 96, channels: int = 1) -> RowArrays:
    """Return noisy images (rows, 8, 8, channels) of three patterns."""
    generator = np.random.default_rng(5)
    labels = np.arange(rows) % CLASSES
    patterns = generator.uniform(0, 255, (CLASSES, 8, 8, channels))
    noisy = patterns[labels] + generator.normal(0, 60, (rows, 8, 8, channels))
    return RowArrays(noisy.clip(0, 255).astype(np.uint8), labels.astype(np.int64))


def facts(channels: int = 1, augmentation: str = "none") -> DatasetInfo:
    return DatasetInfo(
        name="patterns",
        classes=tuple("abc"),
        inputs=Images(
            size=(8, 8),
            channels=channels,
            mean=(0.5,) * channels,
            std=(0.25,) * channels,
            augmentation=augmentation,
        ),
        split_rule="",
        source="",
    )


def normalised(batcher: Batcher, rows: Tensor) -> Tensor:
    (batch,) = batcher.batches(rows, len(rows))
    return batcher.plain(batch)


def protocol(**changes: Any) -> Protocol:
    return protocol_from({**QUICK, **changes})


def trainer(
    parts: Mapping[str, Mapping[str, Any]] | TrainingMethod = METHODS["ce"],
    seed: int = 0,
    rows: int = 96,
    channels: int = 1,
    augmentation: str = "none",
    model: str = "convnet",
    precision: str = "float32",
    **changes: Any,
) -> Trainer:
    return Trainer(
        model,
        parts if isinstance(parts, TrainingMethod) else build_method(parts),
        images(rows, channels),
        facts(channels, augmentation),
        protocol(**changes),
        seed,
        CPU,
        precision,
    )


def run(made: Trainer, until: int | None = None) -> Trainer:
    while made.epoch < (until or made.protocol.epochs):
        made.train_epoch()
    return made


def weights(made: Trainer) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in made.network.state_dict().items()}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.full
@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_weights(method):
    first = weights(run(trainer(METHODS[method]), 1))
    torch.manual_seed(123)
    torch.rand(7)
    assert same(weights(run(trainer(METHODS[method]), 1)), first)
    assert not same(weights(run(trainer(METHODS[method], seed=1), 1)), first)


def test_the_seed_decides_the_order_of_the_rows_besides_the_initial_weights():
    first, again, other = (trainer(seed=seed) for seed in (0, 0, 1))
    for made in (again, other):
        made.network.load_state_dict(first.network.state_dict())
    trained = [weights(run(made, 1)) for made in (first, again, other)]
    assert same(trained[1], trained[0])
    assert not same(trained[2], trained[0])


def test_loss_and_scheme_are_called_at_every_epoch(monkeypatch):
    made, told = trainer(), []
    loss, scheme = made.method.loss, made.method.scheme
    monkeypatch.setattr(loss, "start_epoch", lambda epoch: told.append(("loss", epoch)))
    for name in ("start_epoch", "end_epoch"):
        monkeypatch.setattr(
            scheme, name, lambda _, *numbers, name=name: told.append((name, *numbers)) or {"x": 2.0}
        )
    figures = [made.train_epoch() for _ in range(2)]
    assert told == [
        event
        for epoch in (0, 1)
        for event in (("loss", epoch), ("start_epoch", epoch, 4), ("end_epoch", epoch))
    ]
    assert {each["x"] for each in figures} == {2.0}


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "model"), [*((name, "convnet") for name in METHODS), ("ce", "resnet110-sd")]
)
def test_an_interrupted_training_goes_on_bitwise(method, model):
    rows = 48 if model == "convnet" else 4
    sizes = {"rows": rows, "batch_size": rows // 2, "model": model}

    def fresh() -> Trainer:
        return trainer(METHODS[method], augmentation="crop-flip", **sizes)

    whole = fresh()
    checkpoints, figures = [], []
    for _ in range(whole.protocol.epochs):
        stream = io.BytesIO()
        torch.save(whole.state_dict(), stream)
        checkpoints.append(stream.getvalue())
        figures.append(whole.train_epoch())
    for epoch in (1, 3):
        torch.manual_seed(1000 + epoch)
        resumed = fresh()
        torch.rand(3)
        resumed.load_state_dict(torch.load(io.BytesIO(checkpoints[epoch]), weights_only=True))
        assert resumed.epoch == epoch
        again = [resumed.train_epoch() for _ in range(epoch, whole.protocol.epochs)]
        assert again == figures[epoch:]
        assert same(weights(resumed), weights(whole))
        assert same(resumed.method.loss.state_dict(), whole.method.loss.state_dict())


def test_the_state_of_a_scheme_is_part_of_the_trainer_state(monkeypatch):
    remembered, told = {"seen": torch.ones(3)}, []
    monkeypatch.setattr(Scheme, "state_dict", lambda _: remembered)
    monkeypatch.setattr(Scheme, "load_state_dict", lambda _, state: told.append(state))
    trainer().load_state_dict(trainer().state_dict())
    assert told == [remembered]


def test_a_state_without_velocities_for_skipped_blocks_is_taken_up():
    """As in checkpoints of before every weight had one from the start."""
    first, resumed = (trainer(model="resnet110-sd", rows=4) for _ in range(2))
    first.train_epoch()
    state = first.state_dict()
    for number in range(0, len(state["optimizer"]["state"]), 2):
        del state["optimizer"]["state"][number]
    resumed.load_state_dict(state)
    assert math.isfinite(resumed.train_epoch()["train_loss"])


def reference(
    plan: Protocol, optimizer: type[torch.optim.Optimizer], clip: float = math.inf, **options: Any
) -> nn.Module:
    """Train as the protocol says, step by step and without any of the engine's own loop."""
    data, info = images(), facts()
    generator = torch.Generator().manual_seed(0)
    network = seeded_network("convnet", info, 0).train()
    steps = optimizer(network.parameters(), lr=plan.lr, **options)
    pixels = (torch.from_numpy(data.values).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
    targets = torch.from_numpy(data.labels)
    for epoch in range(plan.epochs):
        steps.param_groups[0]["lr"] = learning_rate(plan, epoch)
        for rows in torch.randperm(len(targets), generator=generator).split(plan.batch_size):
            steps.zero_grad()
            F.cross_entropy(network(pixels[rows]), targets[rows]).backward()
            nn.utils.clip_grad_norm_(network.parameters(), clip)
            steps.step()
    return network


@pytest.mark.parametrize(
    ("changes", "optimizer", "options"),
    [
        ({}, torch.optim.SGD, SGD),
        ({"momentum": 0.0, "weight_decay": 0.0}, torch.optim.SGD, {}),
        (
            {"nesterov": True, "weight_decay": 0.1},
            torch.optim.SGD,
            {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        ),
        (
            {"optimizer": "adamw", "lr": 0.002, "weight_decay": 0.3},
            torch.optim.AdamW,
            {"weight_decay": 0.3},
        ),
        (
            {"optimizer": "adam", "lr": 0.002, "weight_decay": 0.3},
            torch.optim.Adam,
            {"weight_decay": 0.3},
        ),
        ({"clip_norm": 0.1}, torch.optim.SGD, {**SGD, "clip": 0.1}),
    ],
)
def test_weights_are_those_of_a_plain_loop(changes, optimizer, options):
    made = run(trainer(epochs=2, **changes))
    expected = reference(made.protocol, optimizer, **options).state_dict()
    for name, value in made.network.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=2e-4, atol=2e-5, msg=name)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_steps_and_predictions_compute_in_the_precision_asked_for(precision):
    made, seen = trainer(precision=precision), []
    made.network.extractor.register_forward_hook(lambda *call: seen.append(call[-1].dtype))
    made.train_epoch()
    steps = len(seen)
    predict(made.network, facts().inputs.batcher(images(50).values))
    assert len(seen) > steps > 0
    assert set(seen) == {getattr(torch, precision)}
    assert all(weight.dtype == torch.float32 for weight in made.network.parameters())
    with pytest.raises(ValueError, match="precision='half' is not one of float32, bfloat16"):
        trainer(precision="half")


class Watched(TrainingMethod):
    """Cross-entropy that notes which rows and images it was given."""

    def __init__(self) -> None:
        super().__init__(build_loss("ce"))
        self.rows: list[list[int]] = []
        self.images: list[Tensor] = []
        self.losses: list[float] = []

    def training_loss(
        self, network: Any, images: Tensor, targets: Tensor, indices: Tensor, *drawn: Tensor
    ) -> tuple[Tensor, Tensor]:
        self.rows.append(indices.tolist())
        self.images.append(images)
        loss, logits = super().training_loss(network, images, targets, indices, *drawn)
        self.losses.append(float(loss.detach()))
        return loss, logits


@pytest.mark.parametrize(
    ("rows", "batch", "sizes"),
    [
        (96, 24, [24] * 4),
        (98, 24, [24] * 4 + [2]),
        (97, 24, [24] * 4),
        (25, 24, [24]),
        (20, 24, [20]),
        (1, 24, [1]),
        (5, 1, [1] * 5),
    ],
)
def test_only_a_remainder_of_one_row_is_left_out(rows, batch, sizes):
    watched = Watched()
    made = trainer(watched, rows=rows, batch_size=batch, epochs=2)
    figures = made.train_epoch()
    assert [len(part) for part in watched.rows] == sizes
    seen = [row for part in watched.rows for row in part]
    assert len(set(seen)) == len(seen) == sum(sizes)
    expected = np.average(watched.losses, weights=sizes)
    assert figures["train_loss"] == pytest.approx(expected, rel=1e-5)


def test_every_epoch_of_every_seed_draws_its_own_dropout():
    draws: list[float] = []
    for seed in (0, 1):
        made = trainer({"mcdrop": {}}, seed=seed)
        made.network.register_forward_pre_hook(lambda *_: draws.append(float(torch.rand(1))))
        run(made, 2)
    assert len(draws) == len(set(draws)) == 16


@pytest.mark.parametrize("nesterov", [False, True])
def test_weights_that_steps_leave_out_move_as_with_plain_sgd(nesterov):
    """Every weight without a gradient in some step, a third of them in the first."""
    options = {"momentum": 0.9, "weight_decay": 0.1, "nesterov": nesterov}
    made = trainer(**options)
    mine = list(made.network.parameters())
    theirs = [weight.detach().clone() for weight in mine]
    plain = torch.optim.SGD(theirs, lr=made.protocol.lr, foreach=False, fused=False, **options)
    for step in range(6):
        for number, (weight, twin) in enumerate(zip(mine, theirs, strict=True)):
            skipped = (number + step) % 3 == 0
            weight.grad = None if skipped else torch.randn_like(weight)
            twin.grad = None if skipped else weight.grad.clone()
        made._optimizer.step()
        plain.step()
        for weight, twin in zip(mine, theirs, strict=True):
            torch.testing.assert_close(weight.detach(), twin, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("own", "asked", "changed"),
    [("none", None, False), ("none", "crop-flip", True), ("crop-flip", "none", False)],
)
def test_the_protocol_decides_the_augmentation(own, asked, changed):
    watched = Watched()
    made = Trainer(
        "convnet", watched, images(), facts(1, own), protocol(augmentation=asked), 0, CPU
    )
    made.train_epoch()
    plain = facts().inputs.batcher(images().values)
    unchanged = torch.equal(watched.images[0], normalised(plain, torch.tensor(watched.rows[0])))
    assert unchanged != changed


def test_only_the_head_learns_and_features_stay_in_evaluation_mode():
    made = trainer(model="resnet8", learns="head", clip_norm=1.0)
    before, batch = weights(made), torch.randn(2, 1, 8, 8)
    features = made.network.eval().features(batch)
    run(made, 1)
    changed = {
        name for name, value in weights(made).items() if not torch.equal(value, before[name])
    }
    assert changed == {"classifier.weight", "classifier.bias"}
    assert torch.equal(made.network.features(batch), features)


def test_a_protocol_stores_learns_only_if_it_is_not_the_default():
    assert "learns" not in protocol().to_dict()
    assert protocol_from(protocol(learns="head").to_dict()).learns == "head"


def test_figures_of_a_loss_are_figures_of_the_epoch():
    made = trainer({"mbls": {"margin": 0.0}})
    assert made.train_epoch()["spared"] == 0
    assert "spared" not in trainer().train_epoch()


def test_clipping_does_not_wait_for_the_device():
    made = run(trainer(rows=240, clip_norm=0.1), 1)
    with NoWaiting(allowed=1):
        made.train_epoch()


@pytest.mark.parametrize("method", ["ce", "plp"])
def test_images_on_the_host_give_the_same_weights(method, monkeypatch):
    """Both ways to bring a batch to the device, bitwise on a CPU, a short last batch included."""
    kept = weights(run(trainer(METHODS[method], rows=110, augmentation="crop-flip"), 2))
    monkeypatch.setattr("trainables.data._inputs.fits", lambda *_: False)
    made = trainer(METHODS[method], rows=110, augmentation="crop-flip")
    assert not made._batcher.resident
    assert same(weights(run(made, 2)), kept)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_a_compiled_training_is_the_same_up_to_rounding(monkeypatch):
    # Else it first compiles and runs a program for every instruction set that the CPU may have.
    monkeypatch.setattr(inductor.cpp, "vec_isa_ok", True)
    plain, compiled = trainer(epochs=2), trainer(epochs=2, compile=True)
    figures = [[made.train_epoch()["train_loss"] for _ in range(2)] for made in (plain, compiled)]
    assert figures[0] == pytest.approx(figures[1], rel=1e-4)
    assert weights(plain).keys() == weights(compiled).keys()
    for name, value in weights(plain).items():
        torch.testing.assert_close(weights(compiled)[name], value, rtol=1e-3, atol=1e-4, msg=name)
    batcher = facts().inputs.batcher(images(50).values)
    assert predict(compiled.network, batcher).shape == (50, CLASSES)
    assert compiled.remarks() == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "reads"),
    [("ce", 1), ("au", 1), ("crl", 1), ("plp", 1), ("balcal", 3), ("mcdrop", 1)],
)
def test_an_epoch_waits_for_the_device_at_its_end_only(method, reads):
    """The reads: the loss of the epoch, and what the method itself counts and searches then."""
    made = run(trainer(METHODS[method], rows=240), 1)
    with NoWaiting(allowed=reads):
        made.train_epoch()
    with NoWaiting(allowed=reads - 1), pytest.raises(AssertionError, match="waits"):
        made.train_epoch()


def test_making_a_network_leaves_the_global_generator_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one = seeded_network("convnet", facts(), 7)
    assert torch.equal(torch.get_rng_state(), before)
    assert same(one.state_dict(), seeded_network("convnet", facts(), 7).state_dict())
    assert not same(one.state_dict(), seeded_network("convnet", facts(), 8).state_dict())


def test_predictions_are_in_order_whatever_the_batches(monkeypatch):
    made = run(trainer(), 1)
    batcher = facts().inputs.batcher(images(50).values)
    whole = predict(made.network, batcher)
    assert whole.shape == (50, CLASSES)
    assert whole.dtype == torch.float32
    assert not whole.requires_grad
    assert not made.network.training
    with torch.no_grad():
        expected = made.network(normalised(batcher, torch.arange(50)))
    torch.testing.assert_close(whole, expected)
    for rows, held in ((7, 2), (5, 1)):  # Some are left at the end, or none.
        monkeypatch.setattr(engine, "EVALUATION_BATCH", rows)
        monkeypatch.setattr(engine, "HELD_BYTES", held * rows * CLASSES * 4)
        torch.testing.assert_close(predict(made.network, batcher), whole, rtol=1e-5, atol=1e-5)


def test_computations_between_epochs_change_no_training():
    """Two trainings side by side, one of them validated, both with dropout."""
    batcher = facts().inputs.batcher(images(50).values)
    plain, watched = trainer(METHODS["mcdrop"]), trainer(METHODS["mcdrop"])
    for _ in range(3):
        plain.train_epoch()
        watched.train_epoch()
        predict(watched.network, batcher)
    assert same(weights(plain), weights(watched))
    torch.manual_seed(3)
    before = torch.get_rng_state()
    run(trainer(METHODS["mcdrop"]), 1)
    assert torch.equal(torch.get_rng_state(), before)


def test_networks_are_placed_in_the_fast_memory_format(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    network = place(seeded_network("convnet", facts(), 0), CPU)
    kernels = [p for p in network.parameters() if p.ndim == 4 and p.shape[1] > 1]
    assert kernels
    assert all(kernel.is_contiguous(memory_format=torch.channels_last) for kernel in kernels)
    assert not torch.backends.cudnn.allow_tf32  # Else float32 has ten bits on a GPU.


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_trains_the_same_with_images_on_the_gpu_or_the_host(monkeypatch):
    def losses(resident: bool) -> list[float]:
        monkeypatch.setattr("trainables.data._inputs.fits", lambda *_: resident)
        made = Trainer(
            "convnet",
            build_method({"ce": {}}),
            images(),
            facts(1, "crop-flip"),
            protocol(),
            0,
            trial_device(0.5),
        )
        return [made.train_epoch()["train_loss"] for _ in range(3)]

    assert losses(True) == pytest.approx(losses(False), rel=1e-3)
