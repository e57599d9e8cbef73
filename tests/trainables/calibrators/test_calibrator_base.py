"""What every calibrator must hold: checks, the kept argmax, state, edge cases."""

import itertools
import json
import math
import os
import random
import re
import resource
import signal
import warnings
from functools import cache

import numpy as np
import pytest
import scipy
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.torch import save
from standin_card import CARD, standin_card

from trainables.calibrators import (
    CALIBRATORS,
    OBJECTIVES,
    FitWarning,
    build_calibrator,
    calibrator_from_recipe,
    load_calibrator,
    parse_calibrator,
    save_calibrator,
)
from trainables.calibrators._affine_fit import AffineFit
from trainables.calibrators._base import first_argmax, keep_argmax
from trainables.calibrators._shrinkage import EQUAL_NOTE
from trainables.common.errors import InputError, StorageError
from trainables.common.files import seal
from trainables.contracts import CALIBRATOR_CHECKS, draw_rows
from trainables.data import DataNote

NAMES = CALIBRATORS.names()
WITH_OBJECTIVE = [name for name in NAMES if CALIBRATORS.get(name).takes_objective]
PUBLISHED = ("ce", "ls", "fl", "cls")
OWN = {"meta-acc": {"accuracy": 0.5}, "smart": {"steps": 5}}
# How far apart their solvers stop where sums are rounded differently.
SOLVED = {"dirichlet": 1e-3, "ms": 1e-3, "pts": 1e-2, "sms": 1e-4, "svs": 1e-4}
# Iterations of fits that are no search, and whether they minimise nothing.
IN_ONE_STEP = {
    **dict.fromkeys(("beta", "cir", "histogram-binning", "isotonic", "platt"), (1, True)),
    **dict.fromkeys(("quadratic", "venn-abers"), (1, True)),
    "kernel": (7, False),
    "spline": (1, False),
}
RECIPES = [
    *((name, objective) for name in WITH_OBJECTIVE for objective in PUBLISHED),
    *((name, None) for name in NAMES if name not in WITH_OBJECTIVE),
]
KEEPERS = [recipe for recipe in RECIPES if CALIBRATORS.get(recipe[0]).preserves_accuracy]
# Of objectives without a state, which all maps sum by the same lines, those of one map.
APART = [recipe for recipe in RECIPES if recipe[0] == "ts" or recipe[1] not in ("ls", "fl")]
# What no objective changes, and what one with a state may.
OF_THE_MAP = {"leaves_rows_alone", "keeps_the_argmax", "survives_its_folder"}
OF_THE_STATE = {"forgets_an_earlier_fit", "misses_a_class"}
LEFT_OUT = {"ls": OF_THE_MAP | OF_THE_STATE, "fl": OF_THE_MAP | OF_THE_STATE, "cls": OF_THE_MAP}
CHECKED = [
    (name, objective, check)
    for name, objective in RECIPES
    for check in CALIBRATOR_CHECKS
    if check.__name__ not in LEFT_OUT.get(objective, ())
]


def build(name: str, objective: str | None = None):
    return build_calibrator(name, objective, **OWN.get(name, {}))


@pytest.fixture(scope="module")
def fitted():
    """Return a function that gives a recipe's calibrator, fitted once on good rows."""

    @cache
    def fit(name, objective=None):
        with warnings.catch_warnings():
            warnings.simplefilter("error", FitWarning)
            return build(name, objective).fit(*draw_rows())

    return fit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ts", ("ts", "ce")),
        ("ts-cls", ("ts", "cls")),
        ("cts-fl", ("cts", "fl")),
        ("vs", ("vs", None)),
        ("meta-acc", ("meta-acc", None)),
        ("histogram-binning", ("histogram-binning", None)),
    ],
)
def test_parse_calibrator(text, expected):
    assert parse_calibrator(text) == expected


THERE_ARE = (
    f"there are: {', '.join(NAMES[:16])}, ... ({len(NAMES) - 16} more); "
    f"{', '.join(WITH_OBJECTIVE)} may be followed by -{', -'.join(OBJECTIVES.names())}; "
    "`calsweep list calibrators` shows all"
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("st", f"unknown calibrator 'st'; {THERE_ARE}"),
        (
            "ts-xx",
            f"unknown fitting objective 'xx'; there are: {', '.join(OBJECTIVES.names())}; "
            "`calsweep list objectives` shows all",
        ),
        ("vs-cls", f"'vs-cls': vs accepts no fitting objective; {', '.join(WITH_OBJECTIVE)} do"),
        (
            "meta-acc-cls",
            "'meta-acc-cls': meta-acc accepts no fitting objective; "
            f"{', '.join(WITH_OBJECTIVE)} do",
        ),
        ("", f"unknown calibrator ''; {THERE_ARE}"),
    ],
)
def test_parse_calibrator_lists_the_known_names(text, words):
    with pytest.raises(InputError) as error:
        parse_calibrator(text)
    assert str(error.value) == words


