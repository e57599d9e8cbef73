import os

import pytest
import torch
from pretended_card import pretended_card

from trainables.common.devices import (
    CONTEXT_BYTES,
    computed_on,
    concrete,
    default_device,
    device_kind,
    fits,
    free_memory,
    one_thread,
    trial_device,
)
from trainables.common.files import code_hash

CPU = torch.device("cpu")
GIBIBYTE = 2**30


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_trial_takes_no_more_than_its_share_of_a_gpu():
    device = trial_device(0.01)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(torch.cuda.mem_get_info(device)[1] // 50, dtype=torch.uint8, device=device)
    finally:
        trial_device(1.0)


@pytest.mark.parametrize(("gpus", "of"), [(0.25, 0.25), (1.0, 1.0), (4.0, 1.0)])
def test_the_share_of_a_gpu_bounds_tensors_and_context(gpus, of):
    total = 80 * GIBIBYTE
    with pretended_card(1, total=total) as shares:
        assert trial_device(gpus) == torch.device("cuda:1")
        assert trial_device(0.0) == CPU
    ((index, share),) = shares
    assert index == 1
    assert share * total + CONTEXT_BYTES == pytest.approx(of * total)


def test_a_small_share_keeps_half_for_data_besides_the_cuda_context():
    with pretended_card(total=2 * GIBIBYTE) as shares:
        trial_device(0.25)
    assert shares == [(0, 0.125)]


def test_the_device_is_the_current_gpu_if_there_is_one(monkeypatch):
    with pretended_card(1):
        assert default_device() == concrete("cuda") == torch.device("cuda:1")
        assert concrete("cuda:3") == torch.device("cuda:3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert default_device() == CPU


def test_free_memory_is_limited_by_the_gpu_and_the_share_of_the_trial():
    device = torch.device("cuda")
    with pretended_card(free=60 * GIBIBYTE, total=80 * GIBIBYTE, reserved=GIBIBYTE):
        assert free_memory(device) == 60 * GIBIBYTE
        trial_device(0.5)
        context = 3 * GIBIBYTE // 4
        assert free_memory(device) == 40 * GIBIBYTE - context - GIBIBYTE


def test_data_takes_at_most_half_of_the_free_memory():
    with pretended_card(free=100, total=100):
        assert fits(50, torch.device("cuda"))
        assert not fits(51, torch.device("cuda"))
        assert fits(101, CPU)


def test_records_name_the_kind_of_device():
    assert device_kind(CPU) == "cpu"
    code = {"code": code_hash()}
    told = {"device": "cpu", "precision": "float32", "deterministic": True, "together": 1}
    assert computed_on(CPU) == told | code
    with pretended_card():
        told = {"device": "pretended card", "precision": "bfloat16", "deterministic": False}
        assert computed_on(torch.device("cuda:0"), "bfloat16", 3) == told | code | {"together": 3}


def test_determinism_is_switched_on_and_off(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # So that it is put back.
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    with pretended_card():
        device = trial_device(1.0, deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
        assert computed_on(device)["deterministic"]
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
        trial_device(1.0, deterministic=True)
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"  # As who runs it wants it.
        trial_device(1.0)
    assert not torch.are_deterministic_algorithms_enabled()


def test_one_thread_restores_the_number_of_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
