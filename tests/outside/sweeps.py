"""Write the files of a drawn sweep: sweep file, data and plugins, as README and docs/ show them."""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.outside.draw import LOGITS, Row

LOSS = '''"""A loss of one's own."""
import torch
from torch import Tensor
from torch.nn import functional as F
from calsweep import LOSSES, RowLoss, number
{imported}

@LOSSES.register("gce")
class GeneralisedCrossEntropyLoss(RowLoss):
    """Generalised cross-entropy."""
    q: float = number(default=0.7, low=0.1, high=1.0)

    def per_row(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each row."""
        log_prob = -F.cross_entropy(logits, targets, reduction="none")
        return {factor} * -torch.expm1(self.q * log_prob) / self.q
'''
CALIBRATOR = '''"""A calibrator of one's own."""
from torch import Tensor
from calsweep import CALIBRATORS, Calibrator, FitReport, fit_temperature, fitted

@CALIBRATORS.register("floored")
class Floored(Calibrator):
    """Temperature scaling."""
    preserves_accuracy = True
    temperature: Tensor = fitted()

    def _fit(self, logits: Tensor, labels: Tensor) -> FitReport:
        self.temperature, report = fit_temperature(logits, labels)
        return report

    def _transform(self, logits: Tensor) -> Tensor:
        return (logits / self.temperature.to(logits.device)).log_softmax(dim=1)

    def _summary(self) -> dict[str, float]:
        return {"temperature": float(self.temperature)}
'''
REFINEMENT = '''"""A refinement of one's own."""
from torch import nn
from calsweep import REFINEMENTS, Refinement, number

@REFINEMENTS.register("noisy")
class Noisy(Refinement):
    """A fresh linear classifier."""
    sigma: float = number(default=0.1, low=0.0, high=1.0)

    def build_head(self, feature_dim: int, num_classes: int) -> nn.Module:
        """Return the head."""
        return nn.Linear(feature_dim, num_classes)
'''
METRIC = '''"""A metric of one's own."""
from torch import Tensor
from calsweep import METRICS

@METRICS.register("spherical", better="higher", percent=False, digits=4)
def spherical(probs: Tensor, labels: Tensor) -> Tensor:
    """Return the spherical score of each row."""
    return probs.gather(1, labels[:, None]).squeeze(1) / probs.norm(dim=1)
'''
EXECUTOR = '''"""An executor of one's own."""
from calsweep import EXECUTORS, InProcess

@EXECUTORS.register("one-by-one")
class OneByOne(InProcess):
    """One trial after the other."""
'''
LOSS_PLUGINS = ("loss", "library", "package")
EXECUTORS = {"in-process": "local", "processes": "local", "ray": "ray", "plugin": "one-by-one"}
PLACES = {
    "plain": "store",
    "percent": "100% store%20",
    "blank": "my store",
    "umlaut": "Größe-数",
    "symlink": "linked",
    "hash": "a#b?c",
    "quote": "it's",
}


def arrays(seed: int, rows: int = 160) -> tuple[np.ndarray, np.ndarray]:
    """Return features (N, 16) and labels of four classes that overlap."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, rows)
    labels[:8] = np.arange(8) % 4
    return rng.normal(size=(rows, 16)) + 1.5 * np.eye(16)[labels], labels


def images(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images (N, 8, 8, 1), uint8, and labels."""
    values, labels = arrays(seed)
    small = np.repeat(np.repeat(values.reshape(-1, 4, 4), 2, 1), 2, 2)
    return (60 + 50 * small).clip(0, 255).astype(np.uint8)[..., None], labels


def npz(folder: Path, turn: int = 0) -> str:
    """Write arrays of images; with ``turn`` other labels of the test rows."""
    pixels, labels = images(0)
    held = labels[110:].copy()
    np.savez(
        folder / "mine.npz",
        x_train=pixels[:110],
        y_train=labels[:110],
        x_test=pixels[110:],
        y_test=np.roll(held, turn),
    )
    return "npz:mine.npz"


def pictures(folder: Path) -> str:
    """Write a folder of images for each class."""
    pixels, labels = images(1)
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        place = folder / "photos" / f"class {'abcd'[label]}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(place / f"{number}.png")
    return "folder:photos"


