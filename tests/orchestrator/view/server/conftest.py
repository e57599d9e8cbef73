"""A storage with a finished sweep, hostile text in every place, and one that is still written."""

import shutil
import threading
from types import SimpleNamespace

import pytest
from starlette.testclient import TestClient

from orchestrator.storage.storage import Storage
from orchestrator.view.server import Book, application, serve
from tests.orchestrator.view.conftest import REASON

TOKEN = "a-token"


def viewed(folder, source, storage, journal_writer):
    """Return a storage, who writes its second sweep, and a client with the token."""
    store = Storage(shutil.copytree(storage, folder, dirs_exist_ok=True))
    (store.sweep("night").logs).mkdir()
    failed = next(t for t in source.history.trials.values() if t.status == "failed")
    (store.sweep("night").logs / f"{failed.key}.log").write_text(f"epoch 1\n{REASON}\n")
    writer = journal_writer(folder / "sweeps" / "later", "later", sweep_id="1a7e")
    writer.start()
    client = TestClient(application(Book(store), TOKEN), base_url="http://127.0.0.1:8720")
    assert client.get(f"/?token={TOKEN}").status_code == 200
    return SimpleNamespace(client=client, storage=store, writer=writer, failed=failed)


def served_of(view):
    """Return the same view with the address at which a browser can open it."""
    heard, there = [], threading.Event()

    def started(address):
        heard.append(address)
        there.set()

    arguments = (Book(view.storage), "127.0.0.1", 0, started)
    threading.Thread(target=serve, args=arguments, daemon=True).start()
    assert there.wait(30)
    view.url = heard[0].url
    return view


@pytest.fixture
def view(tmp_path, source, storage, journal_writer):
    return viewed(tmp_path, source, storage, journal_writer)


@pytest.fixture
def served(view):
    return served_of(view)