NO_OBJECTIVE = f"vs accepts no fitting objective; {', '.join(WITH_OBJECTIVE)} do"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("ts", "ls", {"smoothing": 1.0}), r"smoothing=1.0 is outside \[0, 1\)"),
        (("ts", "fl", {"gamma": -1.0}), r"gamma=-1.0 is outside \[0, inf\)"),
        (("ts", "fl", {"gama": 1.0}), "fl has no parameter 'gama'; parameters are gamma, detach"),
        (("ts", "cls", {"normalization": "x"}), "normalization='x' is not one of nd, cm, mm"),
        (("ts", "cls", {"bounds": "x"}), "bounds='x' is not one of paper, released"),
        (("ts", "cls", {"reduction": "x"}), "reduction='x' is not one of mean, sum"),
        (("ts", "fl", {"detach": 1}), "detach=1 is not one of False, True"),
        (("vs", "cls"), NO_OBJECTIVE),
        (("vs", None, {"gamma": 1.0}), NO_OBJECTIVE),
    ],
)
def test_build_refuses_bad_objectives(arguments, text):
    with pytest.raises(ValueError, match=f"^{text}$"):
        build_calibrator(*arguments)


@pytest.mark.parametrize(
    ("name", "parameters", "text"),
    [
        ("ts", {"selection": "nll"}, "selection='nll' is not one of objective, ece, training_ece"),
        ("ts", {"variant": "x"}, "variant='x' is not one of paper, released"),
        ("cts", {"assignment": "x"}, "assignment='x' is not one of prediction, logit"),
        ("cts", {"variant": "released"}, "variant='released' needs assignment='logit'"),
        ("cts", {"shrinkage": float("nan")}, r"shrinkage=nan is outside \[0, inf\)"),
        ("platt", {"variant": "released"}, "variant='released' is not one of shrunk, paper"),
        ("pts", {"nodes": 0}, r"nodes=0 is outside \[1, inf\)"),
        ("pts", {"layers": 0}, r"layers=0 is outside \[1, inf\)"),
        ("pts", {"top": 0}, r"top=0 is outside \[1, inf\)"),
        ("pts", {"seed": -1}, r"seed=-1 is outside \[0, inf\)"),
        ("meta-mis", {"seed": -1}, r"seed=-1 is outside \[0, inf\)"),
        ("sms", {"weight_offdiag": -0.1}, r"weight_offdiag=-0.1 is outside \[0, inf\)"),
    ],
)
def test_constructors_check_their_arguments(name, parameters, text):
    with pytest.raises(ValueError, match=f"^{text}$"):
        build_calibrator(name, **parameters)


def test_a_recipe_gives_each_parameter_to_its_calibrator_or_objective():
    found = calibrator_from_recipe("ts-ls", {"smoothing": 0.1, "selection": "ece"})
    assert found.parameters() == {"selection": "ece", "variant": "paper"}
    assert (found.objective_name, found.objective_parameters) == ("ls", {"smoothing": 0.1})
    assert found.objective.smoothing == 0.1
    plain = calibrator_from_recipe("ts", {"selection": "ece"})
    assert (plain.objective_name, plain.objective_parameters) == ("ce", {})
    with pytest.raises(InputError, match=r"^ls has no parameter 'bins'; parameters are smoothing$"):
        calibrator_from_recipe("ts-ls", {"bins": 4})


@pytest.mark.full
@settings(max_examples=30, deadline=None)
@given(
    values=arrays(
        np.float64,
        st.tuples(st.integers(1, 6), st.just(5)),
        elements=st.one_of(
            st.sampled_from([0.0, 1.0, 1.0 + 2**-52, 1.0 + 2**-23, -1.0, 30.0, 1e-300]),
            st.floats(-1e4, 1e4),
        ),
    ),
    single=st.booleans(),
)
def test_accuracy_preserving_calibrators_keep_the_first_argmax(fitted, values, single):
    logits = torch.from_numpy(values.astype(np.float32) if single else values)
    for calibrator in itertools.starmap(fitted, KEEPERS):
        assert calibrator.preserves_accuracy
        calibrated = calibrator(logits)
        assert calibrated.dtype == logits.dtype
        np.testing.assert_array_equal(calibrated.numpy().argmax(1), logits.numpy().argmax(1))
        np.testing.assert_array_equal(calibrated.exp().numpy().argmax(1), logits.numpy().argmax(1))


@settings(max_examples=100, deadline=None)
@given(
    before=arrays(np.float64, (3, 5), elements=st.sampled_from([-1.0, 0.0, 1.0, 2.0])),
    after=arrays(np.float32, (3, 5), elements=st.floats(-50, 0, width=32)),
)
def test_keep_argmax_wins_against_any_rounding(before, after):
    kept = keep_argmax(torch.from_numpy(before), torch.from_numpy(after))
    np.testing.assert_array_equal(kept.numpy().argmax(1), before.argmax(1))


