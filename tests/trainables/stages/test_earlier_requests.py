"""Requests of before a refinement had some of its parameters mean what they meant then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_stages import Workshop, request

from search_spaces import load_space
from trainables.refinements import (
    REFINEMENTS,
    refinement_determinants,
    requested_refinement,
)
from trainables.refinements.macal import MaCCal
from trainables.stages import StageRequest
from trainables.stages.networks import extract_features, predictor, restore_network
from trainables.store.artifacts import Artifact, stage_key

# What every sweep asked for when q was a share that is kept, and nothing else could be said.
AS_IT_WAS: dict[str, Any] = {
    "gamma": 0.95,
    "q0": 0.5,
    "eta_init": 0.1,
    "eta_final": 0.001,
    "epochs": 3,
    "lr": 0.1,
    "hidden": 128,
    "masked": True,
    "restrict_gradient": True,
    "restructure": True,
    "sparsity": "decaying",
    "resample": "epoch",
    "first_step": 1,
    "inference": "scaled",
    "feedback": "dense",
}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("earlier"))


@pytest.fixture(scope="module")
def trained(workshop: Workshop) -> Artifact:
    return workshop.compute(request(workshop.prepared, protocol={"epochs": 2}))


def refine(workshop: Workshop, trained: Artifact, **values: Any) -> StageRequest:
    return request(workshop.prepared, "refine", {"macal": values}, trained)


def test_what_a_request_leaves_out_has_the_value_that_it_had() -> None:
    added = {"q_role": "keep", "optimizer": "masked", "zero_masked": False, "views": "augmented"}
    earlier = {**added, "resample": "epoch", "feedback": "dense"}
    refinement = requested_refinement({"macal": {}})
    assert {name: getattr(refinement, name) for name in earlier} == earlier
    assert refinement_determinants({"macal": earlier}) == {
        "macal": {"resample": "epoch", "feedback": "dense"}
    }
    today = {"q_role": "drop", "optimizer": "plain", "zero_masked": True, "views": "original"}
    assert refinement_determinants({"macal": today}) == {"macal": today}


def test_the_key_of_an_earlier_request_is_what_it_was(
    workshop: Workshop, trained: Artifact
) -> None:
    earlier = refine(workshop, trained, **AS_IT_WAS)
    determinants = {**earlier.plain(), "data": workshop.prepared.key}
    for name in ("stage", "upstream_request", "precision"):
        del determinants[name]
    assert earlier.key() == stage_key("refine", **determinants)


def test_naming_what_was_the_only_way_finds_what_was_stored(
    workshop: Workshop, trained: Artifact
) -> None:
    earlier = refine(workshop, trained, **AS_IT_WAS)
    spelled_out = refine(workshop, trained, **{**AS_IT_WAS, **MaCCal.earlier})
    assert spelled_out.key() == earlier.key()


@pytest.mark.parametrize("name", sorted(MaCCal.added))
def test_another_reading_is_another_key(workshop: Workshop, trained: Artifact, name: str) -> None:
    parameter = load_space("refinements", "macal").parameters[name]
    keys = {
        refine(workshop, trained, **{**AS_IT_WAS, **MaCCal.earlier, name: choice}).key()
        for choice in parameter.choices
    }
    assert len(keys) == len(parameter.choices)


@pytest.mark.parametrize("name", REFINEMENTS.names())
def test_an_earlier_value_that_is_left_out_is_filled_in(name: str) -> None:
    found = requested_refinement({name: {}})
    for key, value in type(found).earlier.items():
        assert getattr(found, key) == value


def test_a_request_of_today_shares_no_key_with_an_earlier_one_that_means_something_else(
    workshop: Workshop, trained: Artifact
) -> None:
    today = load_space("refinements", "macal").default_point()
    earlier = {name: value for name, value in today.items() if name not in MaCCal.added}
    same_meaning = all(today[name] == MaCCal.earlier[name] for name in MaCCal.added)
    keys = [refine(workshop, trained, **values).key() for values in (today, earlier)]
    assert (keys[0] == keys[1]) == same_meaning


def test_an_earlier_head_is_read_as_it_was_trained(workshop: Workshop, trained: Artifact) -> None:
    asked = refine(workshop, trained, **AS_IT_WAS)
    artifact = workshop.compute(asked)
    record = json.loads((artifact.directory / "record.json").read_text())
    assert record["request"]["parts"]["macal"] == AS_IT_WAS
    test = workshop.prepared.test()
    outputs = predictor(
        workshop.store, "refine", asked.key(), workshop.prepared.info, torch.device("cpu")
    )(test.values)
    network, _ = restore_network(trained, workshop.prepared.info, torch.device("cpu"))
    batcher = workshop.prepared.info.inputs.batcher(test.values, torch.device("cpu"))
    head = requested_refinement({"macal": {**AS_IT_WAS, **MaCCal.earlier}}).build_head(
        network.feature_dim, workshop.prepared.info.num_classes
    )
    head.load_state_dict(artifact.tensors("head"))
    with torch.inference_mode():
        expected = head.eval()(extract_features(network, batcher)).log_softmax(1)
    torch.testing.assert_close(outputs, expected)


def test_a_head_whose_q_ended_is_told_of_once_it_is_stored(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    told: list[str] = []
    workshop.store.notice = told.append
    trained = workshop.compute(request(workshop.prepared, protocol={"epochs": 2}))
    ends = {**AS_IT_WAS, "epochs": 6, "gamma": 0.01, "eta_init": 1.0, "eta_final": 1.0}
    workshop.compute(refine(workshop, trained, **ends))
    assert len(told) == 1
    assert "q ended at 1, where the mask keeps every weight" in told[0]
