"""Writes the figures of a package for the Hugging Face Hub and for Every Eval Ever.

``eval.yaml`` and ``.eval_results/*.yaml``: https://huggingface.co/docs/hub/eval-results
Fields of their rows: https://github.com/huggingface/hub-docs/blob/main/eval_results.yaml
Every Eval Ever: https://github.com/evaleval/every_eval_ever,
every_eval_ever/schemas/eval.schema.json
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Any
from uuid import UUID

import yaml

from orchestrator.logits.files import make_folder, write_whole
from orchestrator.packages.package import PREDICTIONS, Cell, Package
from orchestrator.storage.provenance import library_version
from orchestrator.tables.arrange import build_table
from orchestrator.tables.columns import column
from orchestrator.tables.table import ComparisonTable
from trainables.common.hub import HUB, HubAddress
from trainables.common.words import many
from trainables.metrics import METRICS

FRAMEWORK, SCHEMA = "calsweep", "0.3.0"


def write_evaluations(package: Package, folder: Path, repo: str) -> None:
    """Write the figures of a package into a folder whose content is uploaded as ``repo``.

    The Hub accepts one value per model and task. So each pair of recipe and task is a model, and
    each pair of task and metric is a task of the benchmark.
    """
    table = build_table(package.results)
    tasks, recipes = _short(table.tasks), _short(table.recipes)
    texts = {"eval.yaml": _yaml(_benchmark(package, table, tasks))}
    models = _models(package)
    ids = _short(f"{tasks[task]}/{recipes[recipe]}" for recipe, task in models)
    for ((recipe, task), cells), (place, own) in zip(models.items(), ids.items(), strict=True):
        figures, day = _figures(table, recipe, task), _ended(package, cells[0])
        rows = [_row(repo, f"{tasks[task]}-{m}", f, day, cells) for m, f in figures.items()]
        texts[f"models/{place}/.eval_results/calsweep.yaml"] = _yaml(rows)
        record = _record(cells, figures, day, repo, own)
        content = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        # The datastore requires a UUID; this one is the same for equal results.
        name = UUID(bytes=hashlib.sha256(content.encode()).digest()[:16], version=4)
        where = record["evaluation_id"].rpartition("/")[0]
        texts[f"every_eval_ever/data/{where}/{name}.json"] = content
    for path, text in texts.items():
        _write(folder / path, text)


def _write(path: Path, text: str) -> None:
    make_folder(path.parent)
    write_whole(path, lambda stream: stream.write(text.encode()))


def _models(package: Package) -> dict[tuple[str, str], list[Cell]]:
    """Return the cells of each recipe and task, one per seed."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in package.cells:
        found.setdefault((cell.study.recipe, cell.study.task), []).append(cell)
    return found


def _short(names: Iterable[str]) -> dict[str, str]:
    """Map names to forms that are safe in files and URLs; duplicates get a number."""
    found: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.") or "unnamed"
        numbered = (f"{plain}-{number}" for number in count(2))
        found[name] = next(each for each in chain([plain], numbered) if each not in found.values())
    return found


def _benchmark(
    package: Package, table: ComparisonTable, tasks: Mapping[str, str]
) -> dict[str, Any]:
    names = ", ".join(dict.fromkeys(each.sweep for each in package.ledgers))
    return {
        "name": f"calsweep: {names}",
        "description": f"Accuracy and calibration on the test data of {many(len(tasks), 'task')}. "
        "Each metric is a task here. Figures are fractions.",
        "evaluation_framework": FRAMEWORK,
        "tasks": [
            {"id": f"{short}-{metric}", "config": Path(PREDICTIONS).stem, "split": "test"}
            for short in tasks.values()
            for metric in table.metrics
        ],
    }


def _figures(table: ComparisonTable, recipe: str, task: str) -> dict[str, float]:
    """Return the finite means over seeds, by metric."""
    found = {name: table.summary(recipe, task, name) for name in table.metrics}
    return {name: own.mean for name, own in found.items() if own and math.isfinite(own.mean)}


def _ended(package: Package, cell: Cell) -> datetime:
    ledger = next(each for each in package.ledgers if each.sweep_id == cell.study.sweep_id)
    return datetime.fromtimestamp((ledger.ended or ledger.began) / 1000, UTC)


def _row(
    repo: str, task: str, value: float, day: datetime, cells: Sequence[Cell]
) -> dict[str, Any]:
    study, url = cells[0].study, f"https://huggingface.co/datasets/{repo}"
    return {
        "dataset": {"id": repo, "task_id": task},
        "value": value,
        "date": day.date().isoformat(),
        "source": {"url": url, "name": "calsweep package", "user": repo.partition("/")[0]},
        "evaluation_framework": FRAMEWORK,
        "notes": f"{study.recipe} on {study.task}, mean over {many(len(cells), 'seed')}",
    }


def _record(
    cells: Sequence[Cell], figures: Mapping[str, float], day: datetime, repo: str, model: str
) -> dict[str, Any]:
    """Return a model's figures as a record of Every Eval Ever; details must be strings."""
    study, trial = cells[0].study, cells[0].trial
    owner, _, name = repo.partition("/")
    at = f"{day.timestamp():.0f}"
    return {
        "schema_version": SCHEMA,
        "evaluation_id": f"{name}/{owner}/{model}/{at}",
        "evaluation_timestamp": at,
        "retrieved_timestamp": at,
        "source_metadata": {
            "source_name": cells[0].sweep,
            "source_type": "evaluation_run",
            "source_organization_name": owner,
            "source_organization_url": f"https://huggingface.co/{owner}",
            "evaluator_relationship": "first_party",
            "additional_details": {"package": f"https://huggingface.co/datasets/{repo}"},
        },
        "eval_library": {"name": FRAMEWORK, "version": library_version(FRAMEWORK)},
        "model_info": {
            "name": f"{study.recipe} on {study.task}",
            "id": f"{owner}/{model}",
            "developer": owner,
            "additional_details": {
                "deployment_type": "self_deployed",
                "model_availability": "unknown",
                "network": study.model,
                "recipe": study.recipe,
                "configuration": json.dumps(trial.configuration, sort_keys=True),
            },
        },
        "evaluation_results": [_score(cells, name, value) for name, value in figures.items()],
    }


def _score(cells: Sequence[Cell], name: str, value: float) -> dict[str, Any]:
    metric, shown = METRICS[name.rpartition("/")[2]], column(name)
    low, high = (
        end if math.isfinite(end) else "Infinity" if end > 0 else "-Infinity"
        for end in metric.bounds
    )
    return {
        "evaluation_name": cells[0].study.task,
        "source_data": _source(str(cells[0].study.origin.get("dataset"))),
        "metric_config": {
            "metric_id": name,
            "metric_name": shown.label,
            **({"metric_unit": "proportion"} if metric.percent else {}),
            "lower_is_better": not shown.higher,
            "score_type": "continuous",
            "min_score": low,
            "max_score": high,
        },
        "score_details": {
            "score": value,
            "details": {f"seed {c.trial.seed}": repr(c.trial.test[name]) for c in cells},
        },
    }


def _source(dataset: str) -> dict[str, str]:
    if not dataset.startswith(HUB):
        return {"dataset_name": dataset, "source_type": "other"}
    repo = HubAddress.parse(dataset.removeprefix(HUB), "dataset").repo
    return {"dataset_name": dataset, "source_type": "hf_dataset", "hf_repo": repo}


def _yaml(value: object) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