def test_first_argmax_takes_the_first_of_ties():
    rows = torch.tensor([[1.0, 3.0, 3.0], [0.0, 0.0, 0.0], [2.0, 1.0, 2.0]])
    assert first_argmax(rows).tolist() == [1, 0, 0]


def test_variants_that_change_accuracy_say_so():
    assert not build_calibrator("cts", assignment="logit").preserves_accuracy
    assert not build_calibrator("pts", variant="released").preserves_accuracy
    ets = {"mixture": "logits", "variant": "released"}
    assert not build_calibrator("ets", **ets).preserves_accuracy
    assert build_calibrator("ets", variant="released").preserves_accuracy


@pytest.mark.full
@pytest.mark.parametrize(("name", "objective", "check"), CHECKED)
def test_every_calibrator_passes_the_checks_of_plugins(name, objective, check):
    check(lambda: build(name, objective))


@pytest.mark.parametrize(("name", "objective"), [("ts", "cls"), ("pts", "cls"), ("platt", None)])
def test_saving_and_loading_changes_nothing(rows, fitted, tmp_path, name, objective):
    logits, calibrator = rows[0], fitted(name, objective)
    loaded = load_calibrator(save_calibrator(calibrator, tmp_path / "kept"))
    assert torch.equal(loaded(logits), calibrator(logits))
    assert loaded.summary() == calibrator.summary()
    if objective:
        learned = calibrator.objective.state()
        assert loaded.objective.state() == learned
        assert set(learned) == {"alpha", "beta"}
        assert calibrator.summary().items() >= learned.items()
    assert loaded.parameters() == calibrator.parameters()
    assert str(loaded.report) == str(calibrator.report)  # Its objective may be NaN.
    described = json.loads((tmp_path / "kept" / "calibrator.json").read_text())
    assert described["summary"] == calibrator.summary()
    assert (described["num_classes"], described["format"]) == (5, 2)
    again = save_calibrator(loaded, tmp_path / "again") / "calibrator.json"
    assert json.loads(again.read_text()) == described


def test_a_loaded_calibrator_still_has_the_doubt_of_its_fit(tmp_path):
    with pytest.warns(FitWarning):
        fitted = build("ts").fit(torch.ones(6, 3), torch.arange(6) % 3)
    assert fitted.report.doubt
    assert load_calibrator(save_calibrator(fitted, tmp_path)).report == fitted.report


# Name, arguments, fitted tensors and what a person reads of them.
STATES = yaml.safe_load("""
- [ts, {}, {temperature: [2]}, {temperature: 2}]
- [ets, {}, {temperature: [2], weights: [0.5, 0.3, 0.2]},
   {temperature: 2, weight_scaled: 0.5, weight_plain: 0.3, weight_uniform: 0.2}]
- [cts, {}, {temperatures: [2, 6, 1]},
   {temperature_min: 1, temperature_mean: 3, temperature_max: 6}]
- [pts, {layers: 1}, {centre: [0], scale: [1], common: [0], weight_0: [[1]], bias_0: [1],
   weight_1: [[1]], bias_1: [1]}, {temperature: 1}]
- [vs, {}, {slope: [2, 6, 1], bias: [1, -4, 0]},
   {slope_min: 1, slope_mean: 3, slope_max: 6, bias_max: 4}]
- [ms, {}, {matrix: [[2, 1], [3, 5]], bias: [-1, 0.5]},
   {diagonal_mean: 3.5, offdiagonal_rms: 2.23606797749979, bias_max: 1}]
- [sms, {}, {temperature: [2], uniform: [0.1], change: [[0.5, 1, -2], [3, 1.5, 1]]},
   {temperature: 2, diagonal_mean: 2, offdiagonal_rms: 2.23606797749979, bias_max: 2}]
- [svs, {}, {temperature: [2], uniform: [0.1], change: [[0.5, -0.25], [1, -3]]},
   {temperature: 2, slope_min: 0.75, slope_max: 1.5, bias_max: 3}]
- [platt, {}, {coefficients: [[1, 2], [3, 6]], share: [0.5], temperature: [2]},
   {coefficient_0: 2, coefficient_1: 4}]
- [histogram-binning, {}, {shares: [[0.3, 0.7], [0.2, 0.9]], share: [0.5], temperature: [2]},
   {share_min: 0.2, share_max: 0.9}]
- [isotonic, {}, {points: [0, 0, 0, 0, 0], values: [0, 0, 0, 0, 0], offsets: [0, 2, 5],
   share: [0.5], temperature: [2]}, {points_per_class: 2.5}]
- [kernel, {}, {probs: [[0.5, 0.5]], labels: [0], bandwidth: [0.1], share: [0.5],
   temperature: [2]}, {bandwidth: 0.1}]
- [spline, {}, {confidences: [0.3, 0.6, 0.8], calibrated: [0.5, 0.2, 0.9], share: [0.5],
   temperature: [2]}, {lowest: 0.5, highest: 0.9}]
- [venn-abers, {}, {scores: [[0.5]], as_hit: [[0.5, 1]], as_miss: [[0.1, 0.2]], share: [0.5],
   temperature: [2]}, {width_mean: 0.6}]
- [meta-mis, {}, {threshold: [0.7], temperature: [2]}, {threshold: 0.7, temperature: 2}]
""")


