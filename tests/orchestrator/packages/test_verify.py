import importlib
import json
import re
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from orchestrator.cli import main
from orchestrator.packages.derive import derive
from orchestrator.packages.markdown import to_markdown
from orchestrator.packages.merge import merge
from orchestrator.packages.package import Package, opened
from orchestrator.packages.publish import publish
from orchestrator.packages.verify import Check, Verdict, VerifyOptions, verify
from orchestrator.storage.events import Evaluated, StudyClosed, TrialFinished
from orchestrator.storage.ledger import read_ledger
from orchestrator.storage.storage import Storage
from tests.orchestrator.packages.boards import board, unpacked
from trainables.common.errors import InputError
from trainables.common.portable import VARIABLES
from trainables.losses import LOSSES
from trainables.metrics import METRICS
from trainables.plugins import active_plugins, load_plugins

pytestmark = pytest.mark.full  # Hub and frozen packages are verified in the fast suite.

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
frauds: Any = importlib.import_module("_frauds")
sys.path.remove(str(BENCHMARKS))

WHOLE = VerifyOptions(share=1.0, revision="c0ffee")
CHEAP = replace(WHOLE, share=0.0)
# What nothing but another training can find.
UNSEEN = {"fitted_on_test", "lower_confidences"}


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    """Return that of a sweep that is measured on other images, too."""
    folder = tmp_path_factory.mktemp("board")
    pixels = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    images = {"x_train": pixels[:30], "y_train": np.arange(30) % 3}
    np.savez(folder / "other.npz", **images, x_test=pixels[30:], y_test=np.arange(30) % 3)
    return board(folder / "storage", suites=f"['ood-npz:{folder}/other.npz']")


