import pytest

from orchestrator.tables.claims import Claim, load_claims
from orchestrator.tables.columns import column
from orchestrator.tables.layouts import published_key
from orchestrator.tables.layouts._layout import LayoutRow
from orchestrator.tables.published import load_published

CLAIMS = {claim.name: claim for claim in load_claims()}


def test_names_of_claims_are_unique_and_every_paper_has_claims():
    assert len(CLAIMS) == len(load_claims())
    papers = dict.fromkeys(claim.paper for claim in load_claims())
    assert list(papers) == ["acls", "aurc", "cls", "macal", "mbls"]


def test_every_claim_compares_the_recipes_in_its_name():
    plain = {
        "macal-lowers-ece": ("macal Table 3", "*+macal", "*"),
        "macal-beats-ce": ("macal Table 1", "ce+macal", "ce"),
        "macal-keeps-accuracy": ("macal Table 3", "*+macal", "*"),
        "macal-beats-tst": ("macal Table 1", "ce+macal", "ce+tst"),
        "macal-adaptive-sparsity": ("macal Table 5", "ce+macal", "ce+macal-restructured"),
        "acls-beats-mbls": ("acls Table 3", "acls", "mbls"),
        "acls-beats-ls": ("acls Table 3", "acls", "ls"),
        "acls-beats-crl": ("acls Table 3", "acls", "crl"),
        "au-beats-flsd": ("aurc Table 1", "au", "flsd"),
        "au-beats-ce": ("aurc Table 1", "au", "ce"),
        "cls-improves-ts": ("cls Table 1", "*+ts-cls", "*+ts"),
        "cls-improves-cts": ("cls Table 1", "*+cts-logit-cls", "*+cts-logit"),
        "cls-improves-ts-lt": ("cls Table 2", "*+ts-cls", "*+ts"),
        "cls-improves-cts-lt": ("cls Table 2", "*+cts-logit-cls", "*+cts-logit"),
        "mbls-beats-ce": ("mbls Table 1", "mbls", "ce"),
        "mbls-beats-ls": ("mbls Table 1", "mbls", "ls"),
        "mbls-beats-fl": ("mbls Table 1", "mbls", "fl"),
        "mbls-needs-no-ts": ("mbls Table 7", "mbls", "mbls+ts"),
        "mbls-keeps-accuracy": ("mbls Table 2", "mbls", "ce"),
        "mbls-beats-m0": ("mbls Table 1", "mbls", "mbls-m0"),
        "acls-beats-adaptive": ("acls Table 5", "acls", "acls-ar-only"),
        "acls-beats-conditional": ("acls Table 5", "acls", "acls-cr-only"),
        "acls-margin-beats-ranking": ("acls Table 6", "acls", "acls-ranking"),
        "crl-margin-beats-ranking": ("acls Table 6", "crl-margin", "crl"),
        "macal-beats-balcal": ("macal Table 1", "ce+macal", "balcal"),
        "macal-detects-ood": ("macal Table 2", "ce+macal", "ce"),
        "macal-cheaper-than-balcal": ("macal Table 4", "ce+macal", "balcal"),
        "au-beats-flsd-by-class": ("aurc Table 2", "au", "flsd"),
        "au-beats-ce-by-class": ("aurc Table 2", "au", "ce"),
        "cls-improves-ets": ("cls Table 1", "*+ets-cls", "*+ets"),
        "cls-improves-pts": ("cls Table 1", "*+pts-paper-cls", "*+pts-paper"),
        "cls-improves-ets-lt": ("cls Table 2", "*+ets-cls", "*+ets"),
        "cls-improves-pts-lt": ("cls Table 2", "*+pts-paper-cls", "*+pts-paper"),
    }
    assert {
        name: (f"{claim.paper} {claim.table}", claim.better, claim.than)
        for name, claim in CLAIMS.items()
    } == plain
    balanced = ("cifar10", "cifar100", "imagenet")
    logits = ("*_c10_logits", "*_c100_logits", "*_imgnet_logits")  # As NN_calibration names them.
    special = {
        "macal-keeps-accuracy": ("acc", 0.01, ("*",)),
        "cls-improves-ts": ("ece", 0.0, balanced + logits),
        "cls-improves-cts": ("ece", 0.0, balanced + logits),
        "cls-improves-ets": ("ece", 0.0, balanced + logits),
        "cls-improves-pts": ("ece", 0.0, balanced + logits),
        "cls-improves-ts-lt": ("ece", 0.0, ("*-lt*",)),
        "cls-improves-cts-lt": ("ece", 0.0, ("*-lt*",)),
        "cls-improves-ets-lt": ("ece", 0.0, ("*-lt*",)),
        "cls-improves-pts-lt": ("ece", 0.0, ("*-lt*",)),
        "mbls-keeps-accuracy": ("acc", 0.005, ("*",)),
        "macal-detects-ood": ("auroc", 0.0, ("*",)),
        "macal-cheaper-than-balcal": ("seconds", 0.0, ("*",)),
        "au-beats-flsd-by-class": ("cwece", 0.0, ("*",)),
        "au-beats-ce-by-class": ("cwece", 0.0, ("*",)),
        "mbls-needs-no-ts": ("ece", 0.005, ("*",)),
    }
    assert {name: (c.metric, c.margin, c.datasets) for name, c in CLAIMS.items()} == {
        name: special.get(name, ("ece", 0.0, ("*",))) for name in plain
    }