@pytest.mark.parametrize(("name", "parameters", "state", "expected"), STATES)
def test_the_summary_is_of_the_state(name, parameters, state, expected):
    calibrator = build_calibrator(name, **parameters)
    tensors = {key: torch.tensor(values, dtype=torch.float64) for key, values in state.items()}
    calibrator.load_state_dict({**tensors, "num_classes": torch.tensor(2)})
    assert calibrator.summary() == pytest.approx(expected)


def test_objective_parameters_survive_saving(rows, tmp_path):
    calibrator = build_calibrator("ts", "ls", {"smoothing": 0.1}).fit(*rows)
    loaded = load_calibrator(save_calibrator(calibrator, tmp_path))
    assert (loaded.objective_name, loaded.objective.smoothing) == ("ls", 0.1)
    assert json.loads((tmp_path / "calibrator.json").read_text()) == {
        "format": 2,
        "name": "ts",
        "objective": "ls",
        "objective_parameters": {"smoothing": 0.1},
        "parameters": {"selection": "objective", "variant": "paper"},
        "num_classes": 5,
        "summary": calibrator.summary(),
        "learned": {},
        "report": vars(calibrator.report),
    }


def test_a_calibrator_is_read_from_this_machine_alone():
    whole = r"^calibrator: 's3://bucket/kept' is a URL; use a path on this machine$"
    with pytest.raises(InputError, match=whole):
        load_calibrator("s3://bucket/kept")


@pytest.mark.parametrize("name", ["calibrator.safetensors", "calibrator.json", "manifest.json"])
def test_no_damage_goes_unnoticed(rows, tmp_path, name):
    calibrator = build("pts").fit(*rows)
    folder = save_calibrator(calibrator, tmp_path / "kept")
    expected = calibrator(rows[0])
    content, noise = (folder / name).read_bytes(), random.Random(0)
    refusals = []
    for place in range(0, len(content), max(1, len(content) // 100)):
        for other in (content[place] ^ 1 << noise.randrange(8), noise.randrange(256)):
            (folder / name).write_bytes(content[:place] + bytes([other]) + content[place + 1 :])
            try:
                loaded = load_calibrator(folder)
            except InputError as error:
                refusals.append(str(error))
            else:
                assert torch.equal(loaded(rows[0]), expected)
                assert loaded.summary() == calibrator.summary()
    assert len(refusals) >= 100
    for text in refusals:
        assert text.startswith(f"{folder}: damaged calibrator (")
        assert name in text or "calibrator." in text
        assert "\n" not in text


def test_a_calibrator_takes_the_place_of_another_one_and_of_nothing_else(rows, tmp_path):
    first, second = build("ts").fit(*rows), build("vs").fit(*rows)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "notes").write_text("mine")
    save_calibrator(first, tmp_path / "kept")
    save_calibrator(second, tmp_path / "kept")
    assert torch.equal(load_calibrator(tmp_path / "kept")(rows[0]), second(rows[0]))
    assert (tmp_path / "kept" / "notes").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    (tmp_path / "kept" / "manifest.json").unlink()
    with pytest.raises(InputError, match="damaged calibrator"):
        load_calibrator(tmp_path / "kept")


@pytest.mark.parametrize("before", [True, False])
def test_a_full_disk_leaves_the_earlier_calibrator(rows, tmp_path, before):
    first, second = build("ts").fit(*rows), build("vs").fit(*rows)
    if before:
        save_calibrator(first, tmp_path / "kept")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
    try:
        with pytest.raises(StorageError, match=r"cannot write calibrator .*kept: .*File too large"):
            save_calibrator(second, tmp_path / "kept")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, ignored)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"] * before
    if before:
        assert torch.equal(load_calibrator(tmp_path / "kept")(rows[0]), first(rows[0]))


def test_a_calibrator_may_be_saved_in_the_working_folder(rows, tmp_path, monkeypatch):
    (tmp_path / "kept").mkdir()
    monkeypatch.chdir(tmp_path / "kept")
    fitted = build("ts").fit(*rows)
    assert torch.equal(load_calibrator(save_calibrator(fitted, "."))(rows[0]), fitted(rows[0]))
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_folder_that_cannot_be_made_is_named(rows, tmp_path):
    (tmp_path / "file").write_text("mine")
    place = tmp_path / "file" / "kept"
    with pytest.raises(StorageError) as error:
        save_calibrator(build("ts").fit(*rows), place)
    assert str(error.value).startswith(f"cannot write calibrator {place}: ")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("steps", [1, 2])
