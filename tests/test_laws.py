import inspect
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from laboratory import OVERCONFIDENT, Laboratory
from torch import Tensor

from search_spaces import Parameter, load_space, space_names
from trainables.augmentations import AUGMENTATIONS
from trainables.calibrators import CALIBRATORS, OBJECTIVES, calibrator_from_recipe
from trainables.common.registry import Registry
from trainables.contracts.losses import alternatives, gradients
from trainables.data import SplitSpec
from trainables.losses import LOSSES
from trainables.refinements import REFINEMENTS
from trainables.schemes import SCHEMES
from trainables.store.artifacts import Artifact

REGISTRIES: dict[str, tuple[Registry[Any], ...]] = {
    "methods": (LOSSES, AUGMENTATIONS, SCHEMES),
    "refinements": (REFINEMENTS,),
    "calibrators": (CALIBRATORS,),
    "objectives": (OBJECTIVES,),
}
PARTS = [
    (kind, name)
    for kind, registries in REGISTRIES.items()
    for registry in registries
    for name in registry.names()
]
# Constructor arguments that follow from the task and are never searched.
OF_THE_TASK = {"reduction", "ignore_index", "batch_size"}


@dataclass(frozen=True)
class OnlyWith:
    """The setting in which a parameter acts that hardly acts in the shortest training.

    Attributes:
        why: The reason.
        setting: Other parameters to be set.
        epochs: Length of the training, 0 for the usual one.
        value: The value to change to, where the usual one is too near the default.
        alone: Whether the parameter is known to do nothing without ``setting``.
        network: How the network that is refined is trained, besides the usual.
    """

    why: str
    setting: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = 0
    value: Any = None
    alone: bool = False
    network: Mapping[str, Any] = field(default_factory=dict)


UNDER = {
    **{
        f"methods/{loss}/{key}": OnlyWith("early logits keep within the margin", {"margin": 1.0})
        for loss, keys in (
            ("acls", ("weight_pos", "weight_neg", "parts", "variant")),
            ("mbls", ("weight", "variant")),
        )
        for key in keys
    },
    "methods/balcal/delta": OnlyWith("balances from the day that confidence exceeds it", epochs=12),
    "methods/cape/bins": OnlyWith("calibrates in every sixth epoch only", {"every": 1}),
    "methods/crl/margin": OnlyWith(
        "the ranking condition has no margin", {"condition": "margin"}, alone=True
    ),
    "methods/flsd/schedule": OnlyWith("two of the schedules agree at gamma 3", {"gamma": 4.0}),
    "methods/mdca/gamma": OnlyWith("the exponent of the focal base", {"base": "fl"}, alone=True),
    "methods/mdca/smoothing": OnlyWith("that of the smoothed base", {"base": "ls"}, alone=True),
    "methods/patra/threshold": OnlyWith("both are small", {"weight": 10.0}),
    "methods/patra/pruned": OnlyWith("prunes after twenty epochs only", {"every": 1}),
    "methods/patra/momentum": OnlyWith(
        "prunes after twenty epochs only", {"every": 1, "pruned": 0.3}, value=1.0
    ),
    "refinements/macal/feedback": OnlyWith(
        "all gaps exceed the decaying bound, which then is the change", {"eta_init": 0.5}
    ),
    "refinements/macal/lr": OnlyWith("a low one learns nothing in six epochs", value=0.05),
    "refinements/macal/views": OnlyWith(
        "the digits are not augmented unless told", network={"augmentation": "crop-flip"}
    ),
    **{
        f"calibrators/pts/{key}": OnlyWith("few rows: one temperature", {"weight_decay": 0.005})
        for key in ("top", "nodes", "layers", "seed")
    },
    **{
        place: OnlyWith("held-out rows may leave nothing of the map", {"variant": "paper"})
        for place in ("calibrators/histogram-binning/bins", "calibrators/spline/knots")
    },
    "calibrators/smart/steps": OnlyWith(
        "stops early where no step gains", {"variant": "paper"}, value=15
    ),
    "calibrators/cts/variant": OnlyWith(
        "there is released code for one assignment", {"assignment": "logit"}
    ),
    "calibrators/meta-mis/alpha": OnlyWith("a quantile of some twenty rows", value=0.15),
}
NOWHERE = OnlyWith("")

TRAINING: dict[str, Any] = {"epochs": 4, "batch_size": 32, "lr": 0.1, "schedule": "cosine"}


def constructor(kind: str, name: str) -> type[Any]:
    return next(registry.get(name) for registry in REGISTRIES[kind] if name in registry)


