import csv
import json
import math
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainables.common.errors import InputError
from trainables.stages.protocols import (
    Protocol,
    learning_rate,
    named_protocol,
    protocol_from,
    protocol_names,
)

PLAIN: dict[str, Any] = {"epochs": 10, "batch_size": 32, "lr": 0.1}
STEP: dict[str, Any] = {**PLAIN, "schedule": "step", "milestones": (4, 8), "decay": 0.1}

# Paper and data set of ../shared/published/protocols.csv, and what of a row is told apart by model.
PUBLISHED = {
    "mukhoti2020": ("macal", "cifar10", ""),
    "mukhoti2020-tiny": ("macal", "tiny-imagenet", ""),
    "mbls2022": ("mbls", "cifar10", ""),
    "mbls2022-tiny": ("mbls", "tiny-imagenet", ""),
    "mbls2022-cub": ("mbls", "cub200", ""),
    "mbls2022-text": ("mbls", "20newsgroups", ""),
    "mbls2022-voc": ("mbls", "voc2012", ""),
    "acls2023": ("acls", "cifar10", ""),
    "acls2023-tiny": ("acls", "tiny-imagenet", ""),
    "acls2023-imagenet": ("acls", "imagenet", ""),
    "xia2022": ("aurc", "cifar10", ""),
    "xia2022-cifar100": ("aurc", "cifar100", ""),
    "xia2022-tiny": ("aurc", "tiny-imagenet", ""),
    "cls2023-lt-densenet40": ("cls", "cifar10-lt", "densenet40"),
    "cls2023-lt-wrn-28": ("cls", "cifar10-lt", "wrn-28"),
    "cls2023-lt-resnet110": ("cls", "cifar10-lt", "resnet110"),
    "cls2023-lt-resnet110-sd": ("cls", "cifar10-lt", "resnet110-sd"),
    "cls2023-lt100-resnet110-sd": ("cls", "cifar100-lt", "resnet110-sd"),
}
OURS = {"digits", "cifar-cpu", "cifar-fast", "features"}
OTHERS = {"chen2017-voc"}  # Of papers whose figures are not repeated here.


@st.composite
def plans(draw: st.DrawFn) -> Protocol:
    """Draw a protocol whose every field that counts epochs may have any value."""
    epochs = draw(st.integers(1, 12))
    schedule = draw(st.sampled_from(["constant", "step", "cosine", "poly"]))
    steps: dict[str, Any] = {}
    if schedule == "step":
        found = draw(st.lists(st.integers(1, epochs), min_size=1, max_size=3))
        steps = {"milestones": tuple(sorted(found)), "decay": draw(st.sampled_from([0.1, 0.5, 1]))}
    below = st.integers(0, epochs - 1)
    own = {"epochs": epochs, "warmup": draw(below), "keep_after": draw(below)}
    return Protocol(**{**PLAIN, **own}, schedule=schedule, keep="best_val_nll", **steps)


def test_every_protocol_is_ours_or_published():
    assert set(protocol_names()) == OURS | OTHERS | set(PUBLISHED)


def stated(text: str) -> float | None:
    return None if text in ("", "not stated") else float(text)


