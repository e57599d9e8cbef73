"""A git repository whose commits measure what a file in them says, by a tiny ``calsweep``."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

COMMAND = '''\
"""Writes the record of a night: the figures of this commit, by recipe and metric."""
import json, os, pathlib, sys
import yaml

file, night = sys.argv[3], sys.argv[5]
sweep = yaml.safe_load(open(file))["sweep"]
told = json.loads(pathlib.Path(__file__).parents[1].joinpath("figures.json").read_text())
if "broken" in told:
    sys.exit("this commit is broken")
worse = float(os.environ.get("LIBRARY", "1"))
for plugin in sweep["plugins"]:
    worse *= float(pathlib.Path(plugin).read_text().rpartition("# ")[2])
task = sweep["tasks"][0]["name"]
cells, failed = [], []
for recipe in sweep["recipes"]:
    if told.get(recipe) is None:
        failed.append({"recipe": recipe, "task": task, "reason": "it diverged"})
        continue
    for number, (metric, value) in enumerate(told[recipe].items()):
        values = {str(seed): worse * value * (1 + 0.01 * seed) for seed in sweep["seeds"]}
        cells.append({"recipe": recipe, "task": task, "metric": metric, "values": values})
shape = {"recipes": sweep["recipes"], "tasks": [task], "metrics": ["ece"], "seeds": sweep["seeds"]}
stages = {recipe: "calibrate" if "+" in recipe else "train" for recipe in sweep["recipes"]}
rows = [{"recipe": r, "task": task, "stage": s, "definition": ""} for r, s in stages.items()]
record = {"night": night, "started": 0.0, "cells": cells, "failed": failed, "shape": shape}
record["rows"] = rows
folder = pathlib.Path(sweep["storage"], "nightly", sweep["name"], "nights", night)
folder.mkdir(parents=True)
record["environment"] = {"code": "told", "place": os.getcwd()}
(folder / "record.json").write_text(json.dumps(record))
'''
USUAL = {"ce": {"ece": 0.02}, "ce+ts": {"ece": 0.01}}


class MadeRepository:
    """Makes commits one by one; ``hashes`` has them, oldest first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hashes: list[str] = []
        (folder / "calsweep").mkdir(parents=True)
        (folder / "calsweep/__main__.py").write_text(COMMAND)
        self.git("init", "--quiet", "--initial-branch", "main")
        self.commit()

    def commit(self, figures: Mapping[str, object] = USUAL, **files: str) -> str:
        """Commit figures, and files by their stems."""
        (self.folder / "figures.json").write_text(json.dumps(figures))
        for stem, text in files.items():
            (self.folder / f"{stem}.txt").write_text(text)
        (self.folder / "count.txt").write_text(str(len(self.hashes)))
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", f"change {len(self.hashes)}")
        self.hashes.append(self.git("rev-parse", "HEAD"))
        return self.hashes[-1]

    def git(self, *arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        command = ["git", "-C", str(self.folder), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
