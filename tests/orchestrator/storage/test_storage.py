import os
import re
from datetime import datetime, timedelta
from pathlib import Path

import psutil
import pytest
import yaml

from orchestrator.storage.storage import Storage
from orchestrator.sweep.spec import SweepSpec, parse_sweep
from trainables.common.errors import InputError

SWEEP = """
name: {name}
tasks: [{{dataset: digits, model: convnet, protocol: digits}}]
recipes: [ce]
storage: {storage}
"""


def begun(storage: Path, name: str = "one") -> SweepSpec:
    spec = parse_sweep(SWEEP.format(name=name, storage=storage), name)
    Storage.of(spec).sweep(name).write_spec(spec)
    return spec


def test_a_storage_has_fixed_paths(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    sweep = storage.sweep("one")
    found = {
        "artifacts": storage.artifacts,
        "data": storage.data,
        "mlflow-artifacts": storage.tracked_files,
        "nightly/n": storage.nightly("n"),
        "sweeps/one": sweep.path,
        "sweeps/one/journal.jsonl": sweep.journal,
        "sweeps/one/sweep.yaml": sweep.spec_file,
        "sweeps/one/chosen": sweep.chosen,
        "sweeps/one/tune": sweep.tune,
        "sweeps/one/report.html": sweep.report,
        "sweeps/one/table.csv": sweep.table("csv"),
    }
    assert {str(path.relative_to(tmp_path)): path for path in found.values()} == found
    assert storage.store().root == storage.artifacts
    assert sweep.storage.folder == storage.folder == tmp_path
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mark", ["sweep.yaml", "journal.jsonl", "chosen", "tune", "shipped.json"])
def test_any_file_of_a_sweep_makes_the_storage_list_the_sweep(tmp_path: Path, mark: str) -> None:
    for name in ("b", "a"):
        (tmp_path / "sweeps" / name / mark).mkdir(parents=True)
    for other in ("run.lock", "owner"):
        (tmp_path / "sweeps" / "refused" / other).mkdir(parents=True)
    assert [sweep.name for sweep in Storage(tmp_path).sweeps()] == ["a", "b"]


def test_a_storage_without_sweeps_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refusal:
        Storage(tmp_path).sweeps()
    where = f"{tmp_path}/sweeps (another storage: --storage DIR)"
    assert str(refusal.value) == f"no sweeps in {where}: it is not a folder"


def test_a_sweep_runs_in_the_storage_in_which_it_is_found(tmp_path, monkeypatch):
    before = begun(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    found = Storage(tmp_path / "new").load_spec("one")
    assert found.storage == str(tmp_path / "new")
    assert found.model_copy(update={"storage": before.storage}) == before
    monkeypatch.chdir(tmp_path)
    assert Storage("new").load_spec("one").storage == "new"
    assert (tmp_path / "new/sweeps/one/sweep.yaml").read_text().startswith("name: one\n")


def test_a_specification_is_stored_with_the_values_of_its_defaults(tmp_path: Path) -> None:
    """Another version may have other defaults."""
    text = SWEEP.format(name="one", storage=tmp_path) + "tags: {team: red}\n"
    spec = parse_sweep(text + "search: {objective: nll}\n", "one")
    sweep = Storage.of(spec).sweep("one")
    sweep.write_spec(spec)
    assert yaml.safe_load(sweep.spec_file.read_text()) == spec.model_dump(mode="json")
    found = Storage(tmp_path).load_spec("one")
    assert (found, found.tags, found.search.objective) == (spec, {"team": "red"}, "nll")


def test_a_specification_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = Storage.of(begun(tmp_path)).sweep("one").spec_file
    file.write_text("before")
    (tmp_path / "kept").hardlink_to(file)  # Whoever had it open still reads what it was.
    begun(tmp_path)
    assert file.read_text().startswith("name: one\n")
    assert (tmp_path / "kept").read_text() == "before"


def test_a_stored_specification_that_is_wrong_is_named_by_its_file(tmp_path: Path) -> None:
    begun(tmp_path)
    file = Storage(tmp_path).sweep("one").spec_file
    file.write_text(file.read_text().replace("recipes:", "recipe:"))
    with pytest.raises(InputError, match=re.escape(str(file))):
        Storage(tmp_path).load_spec("one")


@pytest.mark.parametrize("name", ["none", "", "../sweeps/one"])
def test_an_unknown_sweep_is_refused_with_the_known_names(tmp_path: Path, name: str) -> None:
    storage = Storage(tmp_path)
    (tmp_path / "sweeps" / "refused").mkdir(parents=True)
    with pytest.raises(InputError, match=r"there are: none$"):
        storage.load_spec(name)
    begun(tmp_path, "two")
    begun(tmp_path, "one")
    with pytest.raises(InputError) as refusal:
        storage.load_spec(name)
    where = f"{tmp_path}/sweeps (another storage: --storage DIR)"
    assert str(refusal.value) == f"no sweep {name!r} in {where}; there are: one, two"


@pytest.mark.full
def test_a_sweep_is_owned_as_long_as_it_runs(tmp_path: Path) -> None:
    sweep, again = (Storage(tmp_path).sweep("one") for _ in range(2))
    for _ in range(2):
        with sweep.owned():
            assert again.is_owned()
            (sweep.path / "owner").write_text("process 7 on ada")
            with pytest.raises(InputError) as refusal:
                again.owned().__enter__()
            assert str(refusal.value) == (
                "sweep 'one' is being run by process 7 on ada; if that machine no longer exists, "
                f"remove {sweep.path / 'run.lock'}"
            )
            (sweep.path / "run.lock").unlink()
            with again.owned():
                assert again.is_owned()
        assert not again.is_owned()
    with pytest.raises(ZeroDivisionError), sweep.owned():
        raise ZeroDivisionError
    assert not sweep.is_owned()


@pytest.mark.parametrize("left", [(), ("sweep.yaml",), ("mine.txt",)])
def test_a_refused_sweep_leaves_only_files_that_were_there_before(
    tmp_path: Path, left: tuple[str, ...]
) -> None:
    sweep = Storage(tmp_path).sweep("one")
    sweep.path.mkdir(parents=True)
    for name in left:
        (sweep.path / name).touch()
    with pytest.raises(InputError, match="no such data"), sweep.owned():
        raise InputError("no such data")
    kept = {path.name for path in sweep.path.glob("*")} - {"run.lock"}
    assert kept == {*left, *(["owner"] if "sweep.yaml" in left else [])}
    assert sweep.path.exists() == bool(left)
    with sweep.owned():
        pass


@pytest.mark.parametrize("others", [(), ("sweeps/two",)])
def test_the_first_sweep_of_a_storage_leaves_nothing_there_if_it_is_refused(
    tmp_path: Path, others: tuple[str, ...]
) -> None:
    for name in others:
        (tmp_path / name).mkdir(parents=True)

    def prepare() -> None:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / ".prepare.lock").touch()
        raise InputError("no such data")

    with pytest.raises(InputError), Storage(tmp_path).sweep("one").owned():
        prepare()
    kept = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert kept == ({"sweeps", *others, "data", "data/.prepare.lock"} if others else set())


@pytest.mark.usefixtures("far_east")
def test_the_owner_file_says_who_runs_a_sweep_and_since_when(tmp_path: Path) -> None:
    sweep = Storage(tmp_path).sweep("one")
    before = datetime.now().astimezone().replace(microsecond=0)
    with sweep.owned():
        said = (sweep.path / "owner").read_text()
        place = f"{psutil.Process().username()} on {os.uname().nodename}, process {os.getpid()}"
        assert re.fullmatch(rf"{place}, since \d{{4}}(-\d\d){{2}} \d\d(:\d\d){{2}}.\d\d:\d\d", said)
        since = datetime.fromisoformat(said.partition(", since ")[2])
        assert before <= since <= datetime.now().astimezone()
        assert since.utcoffset() == timedelta(hours=20)
        (sweep.path / "owner").unlink()  # As before the other one has written it.
        with pytest.raises(InputError, match=r"'one' is being run by another process$"):
            sweep.owned().__enter__()


def test_links_out_of_a_sweep_and_pipes_in_it_are_not_read(tmp_path: Path) -> None:
    sweep = Storage(tmp_path / "storage").sweep("one")
    sweep.path.mkdir(parents=True)
    (tmp_path / "secret").write_text("pause")
    for name in ("owner", "control"):
        (sweep.path / name).symlink_to(tmp_path / "secret")
    outside = f"leads to a place outside {sweep.path}"
    assert sweep.owner() == f"another process ({outside}: {sweep.path}/owner)"
    with pytest.raises(PermissionError, match=outside):
        sweep.control()
    for name in ("owner", "control", "run.lock"):
        (sweep.path / name).unlink(missing_ok=True)
        os.mkfifo(sweep.path / name)
    assert "is not a regular file" in sweep.owner()
    with pytest.raises(PermissionError, match="is not a regular file"):
        sweep.control()
    assert not sweep.is_owned()


def test_a_sweep_whose_folder_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sweeps").write_text("")
    place = tmp_path / "sweeps" / "one"
    with pytest.raises(InputError, match=f"^storage {place} cannot be written: .*Not a directory"):
        Storage(tmp_path).sweep("one").owned().__enter__()
    with pytest.raises(InputError) as refusal:
        begun(tmp_path)
    assert str(refusal.value) == f"{place}/sweep.yaml cannot be written: Not a directory"