@pytest.mark.shared
@pytest.mark.parametrize("name", PUBLISHED)
def test_values_are_the_published_ones(name, shared):
    paper, dataset, model = PUBLISHED[name]
    with (shared / "published" / "protocols.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["paper"] == paper]
    row = next(r for r in rows if r["dataset"] == dataset and (r["models"] == model or not model))
    protocol = named_protocol(name)
    assert protocol.epochs == int(row["epochs"])
    assert protocol.lr == float(row["lr"])
    if row["optimizer"] != "not stated":
        assert protocol.optimizer == row["optimizer"]
    if name not in ("mbls2022-tiny", "mbls2022-text"):
        assert protocol.batch_size == int(row["batch_size"])
    decay = stated(row["weight_decay"])
    assert decay is None or protocol.weight_decay == decay
    if protocol.optimizer == "sgd" and stated(row["momentum"]) is not None:
        assert protocol.momentum == float(row["momentum"])


def test_xia_multiplies_by_a_fifth():
    protocol = named_protocol("xia2022")
    rates = [learning_rate(protocol, epoch) for epoch in (59, 60, 119, 120, 160, 199)]
    assert rates == pytest.approx([0.1, 0.02, 0.02, 0.004, 0.0008, 0.0008])


@pytest.mark.parametrize("epoch", [-1, 10])
def test_epochs_outside_the_protocol_are_refused(epoch):
    with pytest.raises(ValueError, match=rf"epoch={epoch} is outside \[0, 10\)"):
        learning_rate(Protocol(**PLAIN), epoch)


def test_short_form_keeps_the_shape():
    short = named_protocol("mukhoti2020/0.1")
    assert (short.name, short.epochs, short.milestones) == ("mukhoti2020/0.1", 35, (15, 25))
    full = named_protocol("mukhoti2020")
    for epoch in range(35):
        assert learning_rate(short, epoch) == learning_rate(full, 10 * epoch)
    kept = {**full.to_dict(), "epochs": 35, "milestones": [15, 25]}
    assert short.to_dict() == kept


@given(plans(), st.sampled_from([0.004, 0.05, 0.1, 1 / 3, 0.5, 0.75, 1]))
@settings(max_examples=80, derandomize=True, database=None)
def test_a_short_form_has_its_share_of_everything_that_is_counted_in_epochs(plan, share):
    short = plan.shortened(share)
    # Halves are rounded up; nothing that is due disappears, and something is left to do.
    scaled = {n: math.floor(n * share + 0.5) for n in range(plan.epochs + 1)}
    epochs = max(1, scaled[plan.epochs])
    assert short == replace(
        plan,
        name=f"custom/{share:g}",
        epochs=epochs,
        milestones=tuple(max(1, scaled[epoch]) for epoch in plan.milestones),
        warmup=min(scaled[plan.warmup], epochs - 1),
        keep_after=min(scaled[plan.keep_after], epochs - 1),
    )


@given(plans())
@settings(max_examples=80, derandomize=True, database=None)
def test_rates_are_those_of_the_formulas(plan):
    for epoch in range(plan.epochs):
        expected = plan.lr
        since, whole = epoch - plan.warmup, plan.epochs - plan.warmup
        if since < 0:
            expected *= 1 - (plan.warmup - epoch) / (plan.warmup + 1)
        elif plan.schedule == "step":
            for milestone in plan.milestones:
                expected *= 1 if epoch < milestone else plan.decay
        elif plan.schedule == "cosine":
            expected *= math.cos(math.pi * since / whole / 2) ** 2
        elif plan.schedule == "poly":
            expected *= (1 - since / whole) ** 0.9
        assert learning_rate(plan, epoch) == pytest.approx(expected, rel=1e-9), epoch


@pytest.mark.parametrize("share", ["0", "-1", "1.5", "ten", "", "nan", "0.1/0.1"])
def test_bad_shares_are_refused(share):
    with pytest.raises(InputError, match=r"is not a share of the epochs in \(0, 1\]"):
        named_protocol(f"mukhoti2020/{share}")


def test_unknown_names_list_near_ones():
    with pytest.raises(InputError, match=r"unknown protocol 'mukhoti'; near are: mukhoti2020"):
        named_protocol("mukhoti")
    with pytest.raises(InputError, match=r"unknown protocol 'zz/0.1'; there are: acls2023, "):
        named_protocol("zz/0.1")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"epochs": 0}, r"epochs=0 is outside \[1, inf\)"),
        ({"epochs": 2.5}, r"epochs=2.5 is not a whole number"),
        ({"epochs": "ten"}, r"epochs='ten' is not a number"),
        ({"epochs": True}, r"epochs=True is not a number"),
        ({"batch_size": -4}, r"batch_size=-4 is outside"),
        ({"optimizer": "lbfgs"}, r"optimizer='lbfgs' is not one of sgd, adam, adamw"),
        ({"lr": 0}, r"lr=0 is outside \(0, inf\)"),
        ({"lr": float("nan")}, r"lr=nan is outside \(0, inf\)"),
        ({"lr": "1e-4"}, r"lr='1e-4' is not a number"),
        ({"momentum": 1.0}, r"momentum=1.0 is outside \[0, 1\)"),
        ({"weight_decay": -1e-4}, r"weight_decay=-0.0001 is outside \[0, inf\)"),
        ({"schedule": "linear"}, r"schedule='linear' is not one of constant, step, cosine"),
        ({"schedule": "step"}, r"schedule=step needs milestones"),
        ({"milestones": (3,)}, r"milestones=\[3\] and decay=1 need schedule=step, not constant"),
        ({"decay": 0.1}, r"decay=0.1 need schedule=step, not constant"),
        ({**STEP, "milestones": (8, 4)}, r"milestones=\[8, 4\] are not sorted"),
        ({**STEP, "milestones": (4, 11)}, r"milestone=11 is outside \[1, 10\], the epochs$"),
        ({**STEP, "milestones": (0, 4)}, r"milestone=0 is outside \[1, inf\)"),
        ({**STEP, "milestones": 4}, r"milestones=4 is not a list of epochs"),
        ({**STEP, "decay": 0}, r"decay=0 is outside \(0, 1\]"),
        ({"nesterov": "yes"}, r"nesterov='yes' is not one of False, True"),
        ({"nesterov": True, "momentum": 0.0}, r"nesterov=True needs optimizer=sgd and a momentum"),
        ({"nesterov": True, "optimizer": "adamw"}, r"nesterov=True needs optimizer=sgd"),
        ({"warmup": 10}, r"warmup=10 is outside \[0, 10\), the epochs$"),
        ({"augmentation": "flip"}, r"augmentation='flip' is not one of none, crop-flip, resized"),
        ({"validation": 0}, r"validation=0 is outside \(0, inf\)"),
        ({"validation": 2.5}, r"validation=2.5 is neither a fraction in \(0, 1\) nor a whole"),
        ({"clip_norm": 0}, r"clip_norm=0 is outside \(0, inf\)"),
        (
            {"keep": "best"},
            r"keep='best' is not one of last, best_val_nll, best_val_acc, best_val_nll_after_ts",
        ),
        ({"keep": "best_val_nll", "keep_after": 10}, r"keep_after=10 is outside \[0, 10\), the"),
        (
            {"keep_after": 3},
            r"keep_after=3 needs keep=best_val_nll, best_val_acc or best_val_nll_after_ts$",
        ),
        ({"compile": "yes"}, r"compile='yes' is not one of False, True"),
        ({"name": 3}, r"name=3 is not text"),
    ],
)
def test_wrong_values_are_named(change, text):
    with pytest.raises(ValueError, match=text):
        Protocol(**{**PLAIN, **change})
    with pytest.raises(InputError, match=rf"^protocol: .*{text}"):
        protocol_from({**PLAIN, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": 1},
        {"batch_size": 1},
        {"momentum": 0},
        {"weight_decay": 0},
        {"warmup": 9},
        {"keep": "best_val_nll", "keep_after": 9},
        {**STEP, "milestones": (1, 10, 10)},
        {**STEP, "decay": 1},
        {"nesterov": True, "momentum": 0.1},
        {"validation": 1},
        {"validation": 0.999},
        {"clip_norm": 1e-9},
        {"augmentation": "scale-crop-flip"},
        {"augmentation": "resized-crop-flip"},
    ],
)
def test_values_at_the_ends_of_their_ranges_are_taken(change):
    made = Protocol(**{**PLAIN, **change})
    assert {key: getattr(made, key) for key in change} == change
    assert protocol_from({**PLAIN, **change}) == made
    assert isinstance(made.validation, type(change.get("validation")))