@pytest.fixture(scope="module")
def site(storage: Storage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    publish(storage, ["board"], folder)
    return folder


@pytest.fixture(scope="module")
def package(site: Path) -> Path:
    return site / "package.zip"


def test_an_honest_package_is_accepted(package: Path) -> None:
    found = verify(package, WHOLE)
    assert found.problems == []
    assert len(found.retrained) == 8
    assert max(each.worst for each in found.retrained) == 0.0


def test_refinements_of_one_pass_are_computed_again_with_each_other(tmp_path):
    storage = board(tmp_path / "storage", "pass", recipes="[ce, ce+macal, ce+macal+ts]")
    publish(storage, ["pass"], tmp_path)
    found = verify(tmp_path / "package.zip", replace(WHOLE, tolerance=0.0))
    assert found.problems == []
    assert max(each.worst for each in found.retrained) == 0.0


def test_a_configuration_of_another_pass_is_another_outcome(tmp_path):
    board(tmp_path / "storage", "alone", recipes="[ce+macal, ce+macal+ts]", trials=1)
    storage = board(tmp_path / "storage", "pass", recipes="[ce+macal, ce+macal+ts]")
    first, second = (read_ledger(storage.sweep(name).journal) for name in ("alone", "pass"))
    outcomes = [
        {each.artifact for each in ledger.trials.values() if each.stage == "refine"} - {""}
        for ledger in (first, second)
    ]
    assert all(outcomes)
    assert not outcomes[0] & outcomes[1]
    publish(storage, ["pass"], tmp_path)
    found = verify(tmp_path / "package.zip", replace(WHOLE, tolerance=0.0))
    assert found.problems == []
    assert max(each.worst for each in found.retrained) == 0.0


def test_a_portable_sweep_is_equal_to_the_last_digit_or_not_computed(tmp_path, monkeypatch, capsys):
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    more = "resources: {portable: true}"
    bits = board(tmp_path / "storage", "bits", recipes="[ce]", seeds="[0]", more=more)
    publish(bits, ["bits"], tmp_path)
    package = tmp_path / "package.zip"
    assert verify(package, replace(WHOLE, tolerance=0.0)).problems == []
    monkeypatch.delenv("MKL_CBWR")
    assert main(["package", "verify", str(package), "--revision", "c0ffee"]) == 2
    told = "calsweep: resources.portable: this process computes without the required environment"
    assert capsys.readouterr().err.splitlines()[-1].startswith(told)
    assert main(["package", "verify", str(package), "--revision", "c0ffee", "--retrain", "0"]) == 0


def test_an_unknown_trial_is_not_a_fault_of_the_package(package, capsys):
    assert (
        main(["package", "verify", str(package), "--revision", "c0ffee", "--trial", "nowhere"]) == 2
    )
    told = "calsweep: --trial 'nowhere': no key of a trial in the package has this prefix"
    assert capsys.readouterr().err.splitlines()[-1] == told


def test_a_package_is_the_same_each_time(storage: Storage, package: Path, tmp_path: Path) -> None:
    publish(storage, ["board"], tmp_path)
    assert (tmp_path / "package.zip").read_bytes() == package.read_bytes()


@pytest.mark.parametrize("kind", frauds.FRAUDS, ids=lambda kind: kind.__name__)
def test_a_fraud_is_refused(kind: Any, storage: Storage, package: Path, tmp_path: Path) -> None:
    forged = frauds.planted(package, kind, storage, "board", 7, tmp_path / "forged.zip")
    unseen = verify(forged, CHEAP).accepted
    assert unseen == (kind.__name__ in UNSEEN)
    if unseen:
        again = replace(CHEAP, trials=touched(package, forged))
        assert not verify(forged, again).accepted


def touched(honest: Path, forged: Path) -> list[str]:
    """Return the keys of the trials with other predictions."""
    with zipfile.ZipFile(honest) as before, zipfile.ZipFile(forged) as after:
        sums = {entry.filename: entry.CRC for entry in before.infolist()}
        other = [Path(e.filename) for e in after.infolist() if sums.get(e.filename) != e.CRC]
    found = [path.stem for path in other if path.parent.name in ("test", "suites")]
    assert found
    return found


def fails_otherwise(forge: Any) -> None:
    events = forge.events()
    for event in events:
        if isinstance(event, TrialFinished | StudyClosed) and event.reason:
            event.reason = "RuntimeError: a node was lost"
    forge.tell(events)


def test_failed_trial_fails_again_for_the_same_reason(tmp_path: Path) -> None:
    wild = "variants: {wild: {of: mbls, fixed: {weight: 1.0e+30, margin: 0.0}}}\n"
    storage = board(tmp_path / "storage", recipes="[ce, wild]", seeds="[0]", more=wild)
    publish(storage, ["board"], tmp_path)
    honest = tmp_path / "package.zip"
    found = verify(honest, WHOLE)
    assert found.problems == []
    forged = frauds.planted(honest, fails_otherwise, storage, "board", 7, tmp_path / "forged.zip")
    assert "got another one: TrainingDivergedError" in str(verify(forged, WHOLE).problems)


def test_a_named_trial_is_computed_again(package: Path, tmp_path: Path) -> None:
    with opened(package) as found:
        key = found.cells[0].trial.key
    report = tmp_path / "report.md"
    words = ("--retrain", "0", "--trial", key[:12], "--revision", "c0ffee")
    assert main(["package", "verify", str(package), *words, "--report", str(report)]) == 0
    assert f"| {key[:12]} | 0 |" in report.read_text()


PLUGGED = """
from calsweep import METRICS

@METRICS.register("doubt", better="lower", floored=True)
def doubt(probs, labels):
    return ((probs.argmax(1) == labels).double().mean() - probs.amax(1).mean()).abs()
"""


@pytest.fixture(scope="module")
def plugged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Storage, Path]]:
    """Yield a storage and the package of its sweep, with a loss and a metric of plugins."""
    folder = tmp_path_factory.mktemp("plugged")
    (folder / "doubt.py").write_text(PLUGGED)
    loss = Path(__file__).parents[3] / "examples/plugin/calsweep_example/gce.py"
    plugins = f"plugins: [{loss}, {folder}/doubt.py]"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(METRICS, "_declared", {})
        storage = board(folder / "storage", recipes="[ce, gce]", seeds="[0]", more=plugins)
        publish(storage, ["board"], folder)
        yield storage, folder / "package.zip"
    load_plugins((), installed=True)


@pytest.fixture
def stranger() -> None:
    load_plugins((), installed=True)


@pytest.mark.usefixtures("stranger")
def test_plugins_of_a_package_are_run_only_where_they_are_trusted(plugged, capsys):
    storage, package = plugged
    words = ["package", "verify", str(package), "--revision", "c0ffee", "--retrain", "0"]
    assert main(words) == 2
    (line,) = [t for t in capsys.readouterr().err.splitlines() if t.startswith("calsweep: ")]
    told = r"calsweep: not verified: plugins gce \(code \w{12}\), doubt \(code \w{12}\) are .*"
    assert re.fullmatch(told + "add --trust-plugins", line)
    assert "gce" not in LOSSES
    with zipfile.ZipFile(package) as archive:
        texts = [archive.read(n) for n in archive.namelist() if not n.endswith(".npz")]
        codes = [re.match(r"plugins/(\w{64})/doubt.py", name) for name in archive.namelist()]
    assert str(storage.folder).encode() not in b"".join(texts)
    (code,) = [found[1] for found in codes if found]
    assert main([*words, "--trust-plugins"]) == 0
    (shown,) = [t for t in capsys.readouterr().out.splitlines() if "whose code was run" in t]
    assert shown.endswith(f", doubt {code}")