@pytest.mark.parametrize("name", CLAIMS)
def test_the_papers_own_table_mostly_shows_it(name):
    claim = CLAIMS[name]
    table = load_published("results").fillna({"stage2": "", "posthoc": ""})
    table = table[(table.paper == claim.paper) & (table.table == claim.table)]
    metric = {"seconds": "train_seconds"}.get(claim.metric, claim.metric)
    table = table[(table.metric == metric) & table.dataset.map(claim.speaks_of)]
    methods = table.method.unique() if "*" in claim.better else ["ce"]
    held = []
    for method in methods:
        better, than = (
            figures(table, as_published(recipe.replace("*", method)))
            for recipe in (claim.better, claim.than)
        )
        worse_by = (than - better if column(claim.metric).higher else better - than).dropna()
        held += list(worse_by <= 100 * claim.margin)
    assert len(held) >= (1 if claim.table == "Table 6" else 2)
    assert sum(held) > len(held) / 2


@pytest.mark.parametrize(
    ("paper", "dataset", "least"),
    [("mbls", "cifar10", 0.932), ("cls", "cifar100-lt", 0.3487), ("macal", "digits", None)],
)
def test_a_papers_regime_is_its_least_accurate_network(paper, dataset, least):
    claim = Claim(name="n", says="s", paper=paper, table="t", better="a", than="b")
    assert claim.accuracy(dataset) == (least and pytest.approx(least))


def as_published(recipe):
    return recipe.replace("cts-logit", "cts").replace("pts-paper", "pts")


def figures(table, recipe):
    """Return what a table prints of a recipe, by data set and model."""
    row = LayoutRow(recipe=recipe)
    if recipe == "ce+macal-restructured":
        notes = {"stage2": "macal-partial", "note": "+Classifier Restructure"}
        row = LayoutRow(recipe=recipe, published=notes)
    key = published_key(row)
    found = table[(table.method == key.method) & (table.stage2 == key.stage2)]
    found = found[found.posthoc == key.posthoc]
    if key.note:
        found = found[found.note.str.startswith(key.note)]
    return found.set_index(["dataset", "model"]).value


def test_a_star_is_every_method_that_has_both():
    claim = Claim(name="n", says="s", paper="p", table="t", better="*+macal", than="*")
    assert claim.pairs(["ce", "ce+macal", "mbls", "ls+macal"]) == [("ce+macal", "ce")]
    later = claim.model_copy(update={"better": "*+ts-cls", "than": "*+ts"})
    pair = ["ce+macal+ts-cls", "ce+macal+ts"]
    assert later.pairs(["ce", "ce+macal", *pair]) == [], "a refined recipe is no method"
    plain = ["ce+ts", "fl+ts", "fl+ts-cls", "ce"]
    assert later.pairs(plain) == [("fl+ts-cls", "fl+ts")], "a method that is no row of its own"
    assert later.pairs(["given", "ts", "cts", "ts-cls"]) == [("ts-cls", "ts")]
    assert later.pairs(["ts-cls", "ts"]) == [("ts-cls", "ts")]
    assert claim.speaks_of("cifar10")
    fixed = claim.model_copy(update={"better": "mbls", "than": "ce", "datasets": ("*-lt*",)})
    assert fixed.pairs(["mbls", "ce", "fl"]) == [("mbls", "ce")]
    assert fixed.pairs(["mbls"]) == []
    assert fixed.speaks_of("cifar10-lt")
    assert not fixed.speaks_of("cifar10")
    assert fixed.model_copy(update={"datasets": ("*-lt*", "cifar10")}).speaks_of("cifar10")
