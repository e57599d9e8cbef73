import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainables.common.errors import InputError
from trainables.data import DataNote, logit_sets, read_logits

pytestmark = pytest.mark.filterwarnings("ignore:.*no label is 0")


def harness(target: Any, *values: Any, **more: Any) -> dict[str, Any]:
    """Return a sample as ``--log_samples`` writes it."""
    responses = [[value, False] for value in values]
    return {
        "doc_id": 0,
        "doc": {"question": "?", "choices": {"text": [f"text {k}" for k in range(len(values))]}},
        "target": target,
        "arguments": {},
        "resps": [[each] for each in responses],
        "filtered_resps": responses,
        "filter": "none",
        **more,
    }


def write_lines(folder: Path, *samples: dict[str, Any]) -> Path:
    path = folder / "samples_arc_easy.jsonl"
    path.write_text("".join(f"{json.dumps(sample)}\n" for sample in samples))
    return path


def test_log_likelihoods_of_choices_are_logits(tmp_path: Path) -> None:
    old = {"filtered_resps": [["-5.5", "False"], ["-0.5", "True"], ["-7", "False"]]}
    samples = [
        harness(2, -3.0, -2.0, -1.0),
        harness("0", -1.0, -2.0, -4.0),
        harness("text 1", -1.5, -2.5, -3.5),
        harness("C", -9.0, -8.0, -7.5),
        {**harness(1, 0, 0, 0), **old},
    ]
    found = read_logits(write_lines(tmp_path, *samples)).rows
    expected = [[-3, -2, -1], [-1, -2, -4], [-1.5, -2.5, -3.5], [-9, -8, -7.5], [-5.5, -0.5, -7]]
    np.testing.assert_array_equal(found.logits, np.array(expected))
    assert found.labels.tolist() == [2, 0, 1, 2, 1]


def test_unfiltered_responses_count_where_there_are_no_others(tmp_path: Path) -> None:
    sample = harness(1, -3.0, -2.0)
    del sample["filtered_resps"]
    found = read_logits(write_lines(tmp_path, sample, harness(0, -1.0, -5.0))).rows
    assert found.logits.tolist() == [[-3, -2], [-1, -5]]


def test_absent_choices_are_masked_with_a_note(tmp_path: Path) -> None:
    path = write_lines(tmp_path, harness(0, -1.0, -2.0), harness(2, -3.0, -2.0, -1.0))
    with pytest.warns(DataNote, match="1 of 2 rows has fewer than 3 choices; missing choices"):
        found = read_logits(path).rows
    assert found.logits.tolist() == [[-1, -2, -math.inf], [-3, -2, -1]]


def test_a_sample_counts_once_however_many_filters_there_are(tmp_path: Path) -> None:
    second = harness(0, -8.0, -9.0, filter="other")
    path = write_lines(tmp_path, harness(0, -1.0, -2.0), second, harness(1, -2.0, -1.0))
    assert read_logits(path).rows.logits.tolist() == [[-1, -2], [-2, -1]]


def test_a_folder_of_results_is_one_task_for_each_log(tmp_path: Path) -> None:
    path = write_lines(tmp_path, harness(0, -1.0, -2.0))
    (tmp_path / "results_2026.json").write_text("{}")
    assert logit_sets(tmp_path) == {"samples_arc_easy": str(path)}