def test_protocols_are_frozen():
    with pytest.raises(FrozenInstanceError):
        Protocol(**PLAIN).epochs = 3  # type: ignore[misc]


def test_equal_numbers_give_equal_protocols():
    whole = Protocol(**{**PLAIN, "lr": 1, "epochs": 10.0}, validation=5000.0, weight_decay=0)
    assert whole == Protocol(**{**PLAIN, "lr": 1.0}, validation=5000, weight_decay=0.0)
    texts = {json.dumps(whole.to_dict()), json.dumps(protocol_from(whole.to_dict()).to_dict())}
    assert len(texts) == 1
    counts = {"epochs": 10, "batch_size": 8, "warmup": 2, "keep_after": 1}
    given = {name: float(value) for name, value in counts.items()}
    exact = Protocol(**{**PLAIN, **given}, keep="best_val_nll")
    assert {name: repr(getattr(exact, name)) for name in counts} == {
        name: repr(value) for name, value in counts.items()
    }


@pytest.mark.parametrize("name", [*protocol_names(), "mukhoti2020/0.1"])
def test_dictionary_survives_json(name):
    protocol = named_protocol(name)
    again = protocol_from(json.loads(json.dumps(protocol.to_dict())))
    assert again.to_dict() == protocol.to_dict()
    for epoch in range(protocol.epochs):
        assert learning_rate(again, epoch) == learning_rate(protocol, epoch)