@pytest.mark.parametrize("kind", REGISTRIES)
def test_every_class_has_a_space_and_every_space_a_class(kind: str) -> None:
    assert space_names(kind) == sorted(name for part, name in PARTS if part == kind)


@pytest.mark.parametrize(("kind", "name"), PARTS)
def test_the_space_describes_every_argument(kind: str, name: str) -> None:
    arguments = inspect.signature(constructor(kind, name)).parameters
    # An objective's reduction is its own.
    task = OF_THE_TASK if kind == "methods" else set()
    assert load_space(kind, name).parameters.keys() == arguments.keys() - task


def test_a_calibrator_and_its_objective_share_no_parameter() -> None:
    of_maps, of_objectives = (
        {key for name in registry.names() for key in load_space(kind, name).parameters}
        for kind, registry in (("calibrators", CALIBRATORS), ("objectives", OBJECTIVES))
    )
    assert not of_maps & of_objectives


@pytest.mark.parametrize("name", CALIBRATORS.names())
def test_a_space_says_which_values_are_fitted_on_training_rows(name: str) -> None:
    space = load_space("calibrators", name)
    for key, parameter in space.parameters.items():
        setting = UNDER.get(f"calibrators/{name}/{key}", NOWHERE).setting
        for value in parameter.choices or (parameter.default,):
            values = {**space.default_point(), **setting, key: value}
            built = CALIBRATORS.build(name, **values)
            assert space.fits_on_training(values) == built.fits_on_training, values


def searched_of(kind: str, registry: Registry[Any]) -> list[str]:
    return [name for name in registry.names() if load_space(kind, name).searched()]


def corners(kind: str, name: str) -> Iterator[dict[str, Any]]:
    """Yield the points where every searched parameter is at an end of its range, or a choice."""
    searched = load_space(kind, name).searched()
    ends = [p.choices or (p.low, p.high) for p in searched.values()]
    types = [{"int": int}.get(p.type, lambda value: value) for p in searched.values()]
    for point in itertools.product(*ends):
        yield {key: t(v) for key, t, v in zip(searched, types, point, strict=True)}


@pytest.mark.parametrize("name", searched_of("methods", LOSSES))
def test_no_searched_loss_is_cross_entropy(name: str) -> None:
    """A row named after a method is that method, whatever a search chooses."""
    (plain, *_) = gradients("ce", {})
    for values in corners("methods", name):
        found = gradients(name, values)
        assert any(torch.cosine_similarity(g, plain, dim=0) < 1 - 1e-8 for g in found), values


