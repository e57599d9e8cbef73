import json
from typing import Any

import pytest
import safetensors.torch
import timm
import torch

from tests.hub import Hub
from trainables.common.errors import InputError
from trainables.data import ImageShape
from trainables.models import begins_trained, build_model, check_model, without_weights
from trainables.models.libraries import Resized

SHAPE = ImageShape(3, 32)
VIT = {
    "architecture": "test_vit",
    "num_classes": 5,
    "pretrained_cfg": {
        "input_size": [3, 160, 160],
        "fixed_input_size": True,
        "num_classes": 5,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    },
}


@pytest.fixture
def put(hub: Hub):
    """Give the repository ada/net a network; return its name and the network."""

    def put(config: dict[str, Any] = VIT, **files: bytes) -> tuple[str, torch.nn.Module]:
        torch.manual_seed(1)
        network = timm.create_model("test_vit", num_classes=5)
        weights = safetensors.torch.save(network.state_dict())
        content = {"config.json": json.dumps(config).encode(), "model.safetensors": weights}
        commit = hub.put("models/ada/net", {**content, "pytorch_model.bin": b"a pickle", **files})
        return f"hf:ada/net@{commit}", network

    return put


@pytest.mark.parametrize("prefix", ["hf:", "hf-hub:"])
def test_a_network_begins_with_the_weights_of_the_repository(put, hub, prefix):
    name, network = put()
    found = build_model(name.replace("hf:", prefix), 3, SHAPE).extractor
    assert isinstance(found[0] if isinstance(found, torch.nn.Sequential) else found, Resized)
    loaded = {key.split("network.")[-1]: value for key, value in found.state_dict().items()}
    assert torch.equal(loaded["blocks.0.attn.qkv.weight"], network.blocks[0].attn.qkv.weight)
    assert not any("pytorch_model.bin" in call for call in hub.calls)


def test_a_trained_network_is_restored_without_the_weights(put, hub):
    name, _ = put()
    trained = build_model(name, 3, SHAPE).state_dict()
    hub.calls.clear()
    restored = build_model(without_weights(name), 3, SHAPE)
    restored.load_state_dict(trained)
    assert not any("safetensors" in call for call in hub.calls)


def test_a_network_for_one_size_that_began_pretrained_is_restored(monkeypatch):
    make = timm.create_model
    untrained = lambda name, pretrained, **form: make(name, pretrained=False, **form)  # noqa: E731
    monkeypatch.setattr(timm, "create_model", untrained)
    name = "timm:vit_tiny_patch16_224@pretrained"
    with torch.device("meta"):
        trained = {
            key: value.shape for key, value in build_model(name, 3, SHAPE).state_dict().items()
        }
        restored = build_model(without_weights(name), 3, SHAPE).state_dict()
    assert {key: value.shape for key, value in restored.items()} == trained


def test_without_a_connection_the_downloaded_network_is_used(put, monkeypatch):
    import huggingface_hub.constants as constants

    name, _ = put()
    build_model(name, 3, SHAPE)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    build_model(name, 3, SHAPE)
    with pytest.raises(InputError, match=r"hf:ada/other: no connection to the Hub"):
        build_model(name.replace("net", "other"), 3, SHAPE)


def test_hub_repositories_without_a_timm_network_or_safetensors_are_refused(put, hub):
    name, _ = put({"architectures": ["BertModel"]})
    with pytest.raises(InputError, match=r"config\.json does not name a network of timm"):
        build_model(name, 3, SHAPE)
    commit = hub.put("models/ada/old", {"config.json": b"{}", "pytorch_model.bin": b"a pickle"})
    with pytest.raises(InputError, match=r"the repository has no model\.safetensors"):
        build_model(f"hf:ada/old@{commit}", 3, SHAPE)


def test_a_branch_is_refused_before_anything_starts(hub):
    assert begins_trained("hf:ada/net")
    for name in ("hf:ada/net", "hf:ada/net@main"):
        with pytest.raises(InputError) as refusal:
            check_model(name)
        assert str(refusal.value) == (
            f"model {name!r}: expected a commit of 40 digits, because weights of a branch may "
            "change; use hf:ada/net@COMMIT with a commit of the history on its page"
        )
    check_model(f"hf:ada/net@{'a' * 40}")
    assert hub.calls == []
