"""Features and class embeddings of image-text models, on a small random model."""

import csv
import json
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import safetensors.torch
import torch
import yaml
from filelock import FileLock
from PIL import Image
from torch.nn import functional as F

from orchestrator.cli import main
from tests.hub import Hub
from tests.orchestrator.one_process import one_process
from trainables.common.errors import InputError
from trainables.data import DataNote, read_logits, read_source
from trainables.models import ImageTextModel, build_model, check_model
from trainables.stages import extract

CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"
CLASSES = ("cat", "hot_dog", "sea_lion")
PROMPTS = ["a photo of a cat.", "a photo of a hot dog.", "a photo of a sea lion."]
TEXT = {"context_length": 16, "vocab_size": 49408, "width": 8, "heads": 2, "layers": 1}
MODEL = {
    "embed_dim": 8,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16, "head_width": 32},
    "text_cfg": TEXT,
}
CPU = torch.device("cpu")


def write_config(folder: Path, **changes: Any) -> None:
    fields = {"model_cfg": {**MODEL, **changes}, "preprocess_cfg": {"mean": [0.5, 0.4, 0.3]}}
    (folder / CONFIG).write_text(json.dumps(fields))


def write_model(folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    torch.manual_seed(3)
    fields = {**MODEL, **changes}
    build = open_clip.CustomTextCLIP if fields.pop("custom_text", False) else open_clip.CLIP
    model = build(**fields)
    write_config(folder, **changes)
    safetensors.torch.save_file(model.state_dict(), folder / WEIGHTS)
    return folder


def write_images(folder: Path, classes: tuple[str, ...] = CLASSES, rows: int = 12) -> Path:
    """Write images of many sizes, whose colour depends on the class; every third one is grey."""
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        for number, name in enumerate(classes):
            (folder / part / name).mkdir(parents=True)
            for row in range(rows):
                size = (*rng.integers(20, 90, 2), 3)
                pixels = (rng.random(size) * 90 + [70 * number, 90, 160 - 70 * number]) % 256
                image = Image.fromarray(pixels.astype(np.uint8))
                image = image.convert("L") if row % 3 == 0 else image
                image.save(folder / part / name / f"{row:02}.png")
    return folder


@pytest.fixture(scope="module", autouse=True)
def one_tokenizer() -> Iterator[None]:
    """Build the tokenizer once, which takes half a second."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("open_clip.factory.SimpleTokenizer", cache(open_clip.SimpleTokenizer))
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "pets")


def extracted(model: object, data: object, out: Path, *words: str) -> int:
    command = ["features", "extract", f"clip:{model}", str(data), "--out", str(out), "--quiet"]
    return main([*command, *words])


@pytest.fixture(scope="module")
def cached(model: Path, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("features") / "cached"
    assert extracted(model, f"folder:{images}", out) == 0
    return out


def library(model: Path) -> tuple[Any, Any, Any]:
    place = f"local-dir:{model}"
    loaded, prepare = open_clip.create_model_from_pretrained(place)
    return loaded.eval(), prepare, open_clip.get_tokenizer(place)


def test_zero_shot_logits_equal_those_of_the_library(
    cached: Path, model: Path, images: Path
) -> None:
    network, prepare, tokenize = library(model)
    file = read_logits(cached)
    assert file.classes == CLASSES
    assert file.fit is not None
    for part, rows in (("train", file.fit), ("test", file.rows)):
        paths = sorted((images / part).glob("*/*.png"))
        batch = torch.stack([prepare(Image.open(path)) for path in paths])
        with torch.no_grad():
            logits_per_image, _ = network.get_logits(batch, tokenize(PROMPTS))
        assert logits_per_image.std() > 0.1
        torch.testing.assert_close(rows.logits, logits_per_image, rtol=1e-5, atol=1e-5)
        assert rows.labels.tolist() == [CLASSES.index(path.parent.name) for path in paths]


def test_a_logit_bias_is_left_out_with_a_note(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "sigmoid", custom_text=True, init_logit_bias=-10.0)
    assert extracted(model, f"folder:{images}", tmp_path / "out") == 0
    told = f"note: the logit bias of clip:{model}, the same for all classes, is left out\n"
    assert told in capsys.readouterr().err
    network, prepare, tokenize = library(model)
    batch = torch.stack([prepare(Image.open(each)) for each in sorted(images.glob("test/*/*"))])
    with torch.no_grad():
        logits_per_image, _ = network.get_logits(batch, tokenize(PROMPTS))
    found = read_logits(tmp_path / "out").rows.logits
    torch.testing.assert_close(found - 10, logits_per_image, rtol=1e-5, atol=1e-5)


def test_prompts_are_averaged(model: Path, images: Path, tmp_path: Path) -> None:
    words = ("--template", "a {}", "--template", "{} or {} at night")
    assert extracted(model, f"folder:{images}", tmp_path / "out", *words) == 0
    network, _, tokenize = library(model)
    for name, embedding in zip(
        CLASSES, np.load(tmp_path / "out/class_embeddings.npy"), strict=True
    ):
        word = name.replace("_", " ")
        with torch.no_grad():
            tokens = tokenize([f"a {word}", f"{word} or {word} at night"])
            mean = network.encode_text(tokens, normalize=True).mean(0)
        torch.testing.assert_close(torch.from_numpy(embedding), mean / mean.norm())


def test_features_and_embeddings_have_length_one(cached: Path) -> None:
    for name in ("features_train", "features_test", "class_embeddings"):
        lengths = np.linalg.norm(np.load(cached / f"{name}.npy"), axis=1)
        np.testing.assert_allclose(lengths, 1, rtol=1e-6)


SWEEP = """
name: zero
tasks: [{{logits: {cached}}}]
recipes: [given, ts]
search: {{trials: 1}}
tracking: {{uri: "folder:{folder}/tracked"}}
"""


@pytest.mark.full
def test_a_sweep_calibrates_zero_shot_logits(
    cached: Path, empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("zero.yaml").write_text(SWEEP.format(cached=cached, folder=empty_folder))
    with one_process():
        assert main(["run", "zero.yaml", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["table", "zero", "--metrics", "nll", "--format", "csv"]) == 0
    rows = {row["recipe"]: row for row in csv.DictReader(capsys.readouterr().out.splitlines())}
    file = read_logits(cached)
    expected = F.cross_entropy(file.rows.logits.double(), file.rows.labels)
    assert float(rows["given"]["nll_mean"]) == pytest.approx(expected.item(), rel=1e-6)
    assert float(rows["ts"]["nll_mean"]) < expected


def test_a_probe_on_the_features_begins_with_the_zero_shot_logits(cached: Path) -> None:
    info = read_source(f"features:{cached}", "unused").info
    probe = build_model("probe", 3, info.inputs.shape)
    logits = probe(torch.from_numpy(np.load(cached / "features_test.npy"))).detach()
    torch.testing.assert_close(logits, read_logits(cached).rows.logits, rtol=1e-5, atol=1e-5)


def test_an_interrupted_extraction_is_continued_to_the_same_bits(
    model: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extract, "EVALUATION_BATCH", 16)
    encode, calls = ImageTextModel.image_features, []

    def interrupted(self: ImageTextModel, values: np.ndarray) -> np.ndarray:
        calls.append(len(values))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return encode(self, values)

    assert extracted(model, f"folder:{images}", tmp_path / "whole") == 0
    monkeypatch.setattr(ImageTextModel, "image_features", interrupted)
    assert extracted(model, f"folder:{images}", tmp_path / "cut") == 130
    assert not [*(tmp_path / "cut").glob("*.npy")]
    assert extracted(model, f"folder:{images}", tmp_path / "cut") == 0
    assert calls == [16, 16, 16, 4, 16, 16, 4]
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "cut" / path.name).read_bytes() == path.read_bytes()


def test_features_of_other_weights_or_templates_are_refused(
    cached: Path, model: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(cached, tmp_path / "out")
    own = f"clip:{model} on folder:{images}"
    assert extracted(model, f"folder:{images}", tmp_path / "out", "--template", "a {}") == 2
    assert f"features of {own}, whose templates have changed; use" in capsys.readouterr().err
    fields = json.loads((tmp_path / "out/features.json").read_text())
    for name in ("weights", "settings"):
        (tmp_path / "out/features.json").write_text(json.dumps({**fields, name: "0"}))
        assert extracted(model, f"folder:{images}", tmp_path / "out") == 2
        assert f"features of {own}, whose {name} have changed; use" in capsys.readouterr().err


def break_weights(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"torch")


def write_preparation(folder: Path, **changes: Any) -> None:
    fields = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**fields, "preprocess_cfg": changes}))


def rewrite(folder: Path, **changes: Any) -> None:
    shutil.rmtree(folder)
    write_model(folder, **changes)


def fill(folder: Path, name: str, value: float) -> None:
    tensors = safetensors.torch.load_file(folder / WEIGHTS)
    tensors[name] = torch.full_like(tensors[name], value)
    safetensors.torch.save_file(tensors, folder / WEIGHTS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shutil.rmtree, "model 'clip:{0}': there is no such folder; use clip:FOLDER or clip:hf:"),
        (lambda f: (f / CONFIG).unlink(), "{0}: no open_clip_config.json; expected a model in the"),
        (lambda f: (f / WEIGHTS).rename(f / "model.bin"), "{0}: no open_clip_model.safetensors; "),
        (lambda f: (f / CONFIG).write_text("[]"), "open_clip_config.json: expected a model_cfg of"),
        (lambda f: write_config(f, text_cfg=None), "no text_cfg; a model needs a text tower"),
        (
            lambda f: write_config(f, text_cfg={"hf_model_name": "roberta-base"}),
            "the text tower is roberta-base; use a model with its own text tower",
        ),
        (
            lambda f: write_config(f, text_cfg={**TEXT, "hf_tokenizer_name": "ada/t5"}),
            "{0}: the tokenizer needs transformers: pip install transformers",
        ),
        (lambda f: write_config(f, embed_dim=4), "{0}: cannot be used by open_clip (Error(s) in"),
        (break_weights, "{0}: cannot be used by open_clip ("),
        (lambda f: write_preparation(f, mean="x"), "{0}: cannot be used by open_clip ("),
        (lambda f: write_preparation(f, std=[0, 0, 0]), "{0}: cannot be used by open_clip ("),
        (lambda f: rewrite(f, text_cfg={**TEXT, "vocab_size": 9}), "{0}: cannot be used by open_"),
        (lambda f: fill(f, "visual.proj", 0), "computes image vectors of length 0 and"),
        (lambda f: fill(f, "text_projection", np.nan), "computes text vectors of length nan and"),
        (lambda f: fill(f, "logit_scale", np.inf), "and logit scale inf; its weights are damaged"),
    ],
)
def test_wrong_models_are_refused(
    change: Any,
    message: str,
    model: Path,
    images: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    wrong = tmp_path / "model"
    shutil.copytree(model, wrong)
    change(wrong)
    assert extracted(wrong, f"folder:{images}", tmp_path / "out") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message.format(wrong) in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("classes", "words", "message"),
    [
        (
            ("cat", "dog"),
            ("--template", "a photo"),
            "template 'a photo' has no {} for the class; use a text such as 'a photo of a {}.'",
        ),
        (
            ("Hot_dog", "hot dog"),
            (),
            "classes 'Hot_dog' and 'hot dog' have the same prompt for the model, 'a photo of a hot "
            "dog.'; rename one of them",
        ),
        (
            ("cat", "dog"),
            (
                "--template",
                "a picture that somebody took on a long and sunny day in the park of a {}",
            ),
            "classes 'cat' and 'dog' have the same prompt for the model, 'a picture that somebody "
            "took on a long and sunny day in the park of a dog', cut to 16 tokens; use a shorter "
            "template or name",
        ),
        (
            ("n01440764", "n01443537"),
            (),
            "class names are WordNet identifiers, such as 'n01440764'; prompts need words: use "
            "folder:PATH with folders that are named so",
        ),
    ],
)
def test_wrong_prompts_are_refused(
    classes: tuple[str, ...],
    words: tuple[str, ...],
    message: str,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = write_images(tmp_path / "data", classes, rows=1)
    assert extracted(model, f"folder:{data}", tmp_path / "out", *words) == 2
    assert capsys.readouterr().err == f"calsweep: {message}\n"
    assert not (tmp_path / "out").exists()


def test_a_template_for_a_network_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["features", "extract", "convnet", "digits", "--out", "out", "--template", "a {}"]
    assert main(command) == 2
    assert "model 'convnet' has no text tower; leave out --template\n" in capsys.readouterr().err


def test_without_the_library_it_says_what_to_install(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    assert extracted("tiny", "digits", Path("out")) == 2
    told = "model 'clip:tiny': needs open_clip: pip install 'calsweep[clip]'"
    assert capsys.readouterr().err == f"calsweep: {told}\n"


def test_sweeps_refuse_the_model_and_name_the_command() -> None:
    for refuse in (check_model, lambda name: build_model(name, 3, None)):
        with pytest.raises(InputError, match="only computes features; use `calsweep features ext"):
            refuse("clip:tiny")


def test_a_repository_of_the_hub_needs_a_commit_and_gives_no_pickle(
    hub: Hub, model: Path, images: Path, cached: Path, tmp_path: Path, capsys: Any
) -> None:
    files = {name: (model / name).read_bytes() for name in (CONFIG, WEIGHTS)}
    commit = hub.put("models/ada/clip", {**files, "open_clip_pytorch_model.bin": b"a pickle"})
    assert extracted("hf:ada/clip", f"folder:{images}", tmp_path / "out") == 2
    assert "use clip:hf:ada/clip@COMMIT with a commit" in capsys.readouterr().err
    assert extracted(f"hf:ada/clip@{commit}", f"folder:{images}", tmp_path / "out") == 0
    for name in ("features_test", "class_embeddings"):
        ours, theirs = (np.load(place / f"{name}.npy") for place in (tmp_path / "out", cached))
        np.testing.assert_array_equal(ours, theirs)
    assert not any(".bin" in call for call in hub.calls)
    commit = hub.put("models/ada/other", {"config.json": b"{}"})
    assert extracted(f"hf:ada/other@{commit}", f"folder:{images}", tmp_path / "other") == 2
    assert "the repository has no open_clip_config.json" in capsys.readouterr().err


def test_images_of_arrays_are_read_and_class_numbers_are_noted(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 40, 40, 1), dtype=np.uint8)
    np.savez(tmp_path / "grey.npz", images=pixels, labels=np.arange(6) % 2)
    assert extracted(model, f"npz:{tmp_path}/grey.npz", tmp_path / "out") == 0
    assert (
        "note: class names are numbers, such as '0'; prompts need words" in capsys.readouterr().err
    )
    network, prepare, _ = library(model)
    batch = torch.stack([prepare(Image.fromarray(row[..., 0])) for row in pixels])
    with torch.no_grad():
        expected = network.encode_image(batch, normalize=True)
    found = torch.from_numpy(np.load(tmp_path / "out/features_train.npy"))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_other_data_than_images_is_refused(
    cached: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert extracted(model, f"features:{cached}", tmp_path / "out") == 2
    told = f"dataset 'features:{cached}': expected grey or RGB images, got features of shape (8,)"
    assert told in capsys.readouterr().err


def test_classes_of_imagenet_have_the_names_of_the_library(model: Path) -> None:
    loaded = ImageTextModel(f"clip:{model}", CPU)
    with pytest.warns(DataNote, match="prompts use open_clip's names of the 1,000 classes"):
        found = loaded.class_embeddings([f"n{number:08}" for number in range(1000)], ["a {}."])
    named = loaded.class_embeddings(["goldfish", "great white shark"], ["a {}."])
    np.testing.assert_allclose(found[1:3], named, rtol=1e-5, atol=1e-6)


def test_a_number_before_a_class_is_no_part_of_the_prompt(model: Path) -> None:
    loaded = ImageTextModel(f"clip:{model}", CPU)
    numbered = loaded.class_embeddings(["001.Sea_Lion", "002.cat"], ["a {}."])
    plain = loaded.class_embeddings(["sea lion", "cat"], ["a {}."])
    np.testing.assert_array_equal(numbered, plain)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("features.json", "[]", "features.json is damaged ("),
        ("features.json", "{}", "features.json is damaged ("),
        ("features_train.npy.part", "x" * 100, "features_train.npy.part is damaged ("),
    ],
)
def test_a_damaged_file_of_an_interrupted_extraction_is_named(
    name: str,
    content: str,
    message: str,
    model: Path,
    images: Path,
    cached: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    shutil.copytree(cached, out)
    (out / "features_train.npy").unlink()
    (out / name).write_text(content)
    assert extracted(model, f"folder:{images}", out) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_two_processes_do_not_write_to_one_folder(
    model: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FileLock(tmp_path / ".lock"):
        assert extracted(model, f"folder:{images}", tmp_path) == 2
    told = f"calsweep: {tmp_path}: another process writes features there; wait for it\n"
    assert capsys.readouterr().err == told
    assert not [*tmp_path.glob("features*")]


def test_an_unfinished_extraction_is_named_where_it_is_used(cached: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(cached, out)
    (out / "features_train.npy").rename(out / "features_train.npy.part")
    told = r"out: the features are incomplete; repeat `calsweep features extract` to complete them"
    for use in (read_logits, lambda place: read_source(f"features:{place}", tmp_path)):
        with pytest.raises(InputError, match=told):
            use(out)


def test_the_printed_tasks_are_yaml_for_odd_folders(
    model: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "B\u00e4r 100% {x} #1"
    assert extracted(model, f"folder:{images}", out) == 0
    printed = capsys.readouterr().out.partition("tasks: ")[2].partition(" for zero-shot")[0]
    probe, logits = map(yaml.safe_load, printed.split(", or "))
    assert (probe, logits) == ([{"features": str(out), "model": "probe"}], [{"logits": str(out)}])