def texts(folder: Path) -> str:
    """Write texts as CSV."""
    _, labels = arrays(2)
    rng = random.Random(2)
    words = [f"{'wxyz'[label]}{rng.randrange(5)} w{rng.randrange(30)}" for label in labels]
    lines = [
        f"{word} n{i},{label}" for i, (word, label) in enumerate(zip(words, labels, strict=True))
    ]
    (folder / "mine.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    return "text:mine.csv"


def logits(folder: Path, kind: str, turn: int = 0) -> str:
    """Write logits, as arrays in two parts or as CSV."""
    values, labels = arrays(3, 240)
    values = 2 * values[:, :4]
    if kind == "logits":
        parts = {"logits_fit": values[:140], "labels_fit": labels[:140]}
        held = {"logits_test": values[140:], "labels_test": np.roll(labels[140:], turn)}
        np.savez(folder / "given.npz", **parts, **held)
        return "given.npz"
    rows = np.column_stack([values, labels])
    header = "logit_0,logit_1,logit_2,logit_3,label"
    style = ["%.6f"] * 4 + ["%d"]
    np.savetxt(folder / "given.csv", rows, delimiter=",", header=header, comments="", fmt=style)
    return "given.csv"


def task(row: Row, folder: Path) -> dict[str, Any]:
    """Write the data of a sweep and return its task."""
    kind = row["data"]
    if kind in LOGITS:
        test = {} if kind == "logits" else {"test": 0.4}
        return {"logits": logits(folder, kind), "split": {"validation": 90, **test}}
    if kind == "features":
        values, labels = arrays(4)
        np.savez(folder / "features.npz", features=values, labels=labels)
        protocol = {"base": "features", "epochs": 2, "batch_size": 32}
        return {"features": "features.npz", "protocol": protocol}
    if kind == "text":
        protocol = {"base": "mbls2022-text", "epochs": 1, "batch_size": 32}
        inputs = {"vocabulary": 60, "length": 12}
        split = {"test": 0.3, "validation": 0.2}
        model = {"dataset": texts(folder), "model": "gpool-cnn"}
        return {**model, "protocol": protocol, "inputs": inputs, "split": split}
    split: dict[str, Any] = {"validation": 0.3}
    if kind == "digits":
        source, split = "digits", {**split, "train_limit": 120, "test_limit": 80}
    elif kind == "npz":
        source = npz(folder)
    else:
        source, split = pictures(folder), {**split, "test": 0.3}
    protocol = {"base": "digits", "epochs": 1}
    return {"dataset": source, "model": "convnet", "protocol": protocol, "split": split}


def plugins(row: Row, folder: Path) -> list[str]:
    """Write the plugins of a sweep and return their names."""
    found, kind = [], row["plugin"]
    if kind == "package":
        package = folder / "ours"
        package.mkdir()
        imported = "from ours.factor import FACTOR"
        (package / "__init__.py").write_text(LOSS.format(imported=imported, factor="FACTOR"))
        (package / "factor.py").write_text("FACTOR = 1.0\n")
        found.append("./ours")
    elif kind == "library":
        text = LOSS.format(imported="from below_it import FACTOR", factor="FACTOR")
        (folder / "gce.py").write_text(text)
        (folder / "below_it.py").write_text("FACTOR = 1.0\n")
        found.append("./gce.py")
    elif kind != "none":
        text = {"calibrator": CALIBRATOR, "refinement": REFINEMENT, "metric": METRIC}.get(kind)
        (folder / f"own_{kind}.py").write_text(text or LOSS.format(imported="", factor="1.0"))
        found.append(f"./own_{kind}.py")
    if row["executor"] == "plugin":
        (folder / "own_executor.py").write_text(EXECUTOR)
        found.append("./own_executor.py")
    return found


def edited(row: Row, folder: Path) -> Path:
    """Return the file that a user changes: the plugin, or a library below it."""
    places = {"library": "below_it.py", "package": "ours/factor.py"}
    return folder / places.get(row["plugin"], f"own_{row['plugin']}.py")


def recipes(row: Row) -> list[str]:
    """Return the recipes of a sweep: one that is searched, and what the row asks for on it."""
    stages = [] if row["refinement"] == "none" else [row["refinement"]]
    stages += ["noisy"] if row["plugin"] == "refinement" and not stages else []
    calibrators = [] if row["calibrator"] == "none" else [row["calibrator"]]
    calibrators += ["floored"] if row["plugin"] == "calibrator" else []
    if row["data"] in LOGITS:
        return list(dict.fromkeys(["given", "vs", *calibrators]))
    base = "gce" if row["plugin"] in LOSS_PLUGINS else "mbls"
    refined = "+".join([base, *stages])
    return list(dict.fromkeys([base, refined, *(f"{refined}+{one}" for one in calibrators)]))


def parameter(row: Row) -> tuple[str, str, list[float]]:
    """Return a part that is searched, and one of its parameters with two values."""
    if row["data"] in LOGITS:
        return "vs", "weight_decay", [0.0001, 0.001]
    if row["plugin"] in LOSS_PLUGINS:
        return "gce", "q", [0.5, 0.7]
    return "mbls", "margin", [4.0, 6.0]


def asked(row: Row) -> list[str]:
    """Return the optional keys of a row."""
    return [row["key"], row["option"], *row.get("also", "").split()]


def search(row: Row) -> dict[str, Any]:
    """Return the block `search` of a sweep."""
    part, name, values = parameter(row)
    options: dict[str, dict[str, Any]] = {
        "pareto": {"pareto": ["acc", "ece"]},
        "fixed": {"fixed": {part: {name: values[0]}}},
        "tune": {"tune": {part: [name]}},
        "objective": {"objective": "smooth_ece"},
        "lowest": {"keep_default": False},
        "seed": {"seed": 100},
        "paper": {"budget": "paper"},
    }
    found: dict[str, Any] = {"trials": 2, "sampler": row["sampler"], "scheduler": row["scheduler"]}
    for key in asked(row):
        found.update(options.get(key, {}))
    if row["option"] == "spaces" or row["sampler"] == "grid":
        found["spaces"] = {part: {name: {"choices": values}}}
    return found


def extended(row: Row, spec: dict[str, Any]) -> dict[str, Any]:
    """Return a sweep file with more of its keys."""
    keys = asked(row)
    if "variant" in keys:
        part, name, values = parameter(row)
        spec["variants"] = {"mine": {"of": part, "fixed": {name: values[0]}}}
        spec["recipes"].append("mine")
    if "vary" in keys:
        spec["tasks"][0].setdefault("split", {})["vary"] = True
    if "errors" in keys:
        spec["search"]["accuracy_errors"] = 1.0
    if "deterministic" in keys:
        spec["resources"]["deterministic"] = True
    if "many" in keys:
        spec["search"]["trials"] = 24
        spec["tasks"][0]["protocol"]["epochs"] = 200
    kept = {"keep": "logits"}
    more = {"tags": {"tags": {"team": "red"}}, "keep": kept, "many": kept}
    for key in keys:
        spec |= more.get(key, {})
    return {**spec, "seeds": [0, 1]} if {"seeds", "vary"} & {*keys} else spec


def write(row: Row, folder: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """Write everything that a sweep needs into a folder, and return the sweep file's content.

    ``variables`` may have the address of a tracking server, as TRACKER.
    """
    place = PLACES[row["storage"]]
    if row["storage"] == "symlink":
        (folder / "elsewhere").mkdir()
        (folder / place).symlink_to("elsewhere")
    spec = {
        # Histories share a tracking server, and each must find only its own runs there.
        "name": f"drawn-{abs(hash(folder))}" if "TRACKER" in variables else "drawn",
        "plugins": plugins(row, folder),
        "tasks": [task(row, folder)],
        "recipes": recipes(row),
        "search": search(row),
        "executor": EXECUTORS[row["executor"]],
        "resources": {
            "concurrent": 2 if row["executor"] in ("processes", "ray") else 1,
            "checkpoint_seconds": 0.1,
        },
        "storage": str(folder / place) if row["submit"] == "slurm" else place,
    }
    if "TRACKER" in variables:
        spec["tracking"] = {"uri": variables["TRACKER"]}
    spec = extended(row, spec)
    (folder / "drawn.yaml").write_text(json.dumps(spec, ensure_ascii=False))
    return spec
