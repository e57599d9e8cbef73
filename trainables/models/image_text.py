"""Image-text models in the format of open_clip, such as CLIP (Radford et al., arXiv 2103.00020)."""

import json
import re
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from trainables.common.errors import InputError
from trainables.common.files import file_hash
from trainables.common.hub import download
from trainables.common.paths import local_path
from trainables.data import DataNote, pictures
from trainables.models._registry import CLIP, HUB_MODELS, hub_address

CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"
TOKENIZER = ("*.json", "*.txt", "*.model")  # Files of tokenizers that open_clip does not have.
TEMPLATES = ("a photo of a {}.",)
BATCH = 64
WORDNET = re.compile(r"n\d{8}")
IMAGENET = 1000  # Number of classes.
# Errors of open_clip for a wrong configuration, wrong weights, or a missing library.
_FAULTS = (
    *(AssertionError, AttributeError, ImportError, IndexError, KeyError, OSError),
    *(RuntimeError, TypeError, ValueError),
)


class ImageTextModel:
    """A model that gives images and texts unit vectors, whose scaled cosines are logits.

    Only safetensors are loaded; nothing is unpickled and no code of a repository runs.

    Args:
        name: ``clip:FOLDER`` or ``clip:hf:ORG/NAME@COMMIT``, with ``CONFIG`` and ``WEIGHTS``.
        device: The device of the model.

    Attributes:
        weights: SHA-256 (hex) of the weights.
        settings: SHA-256 (hex) of ``CONFIG``, which says how images are prepared.
        logit_scale: The factor of the cosines.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        try:
            import open_clip
        except ImportError as error:
            remedy = "pip install 'calsweep[clip]'"
            raise InputError(f"model {name!r}: needs open_clip: {remedy}") from error
        folder = _folder(name)
        _check_config(folder)
        # open_clip prefers WEIGHTS to all other files.
        with _faults(folder):
            place = f"local-dir:{folder}"
            model, self._prepare = open_clip.create_model_from_pretrained(place, device=device)
            self._tokenize = open_clip.get_tokenizer(place)
        self._model, self._device, self._library = model.eval(), device, open_clip
        self._folder = folder
        self.weights, self.settings = file_hash(folder / WEIGHTS), file_hash(folder / CONFIG)
        if getattr(model, "logit_bias", None) is not None:
            _note(f"the logit bias of {name}, the same for all classes, is left out")
        self.logit_scale = float(model.logit_scale.detach().exp())
        with _faults(folder), torch.inference_mode():
            blank = self._prepare(Image.new("RGB", (8, 8), (200, 100, 50))).to(device)
            image = model.encode_image(blank[None], normalize=True).float().cpu().numpy()
        _check_unit(folder, "image", image, self.logit_scale)

    @torch.inference_mode()
    def image_features(self, values: np.ndarray) -> np.ndarray:
        """Return features of length 1, (N, D) float32, of images as in ``pictures``."""
        torch.backends.cudnn.allow_tf32 = False  # As for other networks.
        found = []
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            for start in range(0, len(values), BATCH):
                images = pool.map(self._prepare, pictures(values[start : start + BATCH]))
                batch = torch.stack([*images]).to(self._device)
                found.append(self._model.encode_image(batch, normalize=True).float().cpu())
        return torch.cat(found).numpy()

    def class_embeddings(self, classes: Sequence[str], templates: Sequence[str]) -> np.ndarray:
        """Return the embedding of each class, (K, D) float32, of length 1.

        It is the normalised mean of the embeddings of the class's prompts. A prompt is a template
        in which the class's name replaces ``{}``.
        """
        names = self._names(classes)
        prompts = [partial(_prompt, template) for template in templates]
        with _faults(self._folder):
            if names is classes:
                self._check_prompts(classes, templates)
            found = self._library.build_zero_shot_classifier(
                self._model, self._tokenize, names, prompts, device=self._device
            )
        embeddings = found.T.float().cpu().numpy()
        _check_unit(self._folder, "text", embeddings)
        return embeddings

    def _names(self, classes: Sequence[str]) -> Sequence[str]:
        """Return the names for prompts: those of open_clip if these are ImageNet's classes."""
        if all(map(str.isdecimal, classes)):
            _note(f"class names are numbers, such as {classes[0]!r}; prompts need words")
        if not all(map(WORDNET.fullmatch, classes)):
            return classes
        if len(classes) != IMAGENET:
            raise InputError(
                f"class names are WordNet identifiers, such as {classes[0]!r}; prompts need words: "
                "use folder:PATH with folders that are named so"
            )
        _note("prompts use open_clip's names of the 1,000 classes of ImageNet")
        return self._library.IMAGENET_CLASSNAMES

    def _check_prompts(self, classes: Sequence[str], templates: Sequence[str]) -> None:
        """Refuse classes with equal prompts; tokenizers ignore case and cut long texts."""
        for template in templates:
            seen: dict[tuple[int, ...], str] = {}
            tokens = self._tokenize([_prompt(template, name) for name in classes])
            for name, row in zip(classes, tokens.tolist(), strict=True):
                if (first := seen.setdefault(tuple(row), name)) != name:
                    prompt = _prompt(template, name)
                    cut = prompt.casefold() != _prompt(template, first).casefold()
                    remedy = "use a shorter template or name" if cut else "rename one of them"
                    raise InputError(
                        f"classes {first!r} and {name!r} have the same prompt for the model, "
                        f"{prompt!r}{f', cut to {len(row)} tokens' * cut}; {remedy}"
                    )