def test_stopped_half_way_to_its_place_it_is_known_to_be_damaged(
    rows, tmp_path, monkeypatch, steps
):
    save_calibrator(build("ts").fit(*rows), tmp_path)
    moved, real = [], os.replace

    def stopped(source, target):
        if len(moved) == steps:
            raise KeyboardInterrupt
        moved.append(real(source, target))

    monkeypatch.setattr(os, "replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        save_calibrator(build("vs").fit(*rows), tmp_path)
    with pytest.raises(InputError, match="damaged calibrator"):
        load_calibrator(tmp_path)


GONE = object()


def sealed_again(folder):
    """Write the manifest of the files as they are, so that their content is looked at."""
    (folder / "manifest.json").unlink()
    seal(folder)


DESCRIPTION, TENSORS = "calibrator.json", "calibrator.safetensors"
ONE_TENSOR = save({"temperature": torch.ones(1)})


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        (DESCRIPTION, None, ": damaged calibrator ("),
        (DESCRIPTION, b"{", f"/{DESCRIPTION}: cannot be read as a saved calibrator ("),
        (DESCRIPTION, 100_000 * b"[", f"/{DESCRIPTION}: cannot be read as a saved calibrator ("),
        (DESCRIPTION, b'{"format": 99}', f"/{DESCRIPTION}: is not a saved calibrator of format 2"),
        (TENSORS, b"no tensors", ": not a saved calibrator ("),
        (TENSORS, ONE_TENSOR, ": not a saved calibrator (ts: state has temperature, expected "),
    ],
)
def test_loading_damaged_files_is_a_clear_error(rows, tmp_path, file, content, complaint, sealed):
    save_calibrator(build("ts").fit(*rows), tmp_path)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content)
    if not sealed:
        sealed_again(tmp_path)
    with pytest.raises(InputError) as error:
        load_calibrator(tmp_path)
    text = str(error.value)
    assert text.startswith(f"{tmp_path}{': damaged calibrator (' if sealed else complaint}")
    assert text.endswith("); fit it again") == (": damaged" in text)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": None}, ""),
        ({"name": {}}, ""),
        (
            {"objective": "xx"},
            "unknown fitting objective 'xx'; there are: ce, cls, fl, ls, mse; "
            "`calsweep list objectives` shows all",
        ),
        ({"objective_parameters": {"gamma": 1.0}}, "ls has no parameter 'gamma'"),
        ({"parameters": {"selection": "x"}}, "selection='x' is not one of objective, ece, "),
        ({"parameters": None}, ""),
        ({"report": None}, ""),
        ({"report": {"converged": True}}, ""),
        *(({key: GONE}, f"({key!r})") for key in ("name", "objective", "parameters")),
        *(({key: GONE}, f"({key!r})") for key in ("learned", "report")),
    ],
)
def test_a_description_that_does_not_describe_is_a_clear_error(rows, tmp_path, change, reason):
    save_calibrator(build("ts", "ls").fit(*rows), tmp_path)
    description = tmp_path / "calibrator.json"
    fields = {**json.loads(description.read_text()), **change}
    description.write_text(json.dumps({k: v for k, v in fields.items() if v is not GONE}))
    sealed_again(tmp_path)
    with pytest.raises(InputError) as error:
        load_calibrator(tmp_path)
    text = str(error.value)
    assert text.startswith(f"{tmp_path}: not a saved calibrator (")
    assert reason in text


def test_tensors_of_another_shape_are_a_clear_error(rows, tmp_path):
    save_calibrator(build("ts").fit(*rows), tmp_path)
    for wrong in (torch.ones(2), torch.tensor(1j), torch.tensor(math.inf)):
        state = {"temperature": torch.ones(1), "num_classes": wrong}
        (tmp_path / TENSORS).write_bytes(save(state))
        sealed_again(tmp_path)
        with pytest.raises(InputError) as error:
            load_calibrator(tmp_path)
        assert str(error.value).startswith(f"{tmp_path}: not a saved calibrator (")


@pytest.mark.parametrize("name", NAMES)
def test_unfitted_use_is_a_clear_error(name):
    calibrator = build(name)
    for use in (lambda: calibrator(torch.zeros(2, 3)), calibrator.summary, calibrator.state_dict):
        with pytest.raises(InputError) as error:
            use()
        assert str(error.value) == (f"this {name} is not fitted: call fit(logits, labels) first")


def test_a_fit_that_is_interrupted_leaves_nothing_fitted(rows, monkeypatch):
    def interrupted(terms):
        raise KeyboardInterrupt

    calibrator = build("ts").fit(*rows)
    monkeypatch.setattr(calibrator.objective, "per_row", interrupted)
    with pytest.raises(KeyboardInterrupt):
        calibrator.fit(*rows)
    with pytest.raises(InputError, match=r"^this ts is not fitted: call fit"):
        calibrator(rows[0])


