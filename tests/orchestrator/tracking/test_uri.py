import os
import re
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from orchestrator.sweep.tracking_uri import check_tracking_uri, default_tracking_uri, sqlite_file
from orchestrator.tracking import listens, ping, storage_uri
from trainables.common.errors import InputError

ALLOWED = (
    "allowed: sqlite:///PATH/mlflow.db, http(s)://HOST:PORT, postgresql://USER@HOST/DATABASE, "
    "tensorboard:FOLDER, trackio:PROJECT or wandb:PROJECT"
)


def refusal(uri: str) -> str:
    with pytest.raises(InputError) as caught:
        check_tracking_uri(uri)
    return str(caught.value)


def test_valid_addresses_are_accepted(tmp_path, monkeypatch):
    monkeypatch.setattr("orchestrator.tracking._kinds.find_spec", lambda name: object())
    for uri in (
        f"sqlite:///{tmp_path}/not/yet/there/mlflow.db",
        "http://localhost:5000",
        "https://user:secret@tracking.example/mlflow",
        "postgresql://me@db.example/mlflow",
        "postgresql+psycopg://me@db.example:5432/mlflow",
    ):
        check_tracking_uri(uri)
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize(
    "uri",
    ["mlruns", "/data/mlruns", "file:///data/mlruns", "file:mlruns", "", "databricks", "s3://b/c"],
)
def test_folders_and_the_unknown_are_refused_with_the_remedy(uri):
    assert refusal(uri) == (
        f"tracking uri {uri!r} is not supported (MLflow 3 no longer supports plain folders); "
        f"{ALLOWED}"
    )


@pytest.mark.parametrize(
    "uri",
    [
        *("sqlite:", "sqlite:m.db", "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:////"),
        *("sqlite:///{folder}", "sqlite:///{folder}/mlflow.db?mode=ro"),
    ],
)
def test_sqlite_without_a_file_is_refused(uri, tmp_path):
    told = refusal(uri.format(folder=tmp_path))
    assert re.fullmatch(rf"tracking uri '.*' names no file; {re.escape(ALLOWED)}", told)


def test_a_path_with_a_control_character_is_refused():
    told = refusal("sqlite:////a\x1bb.db")
    assert told.startswith("tracking uri 'sqlite:////a\\x1bb.db' cannot be a path: ")


def test_a_file_that_cannot_be_written_is_no_database(tmp_path, monkeypatch):
    file = tmp_path / "mlflow.db"
    file.touch()
    uri = f"sqlite:///{file}"
    check_tracking_uri(uri)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != file)
    told = f"tracking uri {uri!r} cannot be written: it belongs to {file.owner()}"
    assert refusal(uri) == told


@pytest.mark.parametrize("uri", ["http:", "http:a", "http://", "https:///path", "postgresql://"])
def test_a_server_without_a_host_is_refused(uri):
    assert refusal(uri).startswith("tracking uri ")
    assert refusal(uri).endswith(f" has no host; {ALLOWED}")


@pytest.mark.parametrize(
    ("kind", "package"),
    [
        ("postgresql+psycopg2", "psycopg2-binary"),
        ("postgresql+psycopg", "psycopg[binary]"),
        ("postgresql+asyncpg", "asyncpg"),
    ],
)
def test_a_missing_driver_is_named(monkeypatch, kind, package):
    monkeypatch.setattr("orchestrator.tracking._kinds.find_spec", lambda name: None)
    told = f"tracking uri '{kind}://me@db.example/mlflow' needs `pip install {package}`"
    assert refusal(f"{kind}://me:secret@db.example/mlflow") == told
    either = r"needs `pip install psycopg(2-binary|\[binary\])`$"
    assert re.search(either, refusal("postgresql://me:secret@db.example/mlflow"))


def test_a_name_that_is_too_long_is_no_file(tmp_path):
    told = refusal(f"sqlite:///{tmp_path}/{'x' * 300}")
    assert re.fullmatch(r"tracking uri 'sqlite:.*\.\.\.' names no file: File name too long", told)


def test_a_folder_has_to_be_written_and_entered(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.R_OK | os.X_OK)
    with pytest.raises(InputError, match="is not a folder that can be written"):
        check_tracking_uri(f"sqlite:///{tmp_path}/runs/m.db")
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.W_OK | os.X_OK)
    check_tracking_uri(f"sqlite:///{tmp_path}/runs/m.db")


@pytest.mark.parametrize(
    "address", ["postgresql+a-b://db/mlflow", "postgresql+://db/mlflow", "postgresql://db:/mlflow"]
)
def test_an_address_that_no_driver_can_parse_is_refused(address):
    assert refusal(address) == f"tracking uri {address!r} is not an address; {ALLOWED}"


def test_sqlite_in_a_place_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    uri = f"sqlite:///{tmp_path}/file/mlflow.db"
    told = f"tracking uri {uri!r}: {tmp_path}/file is not a folder that can be written"
    assert refusal(uri) == told
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match="can be written"):
        check_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")