def test_labels_do_not_enter_the_key():
    first, second = Protocol(**PLAIN, name="a", note="x"), Protocol(**PLAIN, name="b", source="y")
    assert first.to_dict() == second.to_dict()
    assert not {"name", "source", "note"} & set(first.to_dict())
    assert Protocol(**PLAIN, warmup=1).to_dict() != first.to_dict()


@pytest.mark.parametrize("name", protocol_names())
def test_gradients_are_clipped_where_the_released_code_does(name):
    clipped = name.startswith(("mukhoti2020", "mbls2022", "acls2023"))
    clipped = clipped and not name.endswith(("imagenet", "text", "voc"))
    assert named_protocol(name).clip_norm == (2.0 if clipped else None)
    assert ("clipped to norm 2" in named_protocol(name).note) == clipped


def test_the_aurc_protocols_keep_the_epoch_of_lowest_validation_loss():
    for name, warmup in [("xia2022", 40), ("xia2022-cifar100", 40), ("xia2022-tiny", 20)]:
        protocol = named_protocol(name)
        assert (protocol.keep, protocol.keep_after) == ("best_val_nll", warmup)
    assert named_protocol("xia2022/0.1").keep_after == 4
    assert named_protocol("xia2022/0.001").keep_after == 0


@pytest.mark.parametrize("name", [n for n in PUBLISHED if n.startswith(("mbls2022", "acls2023"))])
def test_the_margin_protocols_keep_the_epoch_of_highest_validation_accuracy(name):
    """But where the released code has the test images for it, or none."""
    other = name.endswith(("cub", "voc", "imagenet"))
    assert named_protocol(name).keep == ("last" if other else "best_val_acc")


@pytest.mark.parametrize(
    ("epochs", "milestones"), [(1, (1, 1)), (35, (15, 25)), (350, (150, 250)), (700, (150, 250))]
)
def test_fewer_epochs_move_the_milestones(epochs, milestones):
    found = protocol_from({"base": "mukhoti2020", "epochs": epochs})
    assert (found.epochs, found.milestones, found.lr) == (epochs, milestones, 0.1)


def test_description_by_name_or_by_base():
    assert protocol_from("mbls2022") is named_protocol("mbls2022")
    given = {"base": "mukhoti2020/0.1", "lr": 0.05}
    changed = protocol_from(given)
    assert given == {"base": "mukhoti2020/0.1", "lr": 0.05}
    assert changed.name == "mukhoti2020/0.1-custom"
    assert changed.to_dict() == {**named_protocol("mukhoti2020/0.1").to_dict(), "lr": 0.05}
    assert protocol_from({"base": "digits", "name": "mine"}).name == "mine"
    assert protocol_from(PLAIN).name == "custom"


@pytest.mark.parametrize(
    ("description", "text"),
    [
        ({"epochs": 3}, r"protocol lacks batch_size, lr; add them, or a protocol as base"),
        ({**PLAIN, "learning_rate": 0.1}, r"protocol has no field 'learning_rate'"),
        ({**PLAIN, "momentun": 0.1}, r"no field 'momentun'; near are: momentum"),
        ({**PLAIN, 7: 1}, r"has no field 7; there are: name, epochs, .*, note, base$"),
        ({**PLAIN, "zz": 1}, r"has no field 'zz'; there are: name, epochs, .*, note, base$"),
        ({"base": "mukhoti2021"}, r"unknown protocol 'mukhoti2021'; near are: mukhoti2020"),
        ({"base": 7}, r"base=7 is not the name of a protocol"),
        (
            {"base": "mukhoti2020", "epochs": 100, "milestones": [150, 250]},
            r"^protocol: milestone=250 is outside \[1, 100\], the epochs$",
        ),
        (7, r"protocol: expected a name or a mapping of fields, got 7"),
    ],
)
def test_invalid_protocols_get_one_line(description, text):
    with pytest.raises(InputError, match=text) as caught:
        protocol_from(description)
    assert "\n" not in str(caught.value)