@pytest.mark.parametrize(
    ("sample", "told"),
    [
        (harness(3, -1.0, -2.0), "row 1: target 3 is not one of 2 choices; expected a number from"),
        (harness("maybe", -1.0, -2.0), "row 1: target 'maybe' is not one of 2 choices"),
        (harness([0, 1], -1.0, -2.0), r"row 1: target \[0, 1\] is not one of 2 choices"),
        (harness(True, -1.0, -2.0), "row 1: target True is not one of 2 choices"),
        (harness(0, "x", -2.0), "row 1: expected the log-likelihood of a choice, got 'x'"),
        (harness(0, math.nan, -2.0), "row 1: expected the log-likelihood of a choice, got nan"),
        (
            {"target": "18", "filtered_resps": ["18"], "filter": "none"},
            r"row 1: expected `filtered_resps` .* got \['18'\]; generated answers have no log-like",
        ),
    ],
)
def test_an_invalid_sample_of_the_harness_is_refused_with_its_row(
    sample: Any, told: str, tmp_path: Path
) -> None:
    path = write_lines(tmp_path, harness(0, -1.0, -2.0), sample)
    with pytest.raises(InputError, match=told) as raised:
        read_logits(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.jsonl", "{}\nnot json\n", "a.jsonl: row 0: expected `filtered_resps`"),
        ("a.jsonl", "not json\n", r"a.jsonl: row 0: is not JSON \("),
        ("a.jsonl", "[]\n", "a.jsonl: row 0: expected a JSON object, got list"),
        ("a.jsonl", "\n", "a.jsonl: the log has no samples"),
        ("a.json", "{}", "a.json has no list `samples`; expected a JSON log of Inspect AI"),
        (
            "a.json",
            '{"samples": [{}]}',
            "a.json: sample 0: expected a list of two or more choices, got None",
        ),
    ],
)
def test_other_files_are_refused(name: str, text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=told):
        read_logits(tmp_path / name)


def token(text: str, **listed: float) -> dict[str, Any]:
    top = [{"token": name.replace("_", " "), "logprob": value} for name, value in listed.items()]
    return {"token": text, "logprob": -0.1, "bytes": None, "top_logprobs": top}


def inspected(target: Any, *tokens: dict[str, Any]) -> dict[str, Any]:
    choice = {"message": {}, "stop_reason": "stop", "logprobs": {"content": [*tokens]}}
    return {
        "id": 1,
        "epoch": 1,
        "choices": ["one", "two", "three"],
        "target": target,
        "output": {"model": "m", "choices": [choice]},
    }


def write_log(folder: Path, *samples: dict[str, Any]) -> Path:
    path = folder / "log.json"
    path.write_text(json.dumps({"version": 2, "status": "success", "samples": samples}))
    return path


def test_letters_of_the_answer_are_logits(tmp_path: Path) -> None:
    answer = token("ANSWER", ANSWER=0.0), token(":", A=-9.0)
    samples = [
        inspected("B", *answer, token(" B", _B=-0.2, B=-3.0, A=-2.0, _C=-4.0)),
        # The last letter is the answer.
        inspected(["C"], token("A", A=0.0), token("C", C=-0.5, B=-1.5, A=-2.5), token(".")),
    ]
    found = read_logits(write_log(tmp_path, *samples)).rows
    both = math.log(math.exp(-0.2) + math.exp(-3.0))
    np.testing.assert_allclose(found.logits, [[-2.0, both, -4.0], [-2.5, -1.5, -0.5]])
    assert found.labels.tolist() == [1, 2]


def test_a_choice_that_is_not_listed_counts_as_the_smallest_with_a_note(tmp_path: Path) -> None:
    path = write_log(tmp_path, inspected("A", token("A", A=-0.2, B=-2.0, The=-5.0)))
    with pytest.warns(DataNote, match="1 of 1 samples lack the log-probability of a choice"):
        found = read_logits(path).rows
    assert found.logits.tolist() == [[-0.2, -2.0, -5.0]]


@pytest.mark.parametrize(
    ("sample", "told"),
    [
        (
            inspected("D", token("A", A=0.0)),
            "sample 0: target 'D'; expected one letter from A to C",
        ),
        (inspected("A", token("no", no=0.0)), "sample 0: no token of the answer is a letter"),
        (
            {**inspected("A"), "output": {"choices": [{"logprobs": None}]}},
            "sample 0 has no log-probabilities; evaluate with `--logprobs`",
        ),
    ],
)
def test_an_invalid_sample_of_inspect_is_refused(sample: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told):
        read_logits(write_log(tmp_path, sample))