def test_ping_looks_at_a_sqlite_file_without_creating_it(tmp_path, store):
    file = tmp_path / "mlflow.db"
    ok, detail = ping(f"sqlite:///{file}")
    assert (ok, detail) == (True, f"{file} does not exist yet; the first sweep creates it")
    assert not file.exists()
    file.write_text("something else that is long enough to be no database")
    ok, detail = ping(f"sqlite:///{file}")
    assert (ok, detail) == (
        False,
        f"{file} is not an MLflow database (file is not a database); move it away or name another "
        "file",
    )
    file.unlink()
    sqlite3.connect(file).close()
    assert not ping(f"sqlite:///{file}")[0]
    ok, detail = ping(store)
    assert ok
    assert "schema" in detail


def test_ping_describes_a_wrong_address_or_a_silent_server():
    ok, detail = ping("mlruns")
    assert not ok
    assert "is not supported" in detail
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        uri = f"http://me:secret@127.0.0.1:{taken.getsockname()[1]}"
        ok, detail = ping(uri, timeout=1.0)
    assert not ok
    assert "gives no answer" in detail
    assert "secret" not in detail


@pytest.mark.parametrize("kind", ["http", "postgresql+psycopg2"])
def test_listens_sends_no_request(kind):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        uri = f"{kind}://127.0.0.1:{taken.getsockname()[1]}/mlflow"
        assert not listens(uri)
        taken.listen()
        assert listens(uri)
    assert listens("sqlite:////some/where/mlflow.db")


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("http://there", ("there", 80)),
        ("https://ada:secret@there/x", ("there", 443)),
        ("postgresql+psycopg://me@there/mlflow", ("there", 5432)),
        ("https://there:8443", ("there", 8443)),
    ],
)
def test_an_address_without_a_port_has_the_default_port(monkeypatch, uri, place):
    asked = []

    def connect(*arguments):
        asked.append(arguments)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", connect)
    assert not listens(uri, timeout=0.5)
    assert not listens(uri)
    assert asked == [(place, 0.5), (place, 2.0)]


def test_listens_closes_its_connection(monkeypatch):
    left = []
    connection = SimpleNamespace(close=lambda: left.append("closed"))
    monkeypatch.setattr(socket, "create_connection", lambda *_: connection)
    assert listens("http://there")
    assert left == ["closed"]


def test_the_default_address_is_that_of_the_environment_then_the_storage(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    uri = default_tracking_uri(str(tmp_path))
    assert uri == f"sqlite:///{tmp_path}/mlflow.db"
    assert sqlite_file(uri) == tmp_path / "mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://there")
    assert default_tracking_uri("elsewhere") == "http://there"


def test_importing_tracking_and_checking_an_address_imports_neither_mlflow_nor_torch():
    program = (
        "import sys\n"
        "from orchestrator.sweep.tracking_uri import check_tracking_uri\n"
        "from orchestrator.tracking import start_shipper\n"
        "check_tracking_uri('http://localhost:5000')\n"
        "from orchestrator import best_config\n"
        "import orchestrator.tracking.__main__\n"
        "assert not {'mlflow', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_tracker_in_the_sweep_files_is_used(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    own = f"folder:{tmp_path}/runs"
    for name, uri in (("one", own), ("two", own), ("third", None), ("other", "http://h:1")):
        folder = tmp_path / "sweeps" / name
        folder.mkdir(parents=True)
        (folder / "sweep.yaml").write_text(yaml.safe_dump({"tracking": {"uri": uri}}))
    database = f"sqlite:///{tmp_path}/mlflow.db"
    assert storage_uri(str(tmp_path), ["one", "two"]) == own
    for sweeps in (["one", "third"], ["one", "other"], ["third"], ["none"], ["../x"], [], None):
        assert storage_uri(str(tmp_path), sweeps) == database, sweeps
    (tmp_path / "sweeps" / "one" / "sweep.yaml").write_text("tracking: [")
    with pytest.raises(InputError, match=r"sweep.yaml.*line 1"):
        storage_uri(str(tmp_path), ["one"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://h:2")
    assert storage_uri(str(tmp_path), ["one"]) == "http://h:2"


def test_without_a_database_the_common_tracker_of_all_sweeps_is_used(tmp_path):
    own = f"folder:{tmp_path}/runs"
    assert storage_uri(str(tmp_path)) == f"sqlite:///{tmp_path}/mlflow.db"
    for name in ("one", "two"):
        (tmp_path / "sweeps" / name).mkdir(parents=True)
        file = tmp_path / "sweeps" / name / "sweep.yaml"
        file.write_text(yaml.safe_dump({"tracking": {"uri": own}}))
    assert storage_uri(str(tmp_path)) == own
    (tmp_path / "mlflow.db").touch()
    assert storage_uri(str(tmp_path)) == f"sqlite:///{tmp_path}/mlflow.db"
