"""Checks of losses; each takes the name of a loss."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from search_spaces import Parameter, load_space
from trainables.contracts.no_waiting import NoWaiting
from trainables.contracts.require import require
from trainables.losses import LOSSES, Loss, build_loss

ROWS, CLASSES = 24, 10
IGNORED = -100
MOST_CORNERS = 64


def batch(
    scale: float = 3.0, rows: int = ROWS, classes: int = CLASSES, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Return random logits (N, K), float64, random targets (N,), and the indices 0 to N - 1."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    targets = torch.randint(classes, (rows,), generator=generator)
    return logits, targets, torch.arange(rows)


def value_and_gradient(
    loss: Loss, logits: Tensor, targets: Tensor, indices: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the value of a loss and its gradient with respect to the logits."""
    logits = logits.detach().clone().requires_grad_()
    value = loss(logits, targets, indices)
    value.backward()
    assert logits.grad is not None
    return value.detach(), logits.grad


def seasoned(name: str, rows: int = ROWS, classes: int = CLASSES, **parameters: Any) -> Loss:
    """Return a loss after three epochs, in evaluation mode, so that its state no longer changes."""
    loss = build_loss(name, **parameters)
    loss.prepare(rows, classes)
    generator = torch.Generator().manual_seed(7)
    for epoch in range(3):
        loss.start_epoch(epoch)
        logits = torch.randn(rows, classes, generator=generator)
        targets = torch.randint(classes, (rows,), generator=generator)
        # Half of the predictions are right, so that samples have different histories.
        right = torch.rand(rows, generator=generator) < 0.5
        targets = torch.where(right, logits.argmax(1), targets)
        with torch.no_grad():
            loss(logits, targets, torch.arange(rows))
    loss.start_epoch(3)
    return loss.eval()


def alternatives(parameter: Parameter, share: float = 0.37) -> list[Any]:
    """Return all choices but the default, or one number at a ``share`` of the (log) range."""
    if parameter.type == "categorical":
        return [choice for choice in parameter.choices if choice != parameter.default]
    assert parameter.low is not None
    assert parameter.high is not None
    if parameter.scale == "log":
        inside = parameter.low * (parameter.high / parameter.low) ** share
    else:
        inside = parameter.low + share * (parameter.high - parameter.low)
    return [parameter.check(int(inside) if parameter.type == "int" else inside)]


def settings(name: str) -> list[dict[str, Any]]:
    """Return {}, which is the default setting, and settings with one changed parameter each."""
    space = load_space("methods", name)
    changes = [{p: v} for p, q in space.parameters.items() for v in alternatives(q)]
    return [{}, *changes]


def ends(parameter: Parameter) -> list[Any]:
    """Return all choices, or the ends of the range, and 0 and 1 if they are in the range."""
    if parameter.type == "categorical":
        return list(parameter.choices)
    low, high = parameter.low, parameter.high
    assert low is not None
    assert high is not None
    kind = int if parameter.type == "int" else float
    return [kind(v) for v in dict.fromkeys((low, high, 0, 1)) if low <= v <= high]


def corners(name: str) -> Iterator[dict[str, Any]]:
    """Yield, for each searched parameter, one setting with each value of its ``ends``.

    All combinations of these values follow if there are at most ``MOST_CORNERS``.
    """
    searched = {key: ends(p) for key, p in load_space("methods", name).searched().items()}
    yield from ({key: value} for key, values in searched.items() for value in values)
    if math.prod(map(len, searched.values())) <= MOST_CORNERS:
        yield from (dict(zip(searched, v, strict=True)) for v in product(*searched.values()))


def gradients(name: str, values: Mapping[str, Any], turn: int = 0) -> Iterator[Tensor]:
    """Yield a loss's gradient, flattened, at the same logits in each of 21 epochs.

    The logits are high for one class of each row. Targets are this class plus ``turn``, modulo 10.
    """
    draw = torch.Generator().manual_seed(0)
    targets, rows = torch.randint(10, (256,), generator=draw), torch.arange(256)
    logits = 4 * torch.randn(256, 10, generator=draw, dtype=torch.float64)
    logits[rows, targets] += 8
    logits.requires_grad_()
    targets = (targets + turn) % 10
    loss = build_loss(name, **values)
    loss.prepare(256, 10)
    for epoch in range(21):
        loss.start_epoch(epoch)
        yield torch.autograd.grad(loss(logits, targets, rows), logits)[0].flatten()


def heeds_its_targets(name: str) -> None:
    """The loss depends on its targets."""
    same = map(torch.equal, gradients(name, {}), gradients(name, {}, turn=1))
    require(not all(same), "other targets do not change the gradient; use the targets")


