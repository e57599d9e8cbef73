"""All that some nights tell, beside all that they told before, kept in ``test_whole_nights``.

After a change that is meant, run this file with ``--force-regen`` and read what differs.
"""

import contextlib
import io
import json
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from told_sweep import ToldSweep, document

from orchestrator.cli import main
from orchestrator.nightly import publish
from orchestrator.nightly import run as nights
from orchestrator.sweep.spec import SweepSpec
from orchestrator.tracking import SingleRun
from tests.orchestrator.whole import assert_same
from trainables.common.errors import InputError

TASK = {"dataset": "digits", "model": "convnet", "protocol": "digits"}
FILE = {
    "sweep": {
        "name": "whole",
        "tasks": [{**TASK, "name": "d"}, {**TASK, "name": "e_2"}],
        "recipes": ["ce", "ls", "ce+ts", "ls+ts"],
        "seeds": [1, 0],
    },
    "metrics": ["acc", "ece", "nll"],
    "limits": {"hard": {"acc": {"min": 0.5}}},
    "report": {"webhook": "http://h/hook", "mail": ["mail", "{subject}"], "when": "always"},
    "keep": 2,
}
USUAL, LAST, BROKEN = 7, 9, 10  # The last usual night, the last one judged, one that cannot run.
BASE = {"ce": 1.0, "ls": 1.01, "ce+ts": 1.02, "ls+ts": 1.03}
"""Figures of every recipe, as parts of those that are told: otherwise they would be twins."""


def name(day: int) -> str:
    return f"2027-01-{day:02}"


def set_figures(sweep: ToldSweep, day: int) -> None:
    """Let the figures be those of a day: as usual, worse, better, missing, impossible."""
    sweep.changes = {(recipe, "nll"): times for recipe, times in BASE.items()}
    sweep.changes["ce", "nll"] += 0.002 * (day % 3)
    if day > USUAL:
        sweep.changes |= {("d|ls", "ece"): 1.3, ("d|ls", "nll"): 0.7}
        sweep.changes["d|ls", "epoch_seconds"] = 1.5
    if day == LAST:
        sweep.changes |= {("ce", "wall_seconds"): 1.4, ("e_2|ce+ts", "acc"): 0.4}
        sweep.changes["e_2|ce", "peak_memory"] = 1.5
        sweep.failures = {"ls+ts": "the loss | is <nan>", "e_2|ls": "out of memory"}
        sweep.lost = {"d|ce+ts 0"}


class Listener:
    """Keeps what people and the tracking server are told; says at first that it heard nothing.

    What a file in the folder of a night holds is kept as that file's name.
    """

    def __init__(self, nights: Path) -> None:
        self.heard: list[Any] = []
        self.deaf = False
        self._nights = nights

    def post(self, url: str, body: dict[str, Any]) -> str:
        told = {key: body.pop(key) for key in ("nightly", "code", "text")}
        verdict = self._nights / body["night"] / "verdict.json"
        known = verdict.exists() and json.loads(verdict.read_text()) == body
        self.heard.append({"webhook": url, **told, "rest": verdict.name if known else body})
        return "the webhook is deaf" if self.deaf else ""

    def mail(self, command: tuple[str, ...], title: str, text: str) -> str:
        reports = [path for path in self._nights.glob("*/report.md") if path.parent.name in title]
        known = text in [path.read_text() for path in reports]
        told = "report.md" if known else text.splitlines()
        self.heard.append({"mail": command, "title": title, "text": told})
        return "the mail is lost" if self.deaf else ""

    def run(self, uri: str, experiment: str, kind: str, run: SingleRun, files: Path) -> None:
        fields = {key: value for key, value in asdict(run).items() if key != "ended"}
        # Those of cells are the means of ``record.json``.
        fields["metrics"] = {key: v for key, v in run.metrics.items() if "/" not in key}
        self.heard.append({"run": [uri, experiment, kind, str(files)], **fields})


