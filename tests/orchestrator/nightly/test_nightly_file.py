import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from told_sweep import document

from orchestrator.cli import main
from orchestrator.nightly import Limits, benchmark_file, load_nightly
from orchestrator.nightly.config import COSTS
from orchestrator.sweep.plan import make_plan
from trainables.common.errors import InputError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _nothing_is_computed(monkeypatch):
    """Let a file that should be refused, or another in its place, cost no night."""

    def run_sweep(*_: Any, **__: Any) -> None:
        pytest.fail("a night was computed")

    monkeypatch.setattr("orchestrator.nightly.run.run_sweep", run_sweep)


def test_the_shipped_benchmark_is_the_one_in_the_package():
    shown = ROOT / "benchmarks" / "nightly.yaml"
    assert shown.resolve() == benchmark_file().resolve()
    benchmark = load_nightly(shown)
    assert benchmark.name == "nightly"
    plain = ("ce", "ls", "mbls", "fl")
    mac = ("ce+macal", "mbls+macal", "ce+macal+ts")
    assert benchmark.shape.recipes == (*plain, *(f"{recipe}+ts" for recipe in plain), *mac)
    assert benchmark.shape.seeds == (0, 1, 2)
    assert benchmark.shape.tasks == ("digits/convnet/digits",)
    assert benchmark.sweep.search.fixed == {"macal": {"epochs": 20}}
    plan = make_plan(benchmark.sweep)
    assert all(study.trials == 1 for study in plan)


def test_a_nightly_file_determines_the_shape_of_every_night(make_benchmark):
    search = {"trials": 1, "seed": 7}  # That seed is in no table.
    sweep = {"recipes": ["ls", "ce", "*+ts"], "seeds": [5, 3], "search": search}
    shape = make_benchmark(sweep=sweep, metrics=["ece", "cifar10-c/acc"]).shape
    assert shape.recipes == ("ls", "ce", "ls+ts", "ce+ts")
    assert shape.tasks == ("d",)
    assert shape.seeds == (5, 3)
    assert shape.metrics[:2] == ("ece", "cifar10-c/acc")
    assert set(shape.metrics[2:]) == {"images_per_second", "wall_seconds", "peak_memory"}


def test_the_sweep_may_be_a_file_of_its_own(tmp_path):
    (tmp_path / "deep").mkdir()
    sweep = document(tmp_path)["sweep"]
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    path = tmp_path / "deep" / "nightly.yaml"
    path.write_text("sweep: ../sweep.yaml\n")
    assert load_nightly(path).name == "told"


def test_the_fingerprint_depends_on_the_benchmark_and_not_on_paths(make_benchmark):
    first = make_benchmark().fingerprint
    assert re.fullmatch("[0-9a-f]{12}", first)
    elsewhere = {"storage": "elsewhere", "data_root": "d", "resources": {"concurrent": 1}}
    assert make_benchmark(sweep=elsewhere).fingerprint == first
    others = (
        {"recipes": ["ce"]},
        {"variants": {"soft": {"of": "ls", "fixed": {"smoothing": 0.2}}}},
        {"search": {"trials": 1, "fixed": {"ts": {"selection": "ece"}}}},
        {"tasks": [{"name": "d", "dataset": "digits", "model": "resnet18", "protocol": "digits"}]},
    )
    found = {make_benchmark(sweep=changes).fingerprint for changes in others}
    assert len({*found, first}) == 5


def test_keys_missing_in_a_nightly_file_have_defaults(make_benchmark):
    benchmark = make_benchmark()
    model, report = benchmark.model, benchmark.model.report
    assert (model.history, model.keep, model.limits) == (90, 3, Limits())
    assert (model.limits.window, model.limits.false_alarms) == (21, 0.25)
    assert benchmark.shape.metrics == ("acc", "ece", "aece", "cwece", "nll", *COSTS)
    assert (report.when, report.mail, report.webhook) == ("alarm", (), None)
    assert benchmark.folder == Path(benchmark.sweep.storage) / "nightly/told"
    folder = benchmark.sweep_folder("2026-11-21").path
    assert folder == benchmark.folder / "nights/2026-11-21/sweeps/told-2026-11-21"


