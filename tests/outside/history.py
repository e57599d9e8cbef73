"""Live one history of a sweep, step by step, and hold each step against docs/promises.md."""

from __future__ import annotations

import copy
import csv
import io
import json
import random
import re
import shlex
import shutil
import signal
import sqlite3
import time
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.outside import sweeps
from tests.outside.door import Door, Running, Told
from tests.outside.draw import DIMENSIONS, Row, together

REMEDY = re.compile(r"(?:`|with:? )(calsweep [^`\n]+)")
# The server of pages never ends by itself, a job server is not there, and these are what is tested.
NOT_PASTED = ("ui", "submit", "demo")
STEPS = DIMENSIONS["command"]
MISTAKES: dict[str, dict[str, Any]] = {
    "an unknown key": {"recipe": ["ce"]},
    "an unknown recipe": {"recipes": ["nothing"]},
    "no recipes": {"recipes": []},
    "an unknown refinement": {"recipes": ["ce+nothing"]},
    "no trials": {"search": {"trials": 0}},
    "an unknown sampler": {"search": {"sampler": "best"}},
    "an unknown objective": {"search": {"objective": "speed"}},
    "a range that is turned round": {
        "search": {"spaces": {"mbls": {"margin": {"low": 9, "high": 2}}}}
    },
    "a fixed value of the wrong type": {"search": {"fixed": {"ts": {"variant": 3}}}},
    "no data": {"tasks": [{"dataset": "npz:absent.npz", "model": "convnet", "protocol": "digits"}]},
    "no logits": {"tasks": [{"logits": "absent.csv"}], "recipes": ["given"]},
    "a negative seed": {"seeds": [-1]},
    "a seed twice": {"seeds": [1, 1]},
    "a name with a slash": {"name": "a/b"},
    "an empty name": {"name": ""},
    "an unknown executor": {"executor": "slurm"},
    "a plugin that is absent": {"plugins": ["./absent.py"]},
    "an unknown tracker": {"tracking": {"uri": "lab:group"}},
    "a storage that is a file": {"storage": "drawn.yaml"},
    "negative processors": {"resources": {"train": {"cpu": -1}}},
    "a rule for keeping": {"keep": "some"},
    "data of another kind": {"tasks": [{"logits": "drawn.yaml"}], "recipes": ["given"]},
}


# Storages and files that steps name; a sweep writes nothing else next to its storage.
OUTPUTS = {"calm", "relabelled", "site", "both", "forged.zip", "page.html", "wrong.yaml"}
FIGURE = r"\d\.\d{6,}"


def proven(text: str) -> list[str]:
    """Return the figures of a file of a package that a verification checks, so no costs."""
    if text.startswith("sweep,"):
        rows = csv.DictReader(io.StringIO(text))
        found = [row[name] for row in rows for name in ("nll_mean", "ece_mean")]
        return [figure for figure in found if re.fullmatch(FIGURE, figure)]
    return re.findall(rf'"(?:val_|test_)?(?:nll|ece|brier)": ?({FIGURE})', text)


def sealed(journal: bytes) -> bytes:
    """Return a journal with new checksums, as somebody who changes a line writes them."""
    lines = [line.rpartition(b',"crc":')[0] for line in journal.splitlines()]
    return b"".join(b'%b,"crc":"%08x"}\n' % (line, zlib.crc32(line)) for line in lines)


class Broken(AssertionError):
    """A promise that did not hold."""


