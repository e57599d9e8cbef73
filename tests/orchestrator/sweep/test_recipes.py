import pytest

from orchestrator.sweep.recipes import (
    Recipe,
    check_values,
    expand_recipes,
    narrow,
    parse_recipe,
    part_spaces,
)
from search_spaces import Parameter, SpaceError
from trainables.calibrators import CALIBRATORS
from trainables.common.errors import InputError
from trainables.methods import method_names
from trainables.refinements import REFINEMENTS

VARIANTS = {"macal-static": "macal", "ts-fit": "ts", "mbls-wide": "mbls"}


@pytest.mark.parametrize(
    ("text", "recipe", "stage", "own"),
    [
        ("ce", Recipe(("ce",)), "train", ("ce",)),
        ("mbls+mixup", Recipe(("mbls", "mixup")), "train", ("mbls", "mixup")),
        ("mixup+mcdrop", Recipe(("mixup", "mcdrop")), "train", ("mixup", "mcdrop")),
        ("ce+macal", Recipe(("ce",), "macal"), "refine", ("macal",)),
        ("ce+ts", Recipe(("ce",), None, "ts"), "calibrate", ("ts",)),
        ("ce+ts-cls", Recipe(("ce",), None, "ts-cls"), "calibrate", ("ts-cls",)),
        ("mbls+macal+ts", Recipe(("mbls",), "macal", "ts"), "calibrate", ("ts",)),
        (
            "mbls+mixup+macal+histogram-binning",
            Recipe(("mbls", "mixup"), "macal", "histogram-binning"),
            "calibrate",
            ("histogram-binning",),
        ),
    ],
)
def test_a_parsed_recipe_has_the_name_that_was_parsed(text, recipe, stage, own):
    assert parse_recipe(text) == recipe
    assert recipe.name == text
    assert recipe.stage == stage
    assert recipe.own_parts == own


def test_a_recipe_builds_on_the_one_without_its_last_stage():
    recipe = parse_recipe("mbls+mixup+macal+ts")
    names = [recipe.name]
    while recipe.upstream is not None:
        recipe = recipe.upstream
        names.append(recipe.name)
    assert names == ["mbls+mixup+macal+ts", "mbls+mixup+macal", "mbls+mixup"]
    calibrated = parse_recipe("ce+ts").upstream
    assert calibrated == Recipe(("ce",))


@pytest.mark.parametrize(
    ("text", "calibrator", "stage", "own"),
    [
        ("given", None, "given", ("given",)),
        ("ts-cls", "ts-cls", "calibrate", ("ts-cls",)),
        ("ts-fit", "ts-fit", "calibrate", ("ts-fit",)),
    ],
)
def test_a_recipe_of_given_logits_is_a_calibrator_at_most(text, calibrator, stage, own):
    recipe = parse_recipe(text, VARIANTS, given=True)
    assert recipe == Recipe(("given",), None, calibrator)
    assert (recipe.name, recipe.stage, recipe.own_parts) == (text, stage, own)
    assert recipe.upstream == (Recipe(("given",)) if calibrator else None)


def test_an_unknown_name_is_refused_with_near_names_and_all_names():
    with pytest.raises(InputError) as caught:
        parse_recipe("mbsl")
    near, listing = caught.value.args[0].partition(")")[0].split(" (")
    assert near == "recipe 'mbsl': 'mbsl' is unknown; near are: mbls, ms"
    kinds = [kind.split(": ")[0] for kind in listing.split("; ")]
    assert kinds == ["methods", "refinements", "calibrators"]


METHODS = ", ".join(method_names())
LISTING = f"methods: {METHODS}; refinements: {', '.join(REFINEMENTS.names())}; calibrators: "
LISTING += f"{', '.join(CALIBRATORS.names())}; variants: macal-static, mbls-wide, ts-fit"
ALL = "; `calsweep list methods`, `... refinements` and `... calibrators` show all"
ORDER = "write method[+refinement][+calibrator]"


@pytest.mark.parametrize(
    ("text", "given", "line"),
    [
        ("ce+q", False, f"recipe 'ce+q': 'q' is unknown ({LISTING}){ALL}"),
        (
            "ce+tss",
            False,
            f"recipe 'ce+tss': 'tss' is unknown; near are: ts, tst, svs ({LISTING}){ALL}",
        ),
        ("ce+ts+ets", False, f"recipe 'ce+ts+ets': 'ets' is misplaced; {ORDER}"),
        ("mbls+mbls-wide", False, "recipe 'mbls+mbls-wide': a part occurs twice; delete one"),
        (
            "ce+mbls-wide+ts",
            False,
            "recipe 'ce+mbls-wide+ts': a method has one loss at most; 'mbls' is a second one",
        ),
        (
            "mbls-wide",
            True,
            "recipe 'mbls-wide': tasks with logits allow only 'given' and calibrators, such as "
            f"'ts' or 'ets-cls'; calibrators: {', '.join(CALIBRATORS.names())}",
        ),
    ],
)
def test_an_invalid_recipe_gets_a_complete_message(text, given, line):
    with pytest.raises(InputError) as caught:
        parse_recipe(text, VARIANTS, given)
    assert caught.value.args[0] == line


