"""The names under which a sweep is found on a tracking server, and how values are written there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.journal import TEST_PREFIX

PREFIX = "calsweep."
KIND = PREFIX + "kind"
SWEEP = PREFIX + "sweep"
SWEEP_ID = PREFIX + "sweep_id"
STUDY = PREFIX + "study"
TASK = PREFIX + "task"
RECIPE = PREFIX + "recipe"
KEY = PREFIX + "key"
NUMBER = PREFIX + "number"
ROLE = PREFIX + "role"
SEED = PREFIX + "seed"
STAGE = PREFIX + "stage"
CHOSEN = PREFIX + "chosen"
BEST_OF = PREFIX + "best_of"
EVALUATED = PREFIX + "evaluated"
REUSED = PREFIX + "reused"
FINGERPRINT = PREFIX + "fingerprint"
DATASET = PREFIX + "dataset"
MODEL = PREFIX + "model"
PROTOCOL = PREFIX + "protocol"
SETTING = PREFIX + "setting"
RULE = PREFIX + "rule."
ORIGIN = PREFIX + "origin"
ARTIFACT = PREFIX + "artifact"
PREDICTIONS = PREFIX + "predictions"
CHAIN_SECONDS = "chain_seconds"
UPSTREAM = PREFIX + "upstream"
TRIALS = PREFIX + "trials"
ROW = PREFIX + "row"
GIT_COMMIT = PREFIX + "git_commit"
REASON = PREFIX + "reason"
CONFIGURATION = PREFIX + "configuration"
VERSION = PREFIX + "version."
PARENT = "mlflow.parentRunId"

OBJECTIVE = "objective"
TRIAL_NUMBER = "trial_number"
SECONDS = "seconds"
TRIALS_FINISHED = "trials_finished"
TRIALS_FAILED = "trials_failed"
VALIDATION_PREFIX = "val_"

SEARCH = "search"
RUNNING, FINISHED, FAILED, KILLED = "RUNNING", "FINISHED", "FAILED", "KILLED"
STATUS_OF_TRIAL = {"finished": FINISHED, "failed": FAILED, "pruned": KILLED}

MAX_NAME = 250
"""Characters of the name of a metric or parameter."""

MAX_TAG = 8000
"""Characters that a tracking server keeps of one tag."""

_FORBIDDEN = re.compile(r"[^\w\-. :/]")


def yes(flag: bool) -> str:
    """Write a flag as a tag."""
    return "true" if flag else "false"


def text(value: Any) -> str:
    """Write a plain value as a tag; texts as they are, other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def allowed(name: str) -> str:
    """Return the name of a metric or parameter as a tracking server accepts it.

    A server refuses a whole batch for one name with, say, a ``+`` in it.
    """
    return _FORBIDDEN.sub("_", name)[:MAX_NAME]


def test_name(metric: str) -> str:
    """Return the metric's name with the prefix that marks test data."""
    return metric if metric.startswith(TEST_PREFIX) else TEST_PREFIX + metric


def flatten(configuration: Mapping[str, Any]) -> dict[str, str]:
    """Write a configuration as parameters: ``{"mbls": {"margin": 6.0}}`` as ``mbls.margin``."""
    return {name: text(value) for name, value in _leaves(configuration)}


def _leaves(part: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in part.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{below}", leaf) for below, leaf in _leaves(value))
        else:
            yield name, value


def configuration_tags(configuration: Mapping[str, Any]) -> dict[str, str]:
    """Write a configuration exactly, as JSON, in as many tags as its length needs."""
    text = json.dumps(configuration, ensure_ascii=False)
    return {
        CONFIGURATION + (f".{start // MAX_TAG}" if start else ""): text[start : start + MAX_TAG]
        for start in range(0, len(text), MAX_TAG)
    }


def configuration_of(tags: Mapping[str, str]) -> dict[str, Any]:
    """Read back what ``configuration_tags`` wrote, types included."""
    pieces, name = [], CONFIGURATION
    while name in tags:
        pieces.append(tags[name])
        name = f"{CONFIGURATION}.{len(pieces)}"
    return json.loads("".join(pieces) or "{}")