def laid_out(value: Any, levels: int) -> str:
    """Return JSON with a line for each entry of its upper levels."""
    if not (levels and value and isinstance(value, dict | list)):
        return json.dumps(value, default=str)
    if isinstance(value, list):
        return "[\n" + ",\n".join(laid_out(entry, levels - 1) for entry in value) + "\n]"
    entries = (f'"{key}": {laid_out(entry, levels - 1)}' for key, entry in value.items())
    return "{\n" + ",\n".join(entries) + "\n}"


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Run the nights, and every other command about them; return all that came of it."""
    folder = tmp_path_factory.mktemp("whole")
    content = document(folder, **FILE)
    content["sweep"]["tracking"] = {"uri": "http://me:pw@127.0.0.1:9/"}
    (folder / "nightly.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    place, sweep, day = folder / "storage/nightly/whole", ToldSweep(), 0
    listener = Listener(place / "nights")
    texts = {}

    def surroundings(*_: Any) -> dict[str, str]:
        torch = "2.1" if day <= USUAL else "3.4"
        return {"torch": torch, "hardware gpus": "none", "code": f"{day // LAST}<c>"}

    def command(*words: str) -> str:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["nightly", *words])
        shown = " ".join(f"'{word}'" if " " in word else word for word in words)
        return f"$ calsweep nightly {shown}\n{out.getvalue()}---\n{err.getvalue()}=== {code}\n\n"

    def night(day: int) -> str:
        return command("run", str(folder / "nightly.yaml"), "--night", name(day), "--quiet")

    def latest() -> str:
        # HTML is the same blocks as Markdown; test_page.py has how it is written.
        said = "\n".join((place / name).read_text() for name in ("report.md", "junit.xml"))
        return said.replace("><", ">\n<")

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "120")
        clock = SimpleNamespace(time=lambda: 1_800_000_000.5 + 86_400 * day)
        for module in (nights, publish):
            patch.setattr(module, "time", clock)
        patch.setattr(nights, "run_sweep", sweep)
        patch.setattr(nights, "current_environment", surroundings)
        patch.setattr(publish, "_post", listener.post)
        patch.setattr(publish, "_mail", listener.mail)
        patch.setattr(publish, "sync", lambda *_, **__: None)
        patch.setattr(publish, "deliver_run", listener.run)
        said = []
        for day in range(1, LAST + 1):
            set_figures(sweep, day)
            listener.heard = listener.heard if day == LAST else []
            listener.deaf = day == LAST - 1
            said.append(night(day))
        said = [*said[-3:], night(LAST)]
        texts["heard.json"] = laid_out(listener.heard, 3)
        file, cell = str(folder / "nightly.yaml"), "ls on d: ece"
        said += [
            command("status", file, "--last", "4"),
            command("history", file, "--cell", "ls on d"),
        ]
        said.append(command("accept", cell, "--why", "new smoothing", "--file", file))
        for part, levels in (("record.json", 2), ("verdict.json", 3)):
            written = (place / "nights" / name(LAST) / part).read_text()
            texts[part] = laid_out(json.loads(written), levels)
        texts["latest.txt"] = latest()
        day, listener.heard = BROKEN, []

        def broken(spec: SweepSpec) -> None:
            raise InputError("the disk | is <full>")

        sweep.before_end = broken
        said += [night(BROKEN), command("status", file, "--last", "1", "--metric", "acc")]
        texts["broken.txt"] = f"{latest()}\n{laid_out(listener.heard, 3)}\n"
        texts["commands.txt"] = "".join(said)
        locks = (".moment", ".lock")
        kept = defaultdict[str, list[str]](list)
        for path in sorted(path for path in place.rglob("*") if path.is_file()):
            if path.suffix not in locks:
                kept[str(path.parent.relative_to(place))].append(path.name)
        texts["files.txt"] = "\n".join(f"{own}: {', '.join(kept[own])}" for own in sorted(kept))
    return {kind: text.replace(str(folder), "FOLDER") for kind, text in texts.items()}


KINDS = ("commands.txt", "latest.txt", "broken.txt", "files.txt")
KINDS += ("record.json", "verdict.json", "heard.json")


@pytest.mark.parametrize("kind", KINDS)
def test_reports_of_whole_nights_equal_the_stored_texts(kind, told, file_regression):
    own = {"basename": Path(kind).stem, "extension": Path(kind).suffix}
    file_regression.check(told[kind], **own, encoding="utf-8", check_fn=assert_same)
