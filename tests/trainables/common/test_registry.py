import sys
from pathlib import Path
from typing import Any

import pytest

from trainables.common.errors import InputError
from trainables.common.registry import Registry

MODULE = """
from made_up import KINDS

@KINDS.register("{name}")
class Kind:
    def __init__(self{parameters}) -> None:
        self.given = {{key: value for key, value in locals().items() if key != "self"}}
"""


@pytest.fixture
def kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[Any]:
    package = tmp_path / "made_up"
    package.mkdir()
    text = (
        "from trainables.common.registry import Registry\n"
        'KINDS = Registry("kind", "made_up", object)\n'
    )
    (package / "__init__.py").write_text(text)
    for name, parameters in (("zeta", ", size=3, mode='a'"), ("alpha", "")):
        (package / f"{name}.py").write_text(MODULE.format(name=name, parameters=parameters))
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("made_up", "made_up.zeta", "made_up.alpha"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import made_up

    return made_up.KINDS


def test_every_module_is_an_entry(kinds):
    assert "zeta" in kinds
    assert "beta" not in kinds
    assert kinds.names() == ["alpha", "zeta"]
    assert kinds.get("zeta") is sys.modules["made_up.zeta"].Kind
    assert kinds.get("zeta").name == "zeta"
    assert (kinds.parameter_names("zeta"), kinds.parameter_names("alpha")) == (["size", "mode"], [])
    assert kinds.build("zeta", mode="b").given == {"size": 3, "mode": "b"}
    with pytest.raises(ValueError, match="kind 'alpha' is registered twice"):
        kinds.register("alpha")(object)


def test_at_most_three_near_names_are_suggested(kinds):
    for letter in "bcde":
        kinds.register(f"beta_{letter}")(type("Beta", (), {}))
    with pytest.raises(InputError) as caught:
        kinds.get("beta_x")
    near = str(caught.value).removeprefix("unknown kind 'beta_x'; near are: ").split(", ")
    assert len(set(near)) == 3
    assert {name[:-1] for name in near} == {"beta_"}


@pytest.mark.parametrize("first", ["names", "get", "build", "parameter_names"])
def test_every_method_of_a_registry_loads_its_entries(kinds, first):
    assert getattr(kinds, first)(*([] if first == "names" else ["alpha"])) is not None


@pytest.mark.parametrize(
    ("name", "parameters", "text"),
    [
        ("zetta", {}, "unknown kind 'zetta'; near are: zeta$"),
        ("other", {}, "unknown kind 'other'; there are: alpha, zeta$"),
        ("zeta", {"sizes": 1}, "zeta has no parameter 'sizes'; parameters are size, mode$"),
        ("alpha", {"size": 1}, "alpha has no parameter 'size'; parameters are none$"),
    ],
)
def test_unknown_names_and_parameters_are_refused(kinds, name, parameters, text):
    with pytest.raises(InputError, match=text):
        kinds.build(name, **parameters)