class History:
    """One folder with one sweep, and the model of what must hold there."""

    def __init__(self, row: Row, seed: int, folder: Path, door: Door) -> None:
        self.row, self.rng, self.door = row, random.Random(seed), door
        self.folder, self.log = folder, [f"seed {seed}: {row}"]
        folder.mkdir(parents=True)
        self.spec = sweeps.write(row, folder, door.environment)
        self.place, self.ended, self.calm, self.seconds = self.spec["storage"], 0, "", 5.0
        self.moved, self.steps = False, ["run"]
        self.steady = row["scheduler"] == "none"
        self.written = {path.name for path in folder.iterdir()} | OUTPUTS

    def copied(self, folder: Path, door: Door, seed: int = 6) -> History:
        """Return a copy in another folder, whose commands another server runs."""
        shutil.copytree(self.folder, folder, symlinks=True)
        found = copy.copy(self)
        found.folder, found.door, found.log = folder, door, [*self.log]
        found.rng, found.steps = random.Random(seed), [*self.steps]
        return found

    @property
    def store(self) -> Path:
        """The folder of the storage."""
        return (self.folder / self.place).resolve()

    @property
    def storage(self) -> tuple[str, str]:
        """The option that names the storage."""
        return ("--storage", self.place)

    # Commands

    def call(self, *argv: str, codes: tuple[int, ...] = (0,)) -> Told:
        """Run a command and check its exit code and its remedies."""
        return self.checked(self.door(*argv, cwd=self.folder), codes)

    def checked(self, told: Told, codes: tuple[int, ...] = (0,)) -> Told:
        """Check an exit code, that there is no traceback, and paste the remedies."""
        self.log.append(f"calsweep {shlex.join(told.argv)} -> {told.code}")
        if told.code not in codes or "Traceback" in told.err:
            self.broken(
                f"exit code {told.code}, not {codes}\n{told.out[-1500:]}\n{told.err[-3000:]}"
            )
        return told

    def follow(self, told: Told) -> list[Told]:
        """Run every command that a message shows as a remedy, as it is."""
        found = [shlex.split(text)[1:] for text in REMEDY.findall(told.out + told.err)]
        return [self.call(*argv) for argv in found if argv[0] not in NOT_PASTED]

    def broken(self, what: str) -> None:
        """Fail with the steps so far."""
        raise Broken("\n".join([*self.log, what]))

    def same(self, name: str, one: object, other: object) -> None:
        """Fail unless two observations are equal."""
        if isinstance(one, dict) and isinstance(other, dict):
            changed = {key for key in {**one, **other} if one.get(key) != other.get(key)}
            one, other = ({key: each.get(key) for key in changed} for each in (one, other))
        if one != other:
            self.broken(f"{name}:\n{one}\n---\n{other}")

    # Observations

    def files(self) -> dict[str, tuple[int, int]]:
        """Return size and time of each file of the storage; locks and logs of SQLite apart."""
        found = {}
        for path in sorted(self.store.rglob("*")) if self.store.exists() else ():
            if path.is_file() and not path.name.endswith((".lock", "-wal", "-shm", "-journal")):
                about = path.stat()
                found[str(path.relative_to(self.store))] = (about.st_size, about.st_mtime_ns)
        return found

    def outcomes(self) -> set[str]:
        """Return the stored artifacts."""
        return {name for name in self.files() if name.startswith("artifacts")}

    def table(self, *options: str) -> str:
        """Return the comparable table as CSV."""
        shown = ("--format", "csv", "--show", "comparable", *options)
        return self.call("table", self.spec["name"], *shown, *self.storage).out

    def status(self) -> dict[str, Any]:
        """Return the status, after checking that no trial was lost."""
        told = self.call("status", self.spec["name"], "--json", *self.storage, codes=(0, 2))
        if told.code == 2:
            if self.ended:
                self.broken(f"the sweep is gone: {told.err}")
            return {"ended": 0, "recipes": [], "state": "absent"}
        found: dict[str, Any] = json.loads(told.out)
        count = sum(recipe["ended"] for recipe in found["recipes"])
        if count < self.ended or count > found["trials"]:
            self.broken(f"{count} of {found['trials']} trials ended, {self.ended} before")
        self.ended = count
        return found

    def best(self) -> list[dict[str, Any]]:
        """Return the best configurations, without what another run of the sweep changes."""
        told = self.call("best", self.spec["name"], "--json", *self.storage)
        drop = ("run_id", "sweep_id", "started", "fingerprint", "code")
        rows = [{k: v for k, v in row.items() if k not in drop} for row in json.loads(told.out)]
        return sorted(rows, key=lambda row: (row["task"], row["recipe"]))

    # Runs

    def starting(self) -> tuple[str, ...]:
        """Return the command that runs the sweep or resumes it."""
        return ("run", "drawn.yaml", *(self.storage if self.moved else ()))

    def begin(self, *argv: str) -> Running:
        """Start the sweep and let some of it pass."""
        self.log.append("begin")
        running = self.door.start(argv or self.starting(), self.folder)
        time.sleep(self.rng.uniform(0.2, 0.9) * self.seconds)
        return running

    def interrupted(self, kind: signal.Signals) -> Told:
        """Start the sweep and send it a signal, earlier if it has ended by then."""
        codes = (0, -kind, *((130, 143) if kind is not signal.SIGKILL else ()))
        for _ in range(3):
            self.another()
            told = self.checked(self.begin().kill(kind), codes)
            self.status()
            if told.code:
                break
            self.seconds /= 3
        return told

    def finish(self) -> None:
        """Run the sweep to its end, and compare its table with the undisturbed one."""
        told = self.call(*self.starting())
        self.follow(told)
        self.printed(told)
        self.ends()

    def printed(self, told: Told) -> None:
        """Open the tracking database as the last line of a run says."""
        for text in re.findall(r"tracking: (mlflow ui .+?) · ", told.out):
            self.opened(shlex.split(text)[-1])

    def opened(self, uri: str) -> None:
        """Fail unless an address holds the sweep's runs."""
        from sqlalchemy import create_engine, text
        from sqlalchemy.exc import SQLAlchemyError

        query = (
            "select e.name, count(*) from experiments e join runs using (experiment_id) group by 1"
        )
        try:
            with create_engine(uri).connect() as found:
                runs = dict(map(tuple, found.execute(text(query))))
        except SQLAlchemyError as error:
            self.broken(f"{uri} cannot be opened: {error}")
        if runs.get(self.spec["name"], 0) < 2:  # One has the tables and the report.
            self.broken(f"{uri} has only {runs}")
        if (file := self.store / "mlflow.db").is_file():
            with closing(sqlite3.connect(file)) as own:
                self.same("runs in the storage's database", dict(own.execute(query)), runs)

    def ends(self) -> None:
        """Check a sweep that has ended."""
        found = self.status()
        self.same("state", found["state"], "finished")
        self.same("trials", self.ended, found["trials"])
        self.same("measured", found["measured"], found["measurements"])
        if self.steady:
            self.same("the undisturbed table", self.table(), self.calm)

    def undisturbed(self) -> None:
        """Compute the table in another storage, which nothing disturbs."""
        place, self.place = self.place, "calm"
        began = time.monotonic()
        self.follow(self.call("run", "drawn.yaml", *self.storage, "--quiet"))
        self.seconds = time.monotonic() - began
        self.calm = self.table()
        for line in csv.DictReader(io.StringIO(self.calm)):
            self.same(f"{line['recipe']}, {line['reason']}", line["status"], "finished")
        self.place = place

    # Steps

    def plan(self) -> None:
        """A plan changes nothing."""
        before = self.files()
        self.follow(self.call("plan", "drawn.yaml", *self.storage))
        json.loads(self.call("plan", "drawn.yaml", "--json", *self.storage).out)
        self.same("files after a plan", self.files(), before)

    def refuse(self) -> None:
        """A mistake gets one line, and nothing starts."""
        name = self.rng.choice(sorted(MISTAKES))
        self.log.append(name)
        change = MISTAKES[name]
        merged = {**self.spec, "name": "wrong", **change}
        merged["search"] = {**self.spec["search"], **change.get("search", {})}
        (self.folder / "wrong.yaml").write_text(json.dumps(merged))
        before = self.files()
        self.refused(self.call("run", "wrong.yaml", "--quiet", codes=(2,)))
        told = self.call("plan", "wrong.yaml", codes=(0, 2))
        if told.code == 0 and "calsweep run refuses this file" not in told.out:
            self.broken(f"run refuses what plan accepts:\n{told.out}")
        self.same("files after a mistake", self.files(), before)

    def refused(self, told: Told) -> None:
        """Fail unless a refusal is one line, and follow its remedies."""
        if len(told.err.strip().splitlines()) != 1:
            self.broken(f"not one line:\n{told.err}")
        self.follow(told)

    def read(self) -> None:
        """All readers agree, and change nothing."""
        before = self.files()
        shown = json.loads(
            self.call("table", self.spec["name"], "--format", "json", *self.storage).out
        )
        rows = list(csv.DictReader(io.StringIO(self.table())))
        text = json.dumps(shown)
        for row in rows:
            for name in ("acc_mean", "nll_mean", "ece_mean"):
                if row[name] and row[name] not in text:
                    self.broken(f"{name}={row[name]} of the CSV is not in the JSON: {text}")
        for row in rows:
            for line in self.best():
                if line["recipe"] == row["recipe"]:
                    self.same("best and table", line["fixed"], json.loads(row["configuration"]))
        self.call("status", *self.storage)
        self.call("list", "sweeps", *self.storage)
        logged = json.loads(self.call("logs", self.spec["name"], "--json", *self.storage).out)
        of_jobs = [each for each in logged if each["log"].startswith("slurm-")]
        self.same("logs", len(logged) - len(of_jobs), self.ended)
        self.same("files after reading", self.files(), before)
        self.call("report", self.spec["name"], *self.storage, "--out", "page.html")

    def kill(self) -> None:
        """A killed sweep loses no trial that ended, not even by a collection."""
        self.interrupted(signal.SIGKILL)
        if self.ended and self.rng.random() < 0.5:
            self.follow(self.call("storage", "gc", *self.storage))
            self.status()
        self.finish()

    def stop(self) -> None:
        """A stopped sweep prints the command that resumes it."""
        told = self.interrupted(self.rng.choice([signal.SIGINT, signal.SIGTERM]))
        if told.code == 130 and not self.follow(told) and self.ended:
            self.broken(f"no remedy: {told.out}{told.err}")
        self.finish()

    def cancel(self) -> None:
        """A cancelled sweep can be resumed."""
        for _ in range(3):
            self.another()
            running = self.begin()
            self.call("cancel", self.spec["name"], *self.storage, codes=(0, 2))
            if self.checked(running.wait(), (130, 0)).code:
                break
            self.seconds /= 3  # It had ended; cancel the next one earlier.
        self.status()
        self.finish()

    def pause(self) -> None:
        """A paused sweep goes on when it is resumed."""
        self.another()
        running = self.door.start(self.starting(), self.folder)
        while self.status()["state"] == "absent" or not self.begun():
            time.sleep(0.2)
        told = self.call("pause", self.spec["name"], *self.storage, codes=(0, 2))
        if told.code == 2:
            self.refused(told)
        else:
            self.rests()
            self.follow(told)
            self.call("resume", self.spec["name"], *self.storage, codes=(0, 2))
        self.checked(running.wait())
        self.finish()

    def rests(self) -> None:
        """A sweep that was paused some seconds ago starts no trial."""
        time.sleep(5)
        before, over = self.begun(), time.monotonic() + 10 * self.seconds + 60
        while self.status()["state"] not in ("paused", "finished", "interrupted"):
            if time.monotonic() > over:
                self.broken("the sweep does not pause")
            time.sleep(1)
        time.sleep(3)
        self.same("trials of a paused sweep", self.begun(), before)

    def begun(self) -> int:
        """Return the number of trials that have started."""
        recipes = self.status()["recipes"]
        return sum(recipe["ended"] + recipe["running"] for recipe in recipes)

    def double(self) -> None:
        """A sweep that is run twice at once is computed once."""
        self.another()
        both = [self.door.start(self.starting(), self.folder) for _ in range(2)]
        found = [self.checked(running.wait(), (0, 2)) for running in both]
        refusals = [told for told in found if told.code == 2]
        for told in refusals:
            self.refused(told)
        if len(refusals) != 1:
            self.broken(f"{len(refusals)} of two simultaneous runs were refused")
        self.finish()

    def submit(self) -> None:
        """A job of SLURM computes the same table."""
        self.another()
        if self.moved:
            moved = {**self.spec, "storage": str(self.store)}
            (self.folder / "drawn.yaml").write_text(json.dumps(moved, ensure_ascii=False))
        told = self.call("submit", "--slurm", "--time", "0:30:00", "drawn.yaml")
        self.follow(told)
        over = time.monotonic() + 600
        while self.status()["state"] not in ("finished", "failed", "died"):
            if time.monotonic() > over:
                self.broken("the job does not end")
            time.sleep(2)
        self.ends()

    def another(self) -> None:
        """Give up what was computed, so that there is something to disturb."""
        if self.ended:
            self.call("storage", "gc", "--drop", self.spec["name"], *self.storage)
            self.ended = 0

    def again(self) -> None:
        """A finished sweep computes nothing when it is run again."""
        before = self.outcomes()
        self.finish()
        self.same("artifacts after another run", self.outcomes(), before)

    def fresh(self) -> None:
        """A fresh sweep leaves the old one as it is, also when it is dropped."""
        self.follow(self.call("storage", "gc", *self.storage))  # Else the drop removes more.
        before, stored = self.table(), self.outcomes()
        told = self.call(*self.starting(), "--fresh")
        self.follow(told)
        self.same("the old table", self.table(), before)
        name, self.spec["name"] = self.spec["name"], f"{self.spec['name']}-2"
        self.printed(told)
        if self.steady:
            renamed = self.table().replace(self.spec["name"], name)
            self.same("the fresh table", renamed, self.calm)
        self.call("storage", "gc", "--drop", self.spec["name"], *self.storage)
        self.spec["name"] = name
        self.same("artifacts that a dropped sweep shared", stored - self.outcomes(), set())

    def move(self) -> None:
        """A moved storage answers as before."""
        before = self.table(), self.best()
        place = self.rng.choice(sorted(set(sweeps.PLACES.values()) - {self.place})) + " moved"
        shutil.move(self.store, self.folder / place)
        self.place, self.moved = place, True
        self.same("the moved table", (self.table(), self.best()), before)
        self.follow(self.call("run", "--resume", self.spec["name"], *self.storage))
        self.ends()

    def edit(self) -> None:
        """A sweep whose plugin or a library below it changed is refused, and told so."""
        path = sweeps.edited(self.row, self.folder)
        before, files, text = self.table(), self.files(), path.read_text()
        path.write_text(text + "\nCHANGED = 1\n")
        self.refused(self.call(*self.starting(), "--quiet", codes=(2,)))
        self.same("files after a refusal", self.files(), files)
        self.same("the table of changed code", self.table(), before)
        if "FACTOR = 1.0" in text:  # Other code is other work, though its name is the same.
            path.write_text(text.replace("FACTOR = 1.0", "FACTOR = 3.0"))
            self.call(*self.starting(), "--fresh", "--quiet")
            name, self.spec["name"] = self.spec["name"], f"{self.spec['name']}-2"
            if self.table().replace(self.spec["name"], name) == before:
                self.broken("changed code gives the figures of the code before")
            self.call("storage", "gc", "--drop", self.spec["name"], *self.storage)
            self.spec["name"] = name
        path.write_text(text)
        self.finish()

    def gc(self) -> None:
        """A collection removes nothing that the sweep needs."""
        before = self.files()
        self.call("storage", "gc", "--dry-run", *self.storage)
        self.same("files after a dry run", self.files(), before)
        self.follow(self.call("storage", "gc", *self.storage))
        needed = self.outcomes()
        self.finish()
        self.same("artifacts after gc and run", self.outcomes(), needed)

    def sync(self) -> None:
        """What was delivered is not delivered again."""
        folder = str(Path(self.place) / "sweeps" / self.spec["name"])
        for _ in range(2):
            before = self.best()
            self.follow(self.call("storage", "sync", folder))
            self.same("best after sync", self.best(), before)

    def lose(self) -> None:
        """A lost tracking database is built again."""
        before = self.best()
        for path in self.store.glob("mlflow.db*"):
            path.unlink()
        self.follow(
            self.call("storage", "sync", str(Path(self.place) / "sweeps" / self.spec["name"]))
        )
        self.same("best after a lost database", self.best(), before)
        self.same("table after a lost database", self.status()["state"], "finished")

    def relabel(self) -> None:
        """Other test labels change no choice."""
        if self.row["data"] == "npz":
            sweeps.npz(self.folder, 1)
        else:
            sweeps.logits(self.folder, "logits", 1)
        before, place = self.best(), self.place
        self.place = "relabelled"
        self.follow(self.call("run", "drawn.yaml", *self.storage, "--quiet"))
        self.same("best after other test labels", self.best(), before)
        shutil.rmtree(self.store)
        self.place = place
        sweeps.task(self.row, self.folder)

    def publish(self) -> Path:
        """An honest package is accepted."""
        self.call("package", "publish", self.spec["name"], "--out", "site", *self.storage)
        self.verified("site/package.zip", (0,))
        return self.folder / "site" / "package.zip"

    def verified(self, package: str, codes: tuple[int, ...]) -> Told:
        """Verify a package; after a collection this needs a share of trainings."""
        options = ("--retrain", "0.3", "--seed", "1", "--trust-plugins")
        return self.call("package", "verify", package, *options, codes=codes)

    def fraud(self) -> None:
        """A package with another digit is refused, in one file or in all of them alike."""
        honest = self.publish()
        with zipfile.ZipFile(honest) as found:
            parts = {name: found.read(name) for name in found.namelist()}
        kinds = (".csv", "cells.json", ".jsonl")
        texts = [part for part in sorted(parts) if part.endswith(kinds)]
        journals = [part for part in texts if part.endswith(".jsonl")]
        name = self.rng.choice(texts)
        # A table shows means of test figures over seeds, so a lie about one differs in each file.
        validated = re.findall(rf'"val_nll":({FIGURE})', parts[journals[0]].decode())
        for figures, lies in ((proven(parts[name].decode()), [name]), (validated, texts)):
            figure = self.rng.choice(figures)
            other = figure[:4] + str(9 - int(figure[4])) + figure[5:]
            self.log.append(f"change {figure} to {other} in {lies}")
            with zipfile.ZipFile(self.folder / "forged.zip", "w") as forged:
                for part, content in parts.items():
                    lie = content.replace(figure.encode(), other.encode())
                    lie = sealed(lie) if part in journals else lie
                    forged.writestr(part, lie if part in lies else content)
            self.verified("forged.zip", (3,))

    def merge(self) -> None:
        """A package merged with itself is that package."""
        self.publish()
        self.call("package", "merge", "site/package.zip", "site/package.zip", "--out", "both")
        self.verified("both/package.zip", (0,))

    # A life

    def live(self, steps: int) -> None:
        """Live through the row's command and further ones that the seed draws."""
        self.through([self.row["command"], *self.further(steps - 1)])

    def through(self, steps: Sequence[str]) -> None:
        """Live through steps."""
        self.undisturbed()
        if steps[0] not in ("kill", "stop", "cancel", "pause", "double"):
            self.finish()
        self.takes(steps)

    def takes(self, steps: Sequence[str]) -> None:
        """Take steps, one after the other."""
        for name in steps:
            self.log.append(f"# {name}")
            self.steps.append(name)
            step: Callable[[], object] = getattr(self, name)
            step()
            self.status()
            places = {self.store.name, Path(self.spec["storage"]).name}
            beside = {path.name for path in self.folder.iterdir()} - self.written - places
            self.same("files beside the storage", beside, set())

    def further(self, count: int, without: Sequence[str] = ()) -> list[str]:
        """Return more commands that the row allows."""
        rest = {name: value for name, value in self.row.items() if name != "command"}
        fits = [
            step
            for step in STEPS
            if step not in without
            and all(together(("command", step), pair) for pair in rest.items())
        ]
        return self.rng.sample(fits, min(count, len(fits)))