def test_the_least_and_the_most_that_a_file_may_say(make_benchmark):
    for history, window, keep in ((5, 5, 1), (3650, 365, 9)):
        model = make_benchmark(history=history, keep=keep, limits={"window": window}).model
        assert (model.history, model.keep, model.limits.window) == (history, keep, window)
    for web in ("https://h/x", "http://h:65535/x?y"):
        assert make_benchmark(report={"webhook": web}).model.report.webhook == web


WEBHOOKS = {
    "a wrong address": "file:///etc/passwd",
    "an address in two lines": "http://h/\nx",
    "an address with a space": "http://h/a b",
    "an address with a login": "http://me:pw@h/x",
    "an address of no port": "http://h:99999/x",
    "an address of no number": "http://h:abc/x",
    "an address of half a host": "http://[::1/x",
    "a letter beyond ASCII": "http://h/\u00e9",
    "an address elsewhere": "http://h/x@y",
    "an empty address": "",
}
MISTAKES: dict[str, dict[str, Any]] = {
    "no sweep": {"sweep": None},
    "a number as sweep": {"sweep": 5},
    "an unknown key": {"alarm": 1},
    "a search": {"sweep": {"search": {"trials": 4}}},
    "a grid": {"sweep": {"search": {"trials": 1, "sampler": "grid"}}},
    "an unknown metric": {"metrics": ["beauty"]},
    "a cost as metric": {"metrics": ["wall_seconds"]},
    "a wrong limit": {"limits": {"window": 1}},
    **{mistake: {"report": {"webhook": address}} for mistake, address in WEBHOOKS.items()},
    "a shell line": {"report": {"mail": "mail -s x"}},
    "a copy elsewhere": {"report": {"markdown": "s3://b/x"}},
    "a copy nowhere": {"report": {"markdown": ""}},
    "a page elsewhere": {"report": {"html": "s3://b/x"}},
    "a test elsewhere": {"report": {"junit": "s3://b/x"}},
    "no metric": {"metrics": []},
    "too short a history": {"history": 4},
    "too long a history": {"history": 3651},
    "too wide a window": {"limits": {"window": 366}},
    "nothing kept": {"keep": 0},
}


def mistaken(folder: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """Return a nightly file with changes in it."""
    content = document(folder)
    for key, value in changes.items():
        nested = isinstance(value, dict) and isinstance(content.get(key), dict)
        content[key] = {**content[key], **value} if nested else value
    return content


def test_what_is_said_of_mistakes_is_what_was_said_before(tmp_path, capsys, file_regression):
    """After a change that is meant, run this with ``--force-regen`` and read what differs."""
    path, said = tmp_path / "nightly.yaml", []
    for mistake, changes in MISTAKES.items():
        path.write_text(yaml.safe_dump(mistaken(tmp_path, changes)))
        assert main(["nightly", "run", str(path)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        # Any part of an address may be secret.
        assert (WEBHOOKS.get(mistake) or "nothing") not in error
        said.append(f"{mistake}:\n  {error.replace(str(tmp_path), 'FOLDER')}")
    assert not (tmp_path / "storage").exists()
    file_regression.check("".join(said), encoding="utf-8", basename="mistakes")


def test_a_mistake_in_its_sweep_is_named_by_the_file_too(tmp_path, capsys):
    path = tmp_path / "nightly.yaml"
    content = mistaken(tmp_path, {"sweep": {"recipes": ["nonsense"]}})
    path.write_text(yaml.safe_dump(content))
    assert main(["nightly", "run", str(path)]) == 2
    assert f"{path}: sweep: recipe " in capsys.readouterr().err


def test_a_file_is_found_from_here_and_kept_by_its_whole_path(make_benchmark, monkeypatch):
    path = make_benchmark().path
    monkeypatch.chdir(path.parent)
    assert load_nightly(path.name).path == path
    with pytest.raises(InputError, match=r"^nightly file: 's3://b/x' is a URL; "):
        load_nightly("s3://b/x")