def test_other_rows_are_refused_in_one_line(rows):
    told = (
        r"^logits: 4 classes, but this vs was fitted on 5; "
        r"calibrators for other numbers of classes: ets, pts,"
    )
    with pytest.raises(InputError, match=told):
        build("vs").fit(*rows)(torch.zeros(2, 4))
    with pytest.raises(InputError, match=r"^labels: expected 0 to 1, got 2 in row 1$"):
        build("ts").fit(torch.zeros(3, 2), torch.tensor([0, 2, -1]))


@pytest.mark.parametrize("name", [name for name in NAMES if CALIBRATORS.get(name).transfers])
def test_a_calibrator_that_transfers_maps_rows_with_another_number_of_classes(name, rows):
    own = {"top": 3} if name == "pts" else {}
    fitted = build_calibrator(name, **own).fit(*rows)
    wider = torch.cat([rows[0], torch.full((len(rows[0]), 2), -torch.inf)], dim=1)
    told = rf"^logits: 7 classes, but this {name} was fitted on 5; its parameters apply to both$"
    with pytest.warns(DataNote, match=told):
        mapped = fitted(wider)
    # Two impossible classes change nothing.
    torch.testing.assert_close(mapped[:, :5], fitted(rows[0]), rtol=1e-5, atol=1e-6)


def test_pts_transfers_only_where_it_sees_as_many_logits(rows):
    with pytest.raises(InputError, match=r"^logits: 7 classes, but this pts was fitted on 5"):
        build_calibrator("pts", top=10).fit(*rows)(torch.zeros(2, 7))


@pytest.mark.full
@pytest.mark.parametrize(("name", "objective"), [r for r in APART if "meta" not in r[0]])
@pytest.mark.parametrize("rows_of", ["constant", "single", "all right", "sure"])
def test_degenerate_rows_give_finite_log_probabilities(name, objective, rows_of):
    logits, labels = {
        "constant": (torch.ones(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])),
        "single": (torch.tensor([[2.0, 0.0, 1.0]]), torch.tensor([1])),
        "all right": (8 * torch.eye(3).repeat(4, 1), torch.arange(3).repeat(4)),
        "sure": (1e4 * torch.eye(3).repeat(4, 1), torch.tensor([0, 1, 2] * 3 + [1, 1, 0])),
    }[rows_of]
    out = build(name, objective).fit(logits, labels)(logits)
    assert bool(torch.isfinite(out).all())
    torch.testing.assert_close(out.exp().sum(1), torch.ones(len(out)))


UNMOVED = "the fit did not change the probabilities of the fitting rows"
PERFECT = "loss below 1e-05: the rows do not determine the temperature"


@pytest.mark.parametrize(
    ("name", "logits", "labels", "doubt"),
    [
        ("ts", torch.ones(6, 3), torch.arange(6) % 3, UNMOVED),
        (
            "ets",
            5 * torch.eye(3),
            torch.tensor([1, 2, 0]),
            "1 of 1 temperatures on the bound of [0.01, 100]",
        ),
        ("svs", 8 * torch.eye(3), torch.arange(3), PERFECT),
        ("ts", 1e4 * torch.eye(3), torch.arange(3), f"{PERFECT}; {UNMOVED}"),
    ],
)
def test_a_fit_that_is_not_to_be_trusted_warns(name, logits, labels, doubt):
    with pytest.warns(FitWarning) as warned:
        report = build(name).fit(logits, labels).report
    assert [str(warning.message) for warning in warned] == [f"{name}: {doubt}"]
    assert warned[0].filename == __file__
    assert report.doubt == doubt
    assert report.note == doubt.removesuffix(UNMOVED).removesuffix("; ")


@pytest.mark.parametrize("name", ["ts", "ets", "svs", "meta-mis"])
def test_a_fit_that_did_not_converge_warns(rows, monkeypatch, name):
    monkeypatch.setattr("trainables.calibrators._temperature.MAX_PASSES", 1)
    with pytest.warns(FitWarning, match=f"{name}: not converged: last change"):
        build(name).fit(*rows)


@pytest.mark.parametrize(
    ("recipe", "limit", "note"),
    [
        ("pts", "pts.MAX_ITERATIONS", r"STOP: .*ITERATIONS.*"),
        ("vs", "_vector.MAX_STEPS", "still gaining after 1 Newton steps"),
        (
            "pts-cls",
            "_minimize.MAX_ROUNDS",
            r"parameters still move by \d\.\de.\d\d after 1 rounds",
        ),
        (
            "svs-cls",
            "_minimize.MAX_ROUNDS",
            r"parameters still move by \d\.\de.\d\d after 1 rounds",
        ),
        ("ets-cls", "ets.MAX_ROUNDS", r"weights still move by \d\.\de.\d\d after 1 rounds"),
        ("ets", "ets.MAX_ITERATIONS", "weights: Iteration limit reached"),
    ],
)
def test_a_solver_that_runs_out_of_iterations_says_so(rows, monkeypatch, recipe, limit, note):
    monkeypatch.setattr(f"trainables.calibrators.{limit}", 1)
    own = {"variant": "paper"} if recipe == "vs" else {}
    fitted = calibrator_from_recipe(recipe, own)
    with pytest.warns(FitWarning) as warned:
        fitted.fit(*rows)
    assert not fitted.report.converged
    assert re.fullmatch(note, fitted.report.note)
    told = f"{fitted.name}: not converged: {fitted.report.note}"
    assert [str(warning.message) for warning in warned] == [told]