def heeds_its_parameters(name: str) -> None:
    """Each searched parameter has an effect."""
    for key, parameter in load_space("methods", name).searched().items():
        # Some parameters have an effect only with one value of another parameter.
        changes = (
            not torch.equal(one, other)
            for setting in settings(name)
            if key not in setting
            for value in ends(parameter)
            if value != parameter.default
            for one, other in zip(
                gradients(name, setting), gradients(name, {**setting, key: value}), strict=True
            )
        )
        require(any(changes), f"no value of {key} changes the gradient; use {key} or remove it")


def is_never_cross_entropy(name: str) -> None:
    """No searched value makes the loss plain cross-entropy."""
    plain = next(gradients("ce", {}))
    for values in corners(name):
        alike = (torch.cosine_similarity(g, plain, dim=0) for g in gradients(name, values))
        shown = ", ".join(
            f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
            for key, value in values.items()
        )
        require(
            any(similarity < 1 - 1e-8 for similarity in alike),
            f"with {shown or 'its defaults'} it is plain cross-entropy or a multiple of it, which "
            "a search may then choose; narrow the range",
        )


def _refusal(call: Callable[[], Any]) -> str:
    """Return the message of a call's ``ValueError``; empty if it raises none."""
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


def waits_for_no_device(name: str) -> None:
    """A step does not make the host wait for the device."""
    for setting in settings(name):
        loss = build_loss(name, **setting)
        loss.prepare(ROWS, CLASSES)
        loss.start_epoch(0)
        logits, targets, indices = batch()
        targets[::5] = IGNORED
        for _ in range(2):
            logits = logits.detach().float().requires_grad_()
            with NoWaiting():
                loss(logits, targets, indices).backward()


def refuses_shapes(name: str) -> None:
    """Shapes that do not fit together are refused."""
    loss = build_loss(name)
    loss.prepare(ROWS, CLASSES)
    expected = "do not belong together: expected (N, K) with (N,), or (N, K, H, W) with (N, H, W)"
    for logits, targets in (((24, 10), (23,)), ((2, 10, 3, 4), (2, 4, 3)), ((10,), ())):
        text = f"logits {logits} and targets {targets} {expected}"
        rows = torch.randn(logits), torch.zeros(targets, dtype=torch.int64), torch.arange(24)
        message = _refusal(partial(loss, *rows))
        require(bool(message), f"logits {logits} and targets {targets} are accepted")
        require(message == text, f"expected the message {text}, got {message}")


def ignores_rows(name: str, ignored: int = IGNORED) -> None:
    """Ignored rows change neither value nor gradient."""
    for setting in settings(name):
        logits, targets, indices = batch(scale=6.0)
        targets = torch.where(targets == ignored, 0, targets)
        drop = torch.arange(ROWS) % 3 == 1
        targets[drop] = ignored
        loss = seasoned(name, ignore_index=ignored, **setting)
        value, gradient = value_and_gradient(loss, logits, targets, indices)
        rest, own = value_and_gradient(loss, logits[~drop], targets[~drop], indices[~drop])
        close = torch.testing.assert_close
        close(value, rest, rtol=1e-10, atol=1e-12, msg=f"the value changes with {setting}")
        where = f"the gradient changes with {setting}"
        close(gradient[~drop], own, rtol=1e-8, atol=1e-12, msg=where)
        require(bool((gradient[drop] == 0).all()), f"ignored rows have a gradient with {setting}")


def is_nothing_without_rows(name: str) -> None:
    """A batch of only ignored rows has the value 0 and the gradient 0."""
    for setting in settings(name):
        logits, targets, indices = batch()
        nothing = torch.full_like(targets, IGNORED)
        value, gradient = value_and_gradient(seasoned(name, **setting), logits, nothing, indices)
        require(bool(value == 0), f"the value is {value} with {setting}")
        require(bool((gradient == 0).all()), f"the gradient is not 0 with {setting}")


def stays_finite(
    name: str, dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64)
) -> None:
    """Extreme logits give a finite value and gradient."""
    signs = batch(seed=1)[0].sign()
    one_sided = torch.full_like(signs, -1.0)
    one_sided[:, 2] = 1.0
    wide, targets, indices = batch()
    for setting in settings(name):
        loss = seasoned(name, **setting)
        for logits in (1e4 * signs, 1e4 * one_sided, 1e3 * wide, torch.zeros_like(wide)):
            for dtype in dtypes:
                value, gradient = value_and_gradient(loss, logits.to(dtype), targets, indices)
                where = f"is not finite in {dtype} with {setting}"
                require(bool(value.isfinite()), f"the value {where}")
                require(bool(gradient.isfinite().all()), f"the gradient {where}")