def _check_unit(folder: Path, tower: str, vectors: np.ndarray, scale: float = 1.0) -> None:
    """Raise ``InputError`` unless vectors (N, D) have length 1 and the logit scale is finite."""
    lengths = np.linalg.norm(vectors, axis=1)
    if not np.allclose(lengths, 1, atol=1e-2) or not 0 < scale < np.inf:
        wrong = f"{tower} vectors of length {lengths[0]:.3g} and logit scale {scale:.3g}"
        raise InputError(f"{folder}: the model computes {wrong}; its weights are damaged")


def check_templates(templates: Sequence[str]) -> None:
    """Raise ``InputError`` if a template has no ``{}``."""
    for template in templates:
        if "{}" not in template:
            raise InputError(
                f"template {template!r} has no {{}} for the class; use a text such as "
                f"{TEMPLATES[0]!r}"
            )


def _prompt(template: str, name: str) -> str:
    """Return the prompt of a class; ``001.Sooty_Albatross`` becomes ``Sooty Albatross``."""
    words = re.sub(r"^\d+\.(?=\D)", "", name).replace("_", " ").split()
    return template.replace("{}", " ".join(words))


def _note(text: str) -> None:
    warnings.warn(text, DataNote, stacklevel=2)


def _folder(name: str) -> Path:
    """Return the folder of a model, which is downloaded first if it is on the Hub."""
    argument = name.removeprefix(CLIP)
    if argument.startswith(HUB_MODELS):
        address = hub_address(argument, CLIP)
        return download(address, (CONFIG, WEIGHTS, *TOKENIZER), f"model {name!r}")
    if not argument or not (folder := local_path(argument, f"model {name!r}")).is_dir():
        forms = f"{CLIP}FOLDER or {CLIP}hf:ORG/NAME@COMMIT"
        raise InputError(f"model {name!r}: there is no such folder; use {forms}")
    return folder


def _check_config(folder: Path) -> None:
    """Raise ``InputError`` unless a folder has weights and the configuration of both towers."""
    for file in (CONFIG, WEIGHTS):
        if not (folder / file).is_file():
            raise InputError(f"{folder}: no {file}; expected a model in the format of open_clip")
    path = folder / CONFIG
    try:
        model = json.loads(path.read_text(encoding="utf-8"))["model_cfg"]
        towers = {tower: dict(model.get(f"{tower}_cfg") or {}) for tower in ("vision", "text")}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: expected a model_cfg of open_clip") from error
    for tower, fields in towers.items():
        if not fields:
            raise InputError(f"{path}: no {tower}_cfg; a model needs a {tower} tower")
    if other := towers["text"].get("hf_model_name"):
        raise InputError(f"{path}: the text tower is {other}; use a model with its own text tower")


@contextmanager
def _faults(folder: Path) -> Iterator[None]:
    """Turn errors of open_clip into ``InputError``."""
    from safetensors import SafetensorError

    try:
        yield
    except ModuleNotFoundError as error:
        remedy = f"pip install {error.name}"
        raise InputError(f"{folder}: the tokenizer needs {error.name}: {remedy}") from error
    except InputError:
        raise
    except (*_FAULTS, SafetensorError) as error:
        reason = str(error) or type(error).__name__
        raise InputError(f"{folder}: cannot be used by open_clip ({reason})") from error
