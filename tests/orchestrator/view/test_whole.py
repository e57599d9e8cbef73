"""All that is shown of the made-up sweep, beside all that was shown before, kept in ``test_whole``.

After a change that is meant, run this file with ``--force-regen`` and read what differs.
"""

import re
import shutil

import pytest

from orchestrator.cli import main
from orchestrator.tracking import sync
from tests.orchestrator.whole import assert_same

NAME = "night"
COMMANDS = {
    "terminal": "table --show floor --metrics ece,nll",
    "markdown": "table --show floor,sorted --format markdown --metrics ece,acc,nll",
    "latex": "table --show floor --format latex",
    "html": "table --baseline ce --format html",
    "csv": "table --show floor --format csv",
    "compare": "compare --draws 200",
    "compare-markdown": "compare --metric acc --baseline mbls --draws 200 --format markdown",
    "compare-csv": "compare --metric nll --draws 200 --format csv",
    "layout": "table --layout mbls/table1 --show published,runs,floor",
    "layout-markdown": "table --layout macal/table3 --format markdown --metrics acc,seconds",
    "layout-csv": "table --layout mbls/table1 --show published --format csv",
    "rows": "table --rows recipe,model --metrics seconds,ece --baseline ce+ts --show runs",
    "narrowed": "table --recipes mb*,acls --show sorted --format html",
    "gain": "table --show gain --metrics ece,acc",
    "gain-csv": "table --show gain --metrics ece,acc --format csv --recipes ce,acls",
    "claims": "compare --claims --draws 200",
    "claims-markdown": "compare --claims --draws 200 --format markdown --claim mbls-beats-ce",
    "claims-csv": "compare --claims --draws 200 --format csv",
    "ranks": "compare --ranks --metric acc",
}


def test_the_page(page, file_regression):
    body = re.sub(r'(?s)<(style|script)\b(?! type="application/json").*?</\1>', "", page)
    file_regression.check(body, extension=".html", encoding="utf-8", check_fn=assert_same)


@pytest.fixture(scope="module")
def store(source, storage, tmp_path_factory):
    uri = f"folder:{tmp_path_factory.mktemp('tracking')}"
    # A copy: what was delivered is noted beside the journal, and other tests read that too.
    copy = tmp_path_factory.mktemp("delivered") / NAME
    shutil.copytree(storage / "sweeps" / NAME, copy)
    sync(copy / "journal.jsonl", uri)
    return uri


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_printed(name, store, storage, capsys, monkeypatch, file_regression):
    monkeypatch.setenv("COLUMNS", "160")
    command, *options = COMMANDS[name].split()
    if command == "table":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
        place = ["--storage", str(storage)] if "gain" in options else []
    else:
        place = [
            "--tracking-uri",
            store,
            *(["--storage", str(storage)] * ("--ranks" not in options)),
        ]
    assert main([command, NAME, *options, *place]) == 0
    said = capsys.readouterr()
    text = re.sub(r"\b[0-9a-f]{32}\b", "RUN", f"{said.out}---\n{said.err}")
    file_regression.check(text, extension=".txt", encoding="utf-8", check_fn=assert_same)