WRONG = {
    "nothing": ("", ["''", "unknown", "methods: "]),
    "an unknown method": ("cee", ["'cee' is unknown", "methods: ", "ce"]),
    "an unknown objective": ("ce+ts-xyz", ["ts-xyz"]),
    "an objective where there is none": ("ce+isotonic-ls", ["isotonic-ls"]),
    "an empty part": ("ce++ts", ["''"]),
    "a calibrator alone": ("ts", ["'ts' is misplaced", "method[+refinement][+calibrator]"]),
    "a calibrator by an objective alone": ("ets-cls", ["'ets-cls' is misplaced"]),
    "a refinement alone": ("macal", ["'macal' is misplaced"]),
    "a refinement first": ("macal+ce", ["'macal' is misplaced"]),
    "a method after a refinement": ("ce+macal+mixup", ["'mixup' is misplaced"]),
    "a method after a calibrator": ("ce+ts+mixup", ["'mixup' is misplaced"]),
    "a refinement after a calibrator": ("ce+ts+macal", ["'macal' is misplaced"]),
    "two refinements": ("ce+macal+tst", ["'tst' is misplaced"]),
    "two losses": ("ce+mbls", ["ce+mbls", "one loss at most"]),
    "two augmentations": ("ce+mixup+cutmix", ["one augmentation at most"]),
    "two schemes": ("ce+plp+balcal", ["one scheme at most"]),
    "a part twice": ("mbls+mbls", ["twice"]),
    "two makers of the loss": ("mixup+balcal", ["cannot be combined"]),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_texts_that_are_no_recipe_are_refused(mistake):
    text, pieces = WRONG[mistake]
    with pytest.raises(InputError) as caught:
        parse_recipe(text, VARIANTS)
    message = str(caught.value)
    assert "\n" not in message
    for piece in pieces:
        assert piece in message


def test_a_refinement_may_exclude_a_method(monkeypatch):
    monkeypatch.setattr(REFINEMENTS.get("tst"), "excludes", {"mbls": "a margin needs a head"})
    for text in ("mbls+tst", "mbls-wide+tst+ts", "mbls+mixup+tst"):
        with pytest.raises(InputError) as caught:
            parse_recipe(text, VARIANTS)
        assert str(caught.value) == f"recipe {text!r} is excluded: a margin needs a head"
    assert parse_recipe("ce+tst").refinement == "tst"
    assert parse_recipe("mbls+macal").refinement == "macal"


MATCHES = "the wildcard matches no plain method of the list"


def names(*patterns: str, variants: dict[str, str] | None = None) -> list[str]:
    return [recipe.name for recipe in expand_recipes(patterns, variants or {})]


def test_wildcards_match_the_plain_methods_of_the_list():
    assert names("ce", "*+ts") == ["ce", "ce+ts"]
    assert names("*+ts", "ce", "mbls") == ["ce+ts", "mbls+ts", "ce", "mbls"]
    assert names("ce", "fl", "dfl", "f*+macal+ts") == ["ce", "fl", "dfl", "fl+macal+ts"]
    assert names("ce", "mbls+mixup", "*+ts") == ["ce", "mbls+mixup", "ce+ts", "mbls+mixup+ts"]


def test_wildcards_do_not_match_recipes_made_by_wildcards():
    assert names("ce", "ls", "*+mixup", "*+ts") == [
        "ce",
        "ls",
        "ce+mixup",
        "ls+mixup",
        "ce+ts",
        "ls+ts",
    ]
    assert names("ce", "ce+macal", "*+ts") == ["ce", "ce+macal", "ce+ts"]


@pytest.mark.parametrize(
    ("patterns", "line"),
    [
        (("*+ts",), f"recipe '*+ts': {MATCHES} (none); for given logits write 'ts'"),
        (("fl", "x*+ts", "ce"), f"recipe 'x*+ts': {MATCHES} (fl, ce)"),
        (("ce", "ce+*"), f"recipe 'ce+*': {MATCHES} (ce)"),
        (("ce", "ce"), "recipe 'ce' occurs twice; delete one"),
        (("ce", "*+ts", "ce+ts"), "recipe 'ce+ts' occurs twice; delete one"),
        (("ce", "*"), "recipe 'ce' occurs twice; delete one"),
        (("ce", "fl", "*+ts+ts"), f"recipe 'ce+ts+ts': 'ts' is misplaced; {ORDER}"),
    ],
)
def test_wildcards_that_make_no_sense(patterns, line):
    with pytest.raises(InputError) as caught:
        expand_recipes(patterns)
    assert str(caught.value) == line


def test_variants_take_the_place_of_their_parts():
    recipe = parse_recipe("mbls-wide+macal-static+ts-fit", VARIANTS)
    assert recipe == Recipe(("mbls-wide",), "macal-static", "ts-fit")
    assert names("ce", "mbls-wide", "*+macal-static", variants=VARIANTS) == [
        "ce",
        "mbls-wide",
        "ce+macal-static",
        "mbls-wide+macal-static",
    ]
    with pytest.raises(InputError, match="'macal-static' is misplaced"):
        parse_recipe("macal-static", VARIANTS)
    with pytest.raises(InputError, match=r"variants: macal-static, mbls-wide, ts-fit"):
        parse_recipe("ce+macal-statik", VARIANTS)


@pytest.mark.parametrize(
    ("part", "spaces"),
    [
        ("mbls", [("methods", "mbls")]),
        ("macal", [("refinements", "macal")]),
        ("isotonic", [("calibrators", "isotonic")]),
        ("ts", [("calibrators", "ts")]),
        ("ts-cls", [("calibrators", "ts"), ("objectives", "cls")]),
        ("cts-fl", [("calibrators", "cts"), ("objectives", "fl")]),
    ],
)
def test_every_part_of_a_recipe_has_its_search_spaces(part, spaces):
    assert [(space.kind, space.name) for space in part_spaces(part)] == spaces


def test_an_unknown_part_of_a_recipe_has_no_search_space():
    with pytest.raises(InputError, match="unknown"):
        part_spaces("nothing")


WIDE = Parameter(
    name="x",
    symbol="x",
    type="float",
    default=6.0,
    source="a paper",
    low=1.0,
    high=20.0,
    scale="log",
    defaults={"cifar100": 10.0},
    grid=(1.0, 6.0),
    search=False,
    note="kept",
)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"low": 2.0}, {"low": 2.0, "default": 6.0}),
        ({"low": 8.0}, {"low": 8.0, "default": 8.0}),
        ({"high": 3.0}, {"high": 3.0, "default": 3.0}),
        ({"low": 7.0, "high": 7.0}, {"low": 7.0, "high": 7.0, "default": 7.0}),
        ({"low": 0.0, "high": 90.0, "scale": "linear"}, {"low": 0.0, "high": 90.0}),
        ({"choices": (4.0, 6.0)}, {"type": "categorical", "choices": (4.0, 6.0)}),
        ({"choices": (4.0, 8.0)}, {"choices": (4.0, 8.0), "default": 4.0}),
    ],
)
def test_a_changed_range_keeps_the_fields_that_it_does_not_name(change, expected):
    kind = {"type": "categorical"} if "choices" in change else {}
    rest = {"grid": (), "defaults": {}, "search": True, **kind}
    assert narrow(WIDE, change) == Parameter(**{**vars(WIDE), **change, **rest, **expected})