def has_single_precision(name: str) -> None:
    """The value is float64 for float64 logits, else float32."""
    logits, targets, indices = batch()
    loss = seasoned(name)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        expected = torch.float64 if dtype == torch.float64 else torch.float32
        found = loss(logits.to(dtype), targets, indices).dtype
        require(found == expected, f"expected {expected} for {dtype} logits, got {found}")


def keeps_precision_under_autocast(name: str) -> None:
    """Under bfloat16 autocast, the loss and its gradient equal those computed in float32."""
    logits, targets, indices = batch()
    loss = seasoned(name)
    plain, gradient = value_and_gradient(loss, logits.float(), targets, indices)
    cast_logits = logits.float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        cast = loss(cast_logits, targets, indices)
    cast.backward()
    torch.testing.assert_close(cast, plain)
    torch.testing.assert_close(cast_logits.grad, gradient)


def has_the_gradient_of_its_value(name: str, **setting: Any) -> None:
    """The gradient is the derivative of the value."""
    logits, targets, indices = batch(rows=8, classes=5, scale=1.5, seed=5)
    loss = seasoned(name, **setting)
    same = torch.autograd.gradcheck(lambda x: loss(x, targets, indices), logits.requires_grad_())
    require(same, "the gradient differs from finite differences of the value")


def minds_no_order(name: str) -> None:
    """The order of rows has no effect."""
    logits, targets, indices = batch()
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(3))
    loss = seasoned(name)
    value, gradient = value_and_gradient(loss, logits, targets, indices)
    moved, moved_gradient = value_and_gradient(loss, logits[order], targets[order], indices[order])
    torch.testing.assert_close(moved, value)
    torch.testing.assert_close(moved_gradient, gradient[order])


def takes_one_row_and_pixels(name: str) -> None:
    """A batch may be a single row, or images (N, K, H, W)."""
    value, gradient = value_and_gradient(seasoned(name), *batch(rows=1))
    require(bool(value.isfinite()) and bool(gradient.isfinite().all()), "one row is not finite")
    logits, targets, _ = batch()
    pixels = logits.view(2, 3, 4, CLASSES).movedim(-1, 1)
    image = seasoned(name)(pixels, targets.view(2, 3, 4), torch.arange(2))
    require(image.shape == () and bool(image.isfinite()), f"the value for images is {image}")


def leaves_its_inputs_alone(name: str) -> None:
    """A call does not change its inputs."""
    inputs = batch()
    copies = tuple(part.clone() for part in inputs)
    seasoned(name).train()(*inputs)
    same = all(torch.equal(one, other) for one, other in zip(inputs, copies, strict=True))
    require(same, "the inputs are changed")


def survives_saving(name: str) -> None:
    """A loss's state survives saving and loading."""
    first, second = build_loss(name), build_loss(name)
    for loss in (first, second):
        loss.prepare(ROWS, CLASSES)
    for epoch in range(3):
        first.start_epoch(epoch)
        for seed in range(2):
            first(*batch(seed=10 * epoch + seed))
    second.load_state_dict(first.state_dict())
    same = torch.equal(first(*batch(seed=99)), second(*batch(seed=99)))
    require(same, "the loaded loss differs")


def names_bad_values(name: str) -> None:
    """A bad value of a parameter is refused, with a message that names parameter and value."""
    for key, parameter in load_space("methods", name).parameters.items():
        numbers = [math.nan, math.inf, "many"]
        for value in ["no-such-value"] if parameter.type == "categorical" else numbers:
            message = _refusal(partial(build_loss, name, **{key: value}))
            require(bool(message), f"{key}={value!r} is accepted")
            bad = f"{key}={value!r}"
            require(bad in message, f"expected {bad} in the message, got: {message}")


def sums_what_it_averages(name: str) -> None:
    """With reduction=sum, the loss is the mean times the number of rows that are not ignored."""
    if "reduction" not in LOSSES.parameter_names(name):
        return
    logits, targets, indices = batch()
    targets[::4] = IGNORED
    for setting in settings(name):
        mean = seasoned(name, **setting)(logits, targets, indices)
        total = seasoned(name, reduction="sum", **setting)(logits, targets, indices)
        counted = (targets != IGNORED).sum()
        torch.testing.assert_close(total, mean * counted, msg=f"with {setting}")


LOSS_CHECKS: tuple[Callable[..., None], ...] = (
    waits_for_no_device,
    refuses_shapes,
    ignores_rows,
    is_nothing_without_rows,
    stays_finite,
    has_single_precision,
    keeps_precision_under_autocast,
    has_the_gradient_of_its_value,
    minds_no_order,
    takes_one_row_and_pixels,
    leaves_its_inputs_alone,
    survives_saving,
    names_bad_values,
    sums_what_it_averages,
    heeds_its_targets,
    heeds_its_parameters,
)