@pytest.mark.usefixtures("stranger")
def test_trainings_and_figures_of_plugins_are_computed_again(plugged: tuple[Storage, Path]) -> None:
    found = verify(plugged[1], replace(WHOLE, trust_plugins=True))
    assert found.problems == []
    with opened(plugged[1]) as package:
        assert {"doubt", "doubt_floor"} < {*package.cells[0].trial.test}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a plugin with a metric on the machine that verifies."""
    (tmp_path / "theirs.py").write_text(PLUGGED.replace("doubt", "theirs"))
    plugin = load_plugins([str(tmp_path / "theirs.py")], installed=True)
    with monkeypatch.context() as patch:
        patch.setattr("trainables.plugins._load._installed", lambda: plugin)
        yield
        assert active_plugins() == plugin
    load_plugins((), installed=True)


@pytest.mark.usefixtures("installed")
def test_a_package_does_not_depend_on_the_metrics_that_a_process_knows(
    storage: Storage, package: Path, tmp_path: Path
) -> None:
    METRICS.declare({"another": {"label": "another"}})
    publish(storage, ["board"], tmp_path)
    with zipfile.ZipFile(tmp_path / "package.zip") as new, zipfile.ZipFile(package) as old:
        assert [n for n in old.namelist() if new.read(n) != old.read(n)] == []
    assert "another" in METRICS


@pytest.mark.usefixtures("installed")
def test_plugins_that_are_installed_here_change_nothing(package, plugged):
    assert verify(package, CHEAP).problems == []
    assert verify(plugged[1], replace(CHEAP, trust_plugins=True)).problems == []


def test_a_sweep_merged_with_one_that_has_plugins_is_computed_without_them(plugged, tmp_path):
    load_plugins((), installed=True)
    publish(board(tmp_path / "storage", "plain", "[fl]", "[0]"), ["plain"], tmp_path / "plain")
    merge([plugged[1], tmp_path / "plain" / "package.zip"], tmp_path)
    with opened(tmp_path / "package.zip") as merged:
        (key,) = [c.trial.key for c in merged.cells if c.study.recipe == "fl"]
    options = replace(CHEAP, trials=(key,), trust_plugins=True)
    found = verify(tmp_path / "package.zip", options)
    assert (found.problems, [one.trial for one in found.retrained]) == ([], [key])


def tell_less_doubt(forge: Any) -> None:
    events = forge.events()
    for event in events:
        if isinstance(event, Evaluated):
            event.metrics = {**event.metrics, "test_doubt": 0.5 * event.metrics["test_doubt"]}
    forge.tell(events)


def change_code(forge: Any) -> None:
    (path,) = forge.folder.glob("plugins/*/doubt.py")
    path.write_text(path.read_text().replace("abs()", "abs() / 2"))
    derive(forge.package)


def add_code(forge: Any) -> None:
    place = forge.folder / "plugins" / ("0" * 64)
    place.mkdir()
    (place / "more.py").write_text("")
    derive(forge.package)


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (tell_less_doubt, "doubt: published"),
        (change_code, "doubt.py: expected code"),
        (add_code, "more.py belongs to no sweep"),
    ],
)
def test_a_forged_plugin_or_figure_of_one_is_refused(plugged, tmp_path, kind, told):
    storage, package = plugged
    forged = frauds.planted(package, kind, storage, "board", 7, tmp_path / "forged.zip")
    problems = verify(forged, replace(CHEAP, trust_plugins=True)).problems
    assert told in " ".join(problems)


def test_verify_refuses_another_code_revision(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["package", "verify", str(package), "--retrain", "0", "--revision", "abc"]) == 3
    assert "expected code of revision abc, got c0ffee" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("member", "content", "told"),
    [
        ("../outside.npz", b"", "an unexpected file '../outside.npz'"),
        ("/etc/passwd", b"", "an unexpected file"),
        ("test/run.py", b"", "an unexpected file"),
        ("package.json", b"{}", "the package contains a file twice"),
        ("journals/other.jsonl", b"{}\n", "it does not match its checksum"),
        ("test/" + "0" * 64 + ".npz", b"", "belongs to no cell of the table"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_foreign_file_is_refused(package, tmp_path, member, content, told):
    forged = tmp_path / "forged.zip"
    forged.write_bytes(package.read_bytes())
    with zipfile.ZipFile(forged, "a") as archive:
        archive.writestr(member, content)
    assert told in " ".join(verify(forged, WHOLE).problems)


def test_a_file_that_is_not_a_package_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file; name the zip file"):
        verify(tmp_path, WHOLE)
    (tmp_path / "p.zip").write_text("words")
    (problem,) = verify(tmp_path / "p.zip", WHOLE).problems
    assert "is damaged or not a zip archive" in problem


def test_a_report_escapes_texts_of_a_package(package: Path) -> None:
    check = Check("files", "all", ("<script>|`x`|](http://x)&",))
    page = to_markdown(Verdict("<b>|", (check,), (), WHOLE))
    assert page.startswith("# &lt;b\\>\\|: refused")
    assert "- &lt;script\\>\\|\\`x\\`\\|\\]\\(http://x\\)&amp;" in page


STRANGE = (None, "words", -1, 1e300, [], {}, True, [[1]], {"a": {"b": None}}, "0" * 300)


@pytest.mark.parametrize("seed", range(8))
def test_changed_claims_of_a_journal_are_refused(package: Path, tmp_path: Path, seed: int) -> None:
    """Change one value of one event to something strange; the checksums are right."""
    die, folder = Random(seed), tmp_path / "forged"
    unpacked(package, folder)
    (journal,) = (folder / "journals").iterdir()
    lines = journal.read_bytes().splitlines()
    events = [json.loads(line) for line in lines]
    place = die.randrange(len(events))
    event = events[place]
    told = [name for name in event if name not in ("event", "crc")]
    name = die.choice(told)
    value = die.choice([v for v in STRANGE if v != event[name]])
    if isinstance(event[name], dict) and event[name] and die.random() < 0.7:
        inner = die.choice(list(event[name]))
        event[name] = {**event[name], inner: value}
    else:
        event[name] = value
    del event["crc"]
    content = json.dumps(event, separators=(",", ":")).encode()[:-1]
    lines[place] = content + b',"crc":"%08x"}' % zlib.crc32(content)
    journal.write_bytes(b"\n".join(lines) + b"\n")
    with suppress(ValueError, TypeError, LookupError, AttributeError):
        derive(Package(folder))  # Else the derived files are wrong as well.
    forged = Package(folder).pack(tmp_path / "forged.zip")
    found = verify(forged, WHOLE)
    assert found.problems or said(forged) == said(package), (event["event"], name, value)


def said(package: Path) -> tuple[list[dict[str, Any]], bytes]:
    with zipfile.ZipFile(package) as archive:
        cells = json.loads(archive.read("cells.json"))
        return [{**cell, "versions": None} for cell in cells], archive.read("table.csv")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Storage, Path]:
    """Return a storage and the package of its sweep, measured on suites of every kind."""
    folder, die = tmp_path_factory.mktemp("suites"), np.random.default_rng(0)
    places = []
    for name, rows in (("own", 86), ("other", 16), ("another", 11)):
        labels = np.arange(rows) % 3
        pixels = die.integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8)
        places.append(folder / f"{name}.npz")
        test = {"x_test": pixels[:6], "y_test": labels[:6]}
        np.savez(places[-1], x_train=pixels[6:], y_train=labels[6:], **test)
    own, *others = places
    suites = ", ".join(["bins-2", "generated-c", *(f"'ood-npz:{place}'" for place in others)])
    task: Any = {"dataset": f"'npz:{own}'", "suites": f"[{suites}]", "rows": (30, 6)}
    storage = board(folder / "storage", recipes="[ce]", seeds="[0]", **task)
    publish(storage, ["board"], folder)
    return storage, folder / "package.zip"


def test_figures_of_suites_are_computed_again(measured: tuple[Storage, Path]) -> None:
    found = verify(measured[1], WHOLE)
    assert found.problems == []
    with opened(measured[1]) as package:
        told = package.cells[0].trial.test
    labels = {name.rpartition("/")[0] for name in told if "/" in name}
    assert {"bins-2", "generated-c", "ood-other", "ood-another", "ood"} < labels


BETTER = ["ood-other/auroc", "ood/auroc", "bins-2/ece", "generated-c/ece"]


def tell_better(forge: Any) -> None:
    events = forge.events()
    for event in events:
        if isinstance(event, Evaluated):
            told = {f"test_{name}": event.metrics[f"test_{name}"] * 0.9 for name in BETTER}
            event.metrics = {**event.metrics, **told}
    forge.tell(events)


def drop_suites(forge: Any) -> None:
    for path in (forge.folder / "suites").iterdir():
        path.unlink()
    derive(forge.package)


def cut_suites(forge: Any) -> None:
    for path in (forge.folder / "suites").iterdir():
        with np.load(path) as found:
            arrays = {name: found[name][:-1] for name in found.files}
        np.savez_compressed(path, **arrays)
    derive(forge.package)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (tell_better, [f" {name}: published " for name in BETTER]),
        (drop_suites, ["metrics: expected a tensor of shape (15, 5, "]),
        (cut_suites, [", got (14, 5, "]),
    ],
)
def test_a_forged_suite_is_refused_without_training(measured, tmp_path, kind, told):
    storage, package = measured
    forged = frauds.planted(package, kind, storage, "board", 7, tmp_path / "forged.zip")
    problems = " ".join(verify(forged, CHEAP).problems)
    assert [text for text in told if text not in problems] == []
