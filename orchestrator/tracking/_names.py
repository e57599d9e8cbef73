"""Names of tags and metrics on a tracking server, and how values are written there."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.storage.results import as_text

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
SETTING = PREFIX + "setting"
RULE = PREFIX + "rule."
ORIGIN = PREFIX + "origin"
ARTIFACT = PREFIX + "artifact"
PREDICTIONS = PREFIX + "predictions"
COMPUTED = PREFIX + "computed"
DEFAULT_PREDICTIONS = PREFIX + "default_predictions"
CHAIN_SECONDS = "chain_seconds"
UPSTREAM = PREFIX + "upstream"
TRIALS = PREFIX + "trials"
ROW = PREFIX + "row"
GIT_COMMIT = PREFIX + "git_commit"
REASON = PREFIX + "reason"
CONFIGURATION = PREFIX + "configuration"
VERSION = PREFIX + "version."

OBJECTIVE = "objective"
TRIAL_NUMBER = "trial_number"
SECONDS = "seconds"
TRIALS_FINISHED = "trials_finished"
TRIALS_FAILED = "trials_failed"
CHOSEN_OBJECTIVE = "chosen_objective"
TEST_SEEDS = "test_seeds"
DEVIATION = "_std"
"""Suffix of a metric's standard deviation over seeds."""
FIGURES = ("acc", "ece", "aece", "cwece", "nll")
"""Test metrics whose means over seeds are in a study's run; metrics of plugins are added."""

RUNNING, FINISHED, FAILED, KILLED = "RUNNING", "FINISHED", "FAILED", "KILLED"
STATUS_OF_TRIAL = {"finished": FINISHED, "failed": FAILED, "pruned": KILLED}

MAX_TAG = 8000
"""Longest tag, in characters, that a tracking server keeps."""


def yes(flag: bool) -> str:
    """Return the value of a tag that is a flag."""
    return "true" if flag else "false"


def flatten(configuration: Mapping[str, Any]) -> dict[str, str]:
    """Return a configuration as flat parameters, such as ``{"mbls.margin": "6.0"}``."""
    return {name: as_text(value) for name, value in _leaves(configuration)}


def _leaves(part: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in part.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{below}", leaf) for below, leaf in _leaves(value))
        else:
            yield name, value


def configuration_tags(configuration: Mapping[str, Any]) -> dict[str, str]:
    """Return a configuration as JSON in a tag, or in several tags if it exceeds ``MAX_TAG``."""
    text = json.dumps(configuration, ensure_ascii=False)
    return {
        CONFIGURATION + (f".{start // MAX_TAG}" if start else ""): text[start : start + MAX_TAG]
        for start in range(0, len(text), MAX_TAG)
    }


def configuration_of(tags: Mapping[str, str]) -> dict[str, Any]:
    """Read a configuration from the tags of ``configuration_tags``."""
    pieces, name = [], CONFIGURATION
    while name in tags:
        pieces.append(tags[name])
        name = f"{CONFIGURATION}.{len(pieces)}"
    return json.loads("".join(pieces) or "{}")