SORT = Parameter("x", "x", "categorical", "a", "a paper", choices=("a", "b"))


@pytest.mark.parametrize(
    ("parameter", "change", "complaint"),
    [
        (SORT, {"low": 1.0}, "x takes choices, not a range"),
        (SORT, {"high": 1.0}, "x takes choices, not a range"),
        (SORT, {"scale": "log"}, "x takes choices, not a range"),
        (WIDE, {"choices": (1.0,), "high": 2.0}, "x takes either choices or a range, not both"),
        (
            WIDE,
            {"choices": (1.0,), "scale": "linear"},
            "x takes either choices or a range, not both",
        ),
        (WIDE, {"choices": (1.0,), "low": 1.0}, "x takes either choices or a range, not both"),
        (WIDE, {"low": 5.0, "high": 4.0}, "x: needs low <= high, got 5.0 and 4.0"),
        (WIDE, {"low": 0.0}, "x: a log scale needs low > 0, got 0.0"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused(parameter, change, complaint):
    with pytest.raises(SpaceError) as caught:
        narrow(parameter, change)
    assert str(caught.value) == complaint


@pytest.mark.parametrize(
    ("part", "good", "bad"),
    [
        ("mbls", {"margin": 900.0}, {"margin": -1.0}),
        ("macal", {"epochs": 1}, {"epochs": 0}),
        ("spline", {"knots": 4}, {"knots": -1}),
        ("ts-ls", {"smoothing": 0.2}, {"smoothing": 2.0}),
    ],
)
def test_a_part_judges_its_own_values(part, good, bad):
    check_values("here", part, good)
    for values in (bad, {"nothing": 1}):
        with pytest.raises(InputError, match="^here: .*" + next(iter(values))):
            check_values("here", part, values)
