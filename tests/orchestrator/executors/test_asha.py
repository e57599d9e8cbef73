"""A whole sweep under ASHA on a Ray of its own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from orchestrator import run_sweep
from orchestrator.storage.journal import read_events
from orchestrator.sweep.spec import parse_sweep

SWEEP = """
name: halving
tasks:
  - name: digits
    dataset: digits
    model: convnet
    protocol: {{base: digits, epochs: 9}}
    split: {{train_limit: 200}}
recipes: [ls, ls+macal]
search:
  trials: 6
  scheduler: asha
  accuracy_tolerance: null
  spaces: {{ls: {{smoothing: {{low: 0.0, high: 0.9}}}}}}
  fixed: {{macal: {{epochs: 6}}}}
seeds: [0, 1]
resources: {{concurrent: 1}}
storage: {storage}
tracking: {{uri: 'folder:{storage}/runs'}}
"""


@pytest.mark.slow
def test_a_sweep_under_asha_runs_to_its_end(tmp_path: Path) -> None:
    outcome = run_sweep(parse_sweep(SWEEP.format(storage=tmp_path), "halving"))
    assert outcome.status == "finished"
    events = read_events(outcome.journal)[0]
    ends = [event for event in events if event.event == "trial_finished"]
    studies = {e.key: e.study for e in events if e.event == "trial_started"}
    counts = Counter((studies[end.key], end.status) for end in ends)
    for study in ("digits|ls", "digits|ls+macal"):
        assert counts[study, "finished"] + counts[study, "pruned"] == 7  # one is a further seed
        assert counts[study, "finished"] >= 2
        assert counts[study, "pruned"] >= 1
    chosen = {event.chosen for event in events if event.event == "study_closed"}
    finished = {end.key for end in ends if end.status == "finished"}
    assert chosen <= finished
    for end in ends:
        steps = [e.step for e in events if e.event == "epoch" and e.key == end.key]
        epochs = 6 if "macal" in studies[end.key] else 9
        assert steps == list(range(1, len(steps) + 1))
        assert (len(steps) == epochs) == (end.status == "finished")
    assert all(len(result.test) == 2 for result in outcome.results)