@pytest.mark.full
@pytest.mark.parametrize(("name", "objective"), RECIPES)
def test_fits_on_good_rows_give_no_warning(fitted, name, objective):
    report = fitted(name, objective).report
    assert (report.converged, report.doubt) == (True, "")
    assert report.note == (EQUAL_NOTE if name in ("mcct", "smart") else "")
    if name in IN_ONE_STEP:
        iterations, without_objective = IN_ONE_STEP[name]
        assert report.iterations == iterations
        assert np.isnan(report.objective) == without_objective


def test_a_fit_that_changes_probabilities_slightly_gets_no_doubt():
    # Three in four would be right at a temperature of 1; one row more is, and the first says none.
    logits = torch.tensor([[0.0, 0.0]] + 1000 * [[np.log(3.0), 0.0]])
    labels = (torch.arange(1001) > 751).long()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FitWarning)
        fitted = build("ts").fit(logits, labels)
    assert fitted.report.doubt == ""
    assert float(fitted.temperature) == pytest.approx(np.log(3) / np.log(751 / 249))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("ts", {}),
        ("ets", {}),
        ("cts", {"assignment": "logit"}),
        ("cts", {"shrinkage": 0.0}),
        ("pts", {"weight_decay": 0.0}),
        ("vs", {"weight_decay": 0.0, "variant": "paper"}),
        ("ms", {"weight_offdiag": 0.0, "weight_bias": 0.0, "variant": "paper"}),
        ("svs", {"weight_diag": 0.0, "weight_bias": 0.0}),
        ("sms", {"weight_diag": 0.0, "weight_offdiag": 0.0, "weight_bias": 0.0}),
    ],
)
def test_without_a_penalty_the_objective_is_the_loss_of_the_fitting_rows(rows, name, parameters):
    logits, labels = rows
    fitted = build_calibrator(name, **parameters).fit(logits, labels)
    loss = torch.nn.functional.nll_loss(fitted(logits.double()), labels)
    assert fitted.report.objective == pytest.approx(float(loss), rel=1e-6)
    assert fitted.report.iterations > 1


def test_a_state_has_every_tensor_and_no_other(rows):
    state = build("ts").fit(*rows).state_dict()
    for wrong in ({}, {**state, "other": torch.ones(1)}):
        names = ", ".join(sorted(wrong)) or "nothing"
        with pytest.raises(InputError) as error:
            build("ts").load_state_dict(wrong)
        assert str(error.value) == f"ts: state has {names}, expected num_classes, temperature"


def test_a_state_that_is_changed_later_changes_no_calibrator(rows):
    fitted = build("vs").fit(*rows)
    state = fitted.state_dict()
    loaded = build("vs")
    loaded.load_state_dict(state)
    state["slope"].zero_()
    assert bool(loaded.slope.ne(0).all())


def test_a_focal_objective_below_one_fits_rows_that_are_sure():
    logits, labels = 1e4 * torch.eye(3).repeat(4, 1), torch.tensor([0, 1, 2] * 3 + [1, 1, 0])
    fitted = build_calibrator("ts", "fl", {"gamma": 0.5}).fit(logits, labels)
    assert float(fitted.temperature) == pytest.approx(100)


def test_half_precision_logits_are_answered_in_float32(rows):
    logits, labels = rows
    assert build("ts").fit(logits.half(), labels)(logits.half()).dtype == torch.float32


@pytest.mark.full
@pytest.mark.parametrize(("name", "objective"), APART)
def test_results_do_not_depend_on_where_blocks_end(rows, monkeypatch, name, objective):
    logits, labels = rows[0][:120], rows[1][:120]
    # Alone: a temperature, which takes over where a map is bad, would hide that it is.
    alone = {"variant": "paper"} if "variant" in CALIBRATORS.parameter_names(name) else {}
    own = {**OWN.get(name, {}), **alone}
    whole = build_calibrator(name, objective, **own).fit(logits, labels)(logits)
    monkeypatch.setattr("trainables.common.logit_rows.BLOCK_VALUES", {"cpu": 240})
    for size in ("kernel.BLOCK", "_logistic.BLOCK_VALUES", "venn_abers.STARTS_AT_ONCE"):
        monkeypatch.setattr(f"trainables.calibrators.{size}", 50)
    parts = build_calibrator(name, objective, **own).fit(logits, labels)(logits)
    torch.testing.assert_close(whole, parts, rtol=0, atol=SOLVED.get(name, 1e-8))