# Where what is no loss leaves training, or what it adds to, as it is.
IDENTITIES = {
    "cutmix": {"alpha": 0.0},
    "mcdrop": {"rate": 0.0},
    "mit": {"alpha": 0.0},
    "mixup": {"alpha": 0.0},
    "patra": {"pruned": 0.0},
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_no_searched_value_turns_a_method_off(name: str) -> None:
    for key, value in IDENTITIES[name].items():
        parameter = load_space("methods", name).parameters[key]
        assert parameter.low is not None
        assert parameter.low > value


@pytest.mark.full
@pytest.mark.parametrize("name", searched_of("calibrators", CALIBRATORS))
def test_no_searched_calibrator_is_temperature_scaling(name: str) -> None:
    draw = torch.Generator().manual_seed(0)
    targets, rows = torch.randint(5, (500,), generator=draw), torch.arange(500)
    logits = 2 * torch.randn(500, 5, generator=draw)
    logits[rows, targets] += 2
    logits = logits * torch.tensor([1.5, 3.0, 1.5, 4.5, 1.5]) + torch.tensor([0.0, 1, 0, -1, 0])
    logits[::2] *= 4  # Larger logits are surer than they may be: temperatures differ by row.
    plain = CALIBRATORS.build("ts").fit(logits, targets)(logits)
    for values in corners("calibrators", name):
        if values.get("layers", 1) > 1:
            continue  # Of pts: few nodes in several layers often learn nothing, decayed or not.
        found = CALIBRATORS.build(name, **values).fit(logits, targets)(logits)
        assert (found - plain).abs().max() > 0.01, values


def documented_ranges() -> Iterator[tuple[str, str, str, str]]:
    """Yield part, parameter and range wherever the first clause of its docstring names one."""
    for kind, name in PARTS:
        text = inspect.getdoc(constructor(kind, name)) or ""
        for key, value in load_space(kind, name).default_point().items():
            found = re.search(rf"^    {key}: (.*(?:\n     .*)*)", text, re.MULTILINE)
            if not found or not isinstance(value, (int, float)):
                continue
            clause = re.split(r"; |\. ", " ".join(found[1].split()))[0]
            if least := re.search(r", (at least|>=|above|>) (\d+)", clause):
                yield kind, name, key, f"{'(['[least[1] in ('at least', '>=')]}{least[2]}, inf)"
            elif limits := re.search(r", in ([\[(]\d, \d[\])])", clause):
                yield kind, name, key, limits[1]


@pytest.mark.parametrize(("kind", "name", "key", "allowed"), list(documented_ranges()))
def test_a_parameter_outside_its_documented_range_is_refused(kind, name, key, allowed):
    with pytest.raises(ValueError, match="is outside") as caught:
        constructor(kind, name)(**{key: math.nan})
    assert str(caught.value) == f"{key}=nan is outside {allowed}"


class Catalogue:
    """The outcome of every part, with what it builds on; the same request is computed once."""

    def __init__(self, folder: Path) -> None:
        self._laboratory = Laboratory(folder, SplitSpec(validation=0.25, train_limit=128))
        self._networks: dict[str, Artifact] = {}
        self._known: dict[str, Tensor] = {}

    def outcome(
        self, kind: str, name: str, parameters: Mapping[str, Any], under: OnlyWith = NOWHERE
    ) -> Tensor:
        """Return validation logits, or calibrated log-probabilities, (N, K)."""
        key = json.dumps([kind, name, parameters, under.epochs, under.network], sort_keys=True)
        if key not in self._known:
            self._known[key] = self._compute(kind, name, parameters, under)
        return self._known[key]

    def _network(self, protocol: Mapping[str, Any]) -> Artifact:
        """Return a network that is over-confident, so that calibration matters."""
        key = json.dumps(protocol, sort_keys=True)
        if key not in self._networks:
            whole = {**OVERCONFIDENT, **protocol}
            self._networks[key] = self._laboratory.compute("train", {"ce": {}}, whole).artifact()
        return self._networks[key]

    def _compute(
        self, kind: str, name: str, parameters: Mapping[str, Any], under: OnlyWith
    ) -> Tensor:
        compute, network = self._laboratory.compute, self._network(under.network)
        if kind == "methods":
            protocol = {**TRAINING, "epochs": under.epochs or TRAINING["epochs"]}
            return compute("train", {name: parameters}, protocol).logits
        if kind == "refinements":
            parameters = {"epochs": 6, **parameters}
            return compute("refine", {name: parameters}, TRAINING, network).logits
        part = f"ts-{name}" if kind == "objectives" else name
        rows = network.tensors("validation")
        return calibrator_from_recipe(part, parameters).fit(**rows)(rows["logits"])


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalogue]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Catalogue(tmp_path_factory.mktemp("laws"))
    torch.set_num_threads(threads)


def others(place: str, parameter: Parameter) -> list[Any]:
    """Return every other choice, or one other value inside the range."""
    value = UNDER.get(place, NOWHERE).value
    if value and parameter.type != "categorical":
        return [parameter.check(int(value) if parameter.type == "int" else value)]
    return alternatives(parameter, share=0.17)


def changes() -> Iterator[tuple[str, str, str, Any]]:
    for kind, name in PARTS:
        for key, parameter in load_space(kind, name).parameters.items():
            for value in others(f"{kind}/{name}/{key}", parameter):
                yield kind, name, key, value


@pytest.mark.full
@pytest.mark.parametrize(("kind", "name", "key", "value"), list(changes()))
def test_changing_a_parameter_changes_the_outcome(kind, name, key, value, catalogue):
    under = UNDER.get(f"{kind}/{name}/{key}", NOWHERE)
    changed = {**under.setting, key: value}
    assert value != load_space(kind, name).parameters[key].default
    before = catalogue.outcome(kind, name, under.setting, under)
    after = catalogue.outcome(kind, name, changed, under)
    assert not torch.allclose(before, after, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("place", [place for place, under in UNDER.items() if under.alone])
def test_a_parameter_of_one_setting_does_nothing_without_it(place, catalogue):
    kind, name, key = place.split("/")
    (value,) = others(place, load_space(kind, name).parameters[key])
    before = catalogue.outcome(kind, name, {})
    assert torch.equal(before, catalogue.outcome(kind, name, {key: value}))


def test_the_same_request_has_the_same_outcome(catalogue: Catalogue, tmp_path: Path) -> None:
    again = Catalogue(tmp_path)
    for kind, name in (("methods", "ce"), ("refinements", "macal"), ("calibrators", "ts")):
        assert torch.equal(catalogue.outcome(kind, name, {}), again.outcome(kind, name, {}))
