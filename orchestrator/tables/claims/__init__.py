"""Claims of the papers, one YAML file per paper, in a form that runs can confirm or refute."""

from fnmatch import fnmatchcase
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.sweep.documents import read_document, validate
from trainables.common.stages import GIVEN
from trainables.common.yaml_text import read_mapping

FOLDER = files("orchestrator.tables.claims")


class Claim(BaseModel):
    """The claim that one recipe is better than another, for one method or for every method.

    Attributes:
        says: The claim in a sentence.
        better: The recipe that is claimed to be better. ``*`` means any method; for given logits,
            ``*+ts`` means the recipe ``ts``.
        than: The recipe to compare with; ``*`` is the same method as in ``better``.
        metric: The compared metric, such as ``ece``; ``seconds`` is the cost; ``auroc`` and
            ``fpr95`` are means over the suites of foreign images.
        margin: How much worse the recipe may be without refuting the claim: 0 for "better", more
            for "not worse".
        datasets: Patterns for the names of data sets and logits files to which the claim applies.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    says: str
    paper: str
    table: str
    better: str
    than: str
    metric: str = "ece"
    margin: float = Field(default=0.0, ge=0.0)
    datasets: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] = ("*",)

    def speaks_of(self, dataset: str) -> bool:
        """Return True if the claim is about a data set."""
        return any(fnmatchcase(dataset, pattern) for pattern in self.datasets)

    def accuracy(self, dataset: str) -> float | None:
        """Return the accuracy of the paper's worst cross-entropy network on a data set.

        It is a fraction; None if the paper has none.
        """
        from orchestrator.tables.published import load_published  # pandas is needed here only

        table = load_published("results")
        table = table[(table.paper == self.paper) & (table.dataset == dataset)]
        table = table[(table.metric == "acc") & (table.method == "ce")]
        found = table[(table.stage2 == "") & (table.posthoc == "")].value.dropna()
        return float(found.min()) / 100 if len(found) else None

    def pairs(self, recipes: list[str]) -> list[tuple[str, str]]:
        """Return the pairs of ``recipes`` that the claim compares, the better one first."""
        methods = dict.fromkeys([*(name.partition("+")[0] for name in recipes), GIVEN])
        sides = (self.better, self.than)
        named = [tuple(s.replace("*", m).removeprefix(f"{GIVEN}+") for s in sides) for m in methods]
        return [(b, t) for b, t in dict.fromkeys(named) if {b, t} <= set(recipes)]


def load_claims() -> list[Claim]:
    """Return the claims of all papers."""
    entries = sorted(FOLDER.iterdir(), key=lambda entry: entry.name)
    return [c for entry in entries if entry.name.endswith(".yaml") for c in _read(entry)]


class _Page(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    paper: str
    claims: list[dict[str, object]]


def _read(entry: Traversable) -> list[Claim]:
    where = f"claims {entry.name}"
    document = read_mapping(read_document(entry, where), where, "claims", "paper and claims")
    page = validate(_Page, document, where)
    return [validate(Claim, {"paper": page.paper, **claim}, where) for claim in page.claims]