def test_the_loss_of_an_affine_fit_sums_over_all_blocks(rows, monkeypatch):
    logits, labels = rows[0][:120].double(), rows[1][:120]
    monkeypatch.setattr("trainables.common.logit_rows.BLOCK_VALUES", {"cpu": 40})
    fit = AffineFit(logits, torch.zeros(120), labels, torch.tensor([2.0]).double(), (0.0, 0.0))
    expected = torch.nn.functional.cross_entropy(logits / 2, labels, reduction="sum")
    assert fit.loss(fit.scaled) == pytest.approx(float(expected))


def counted_iterations(monkeypatch):
    """Return a list that gets the iterations of each run of SciPy's solvers."""
    counted, minimize = [], scipy.optimize.minimize

    def counting(*arguments, **named):
        found = minimize(*arguments, **named)
        if arguments[0].__name__ != "distance":  # Of cls, which fits its own two numbers.
            counted.append(found.nit)
        return found

    monkeypatch.setattr(scipy.optimize, "minimize", counting)
    return counted


def test_a_fit_in_rounds_counts_the_iterations_of_all(rows, monkeypatch):
    counted = counted_iterations(monkeypatch)
    fitted = build_calibrator("pts", "cls").fit(*rows)
    assert len(counted) > 1
    assert fitted.report.iterations == sum(counted)


@pytest.mark.parametrize("objective", ["ls", "cls"])
@pytest.mark.parametrize("name", ["svs", "ets"])
def test_a_fit_in_two_steps_counts_the_iterations_of_both(rows, monkeypatch, name, objective):
    first = build_calibrator("ts", objective).fit(*rows).report.iterations
    counted = counted_iterations(monkeypatch)
    fitted = build_calibrator(name, objective).fit(*rows)
    assert (len(counted) > 1) == (objective == "cls")
    assert fitted.report.iterations == first + sum(counted)
    assert first > 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("name", "objective"), RECIPES)
def test_a_calibrator_gives_the_same_on_gpu_and_cpu(rows, name, objective):
    # Rows of their own: on its fitting rows Venn-Abers jumps where a score differs by rounding.
    (logits, others), (labels, _) = ((part[::2], part[1::2]) for part in rows)
    there = build(name, objective).fit(logits.cuda(), labels.cuda())(others.cuda())
    here = build(name, objective).fit(logits, labels)(others)
    assert there.is_cuda
    torch.testing.assert_close(there.cpu(), here, rtol=1e-4, atol=1e-4)


# Without those of which the stand-in refuses what a GPU takes: lists as indices (beta), and what a
# quantile is made of (meta-mis); and without two that take long on it, as would held-out rows.
ON_A_CARD = [
    *((name, {}) for name in ("cts", "ets", "isotonic", "pts", "sms", "spline", "svs", "ts", "vs")),
    *(("pnorm", {}), ("mcct", {"variant": "paper"})),
    ("smart", {"variant": "paper", "steps": 3}),
    *((name, {"variant": "paper"}) for name in ("cir", "histogram-binning", "kernel", "platt")),
    *((name, {"variant": "paper"}) for name in ("quadratic", "venn-abers")),
    *(("meta-acc", {"accuracy": 0.2}), ("ts-cls", {}), ("ts-mse", {}), ("ets-ls", {})),
    *(("ets-cls", {}), ("svs-mse", {}), ("ts", {"selection": "ece"}), ("cts-cls", {})),
    *(("cts", {"assignment": "logit"}), ("cts-cls", {"assignment": "logit"})),
]


def test_nearly_all_calibrators_are_tested_on_a_simulated_gpu():
    tried = {parse_calibrator(recipe)[0] for recipe, _ in ON_A_CARD}
    assert {*NAMES} - tried == {"beta", "dirichlet", "meta-mis", "ms"}


@pytest.mark.full
@pytest.mark.parametrize(("recipe", "own"), ON_A_CARD)
def test_a_calibrator_gives_the_same_on_a_simulated_gpu_and_a_cpu(recipe, own):
    rows = draw_rows(rows=90, classes=3)
    here = calibrator_from_recipe(recipe, own).fit(*rows)
    expected = here(rows[0])
    with standin_card(free=2**36, total=2**36):
        logits, labels = (each.to(CARD) for each in rows)
        loaded = calibrator_from_recipe(recipe, own)
        loaded.load_state_dict(here.state_dict())
        for there in (calibrator_from_recipe(recipe, own).fit(logits, labels), loaded):
            found = there(logits)
            assert found.device == CARD
            assert torch.equal(found.cpu(), expected)
            assert {kept.device.type for kept in there.state_dict().values()} == {"cpu"}


@pytest.mark.parametrize("name", ["absent", "empty"])
def test_a_place_without_a_calibrator_is_not_called_damaged(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError) as refusal:
        load_calibrator(tmp_path / name)
    expected = f"{tmp_path / name} has no calibrator; name a folder that has {DESCRIPTION}"
    assert str(refusal.value) == expected
