"""Packages as data set repositories of the Hugging Face Hub.

README.md is a card (https://huggingface.co/docs/hub/datasets-cards) with ``configs``
(https://huggingface.co/docs/hub/datasets-data-files-configuration).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory

import yaml

from orchestrator.logits.files import make_folder, write_whole
from orchestrator.packages.evaluations import write_evaluations
from orchestrator.packages.frozen import ENDING
from orchestrator.packages.package import PAGE, PREDICTIONS, RESULTS, TRIALS, Package, opened
from orchestrator.packages.publish import publish
from orchestrator.storage.storage import Storage
from orchestrator.tables.arrange import build_table
from orchestrator.tables.make import render
from trainables.common.errors import InputError
from trainables.common.hub import HUB, HubAddress, hub_client, hub_faults

FILE, CARD = f"package{ENDING}", "README.md"
YOURS = "ORG/NAME"  # Placeholder for the repository, which is unknown if a folder is written.
TABLES = (RESULTS, TRIALS, PREDICTIONS)


def publish_repository(
    root: Storage,
    sweeps: Sequence[str],
    to: str,
    license: str,
    done: Callable[[int, int], None] = lambda count, total: None,
) -> str:
    """Write a package as a data set repository to a folder or ``hf:ORG/NAME``; return its address.

    See ``publish`` and ``upload``.
    """
    if not to.startswith(HUB):
        _write(root, sweeps, make_folder(Path(to)), f"{to}/{FILE}", YOURS, license, done)
        return to
    address = HubAddress.parse(to.removeprefix(HUB), "--to")
    if address.part or address.revision:
        raise InputError(f"--to {to}: use {HUB}ORG/NAME; results are uploaded to its branch main")
    with TemporaryDirectory(prefix="calsweep-hub-") as folder:
        _write(root, sweeps, Path(folder), to, address.repo, license, done)
        upload(Path(folder), address.repo, f"Results of {', '.join(dict.fromkeys(sweeps))}")
    return f"https://huggingface.co/datasets/{address.repo}"


def upload(folder: Path, repo: str, message: str) -> None:
    """Upload a folder to a data set repository in one commit; create the repository if needed.

    An interruption leaves the files of the repository as they were. A repeated upload changes
    nothing.
    """
    with hub_faults(repo):
        client = hub_client()
        client.create_repo(repo, repo_type="dataset", exist_ok=True)
        client.upload_folder(
            repo_id=repo, folder_path=folder, repo_type="dataset", commit_message=message
        )


def _write(
    root: Storage,
    sweeps: Sequence[str],
    folder: Path,
    place: str,
    repo: str,
    license: str,
    done: Callable[[int, int], None],
) -> None:
    publish(root, sweeps, folder / FILE, license, done, logits=True)
    with opened(folder / FILE) as package:
        for name in (PAGE, *TABLES):
            copyfile(package.folder / name, folder / name)
        write_evaluations(package, folder, repo)
        card = _card(package, place)
    write_whole(folder / CARD, lambda stream: stream.write(card.encode()))


def _card(package: Package, place: str) -> str:
    names = ", ".join(dict.fromkeys(each.sweep for each in package.ledgers))
    header = yaml.safe_dump(
        {
            "license": "other",  # The Hub refuses unknown names.
            "license_name": str(package.header["license"]),
            "tags": ["calsweep", "calibration"],
            "configs": [
                {
                    "config_name": Path(name).stem,
                    "data_files": [{"split": "test", "path": name}],
                    **({"default": True} if name == RESULTS else {}),
                }
                for name in TABLES
            ],
        },
        sort_keys=False,
    )
    table = render(build_table(package.results), "markdown")
    return (
        f"---\n{header}---\n\n# {names}\n\n{table.strip()}\n\n## Verify\n\n"
        f"    calsweep package verify {place}\n\n"
        f"`{FILE}` has the predictions, splits and trials behind each figure; `{PAGE}` is the "
        f"report. `{RESULTS}` has a row per task, recipe and seed, `{TRIALS}` a row per trial, and "
        f"`{PREDICTIONS}` a row per test row. `eval.yaml` lists the metrics as a benchmark, "
        "`models` has the rows for each model's own repository, and `every_eval_ever` the records "
        "of Every Eval Ever.\n"
    )


def package_file(package: str) -> Path:
    """Return the file of a package, downloaded first if the package is ``hf:ORG/NAME``."""
    if not package.startswith(HUB):
        return Path(package)
    address = HubAddress.parse(package.removeprefix(HUB), "package")
    with hub_faults(address.repo):
        found = hub_client().snapshot_download(
            address.repo,
            repo_type="dataset",
            revision=address.revision or None,
            allow_patterns=[FILE],
        )
    path = Path(found) / FILE
    if not path.is_file():
        raise InputError(
            f"{package} has no {FILE}; use a repository that `calsweep package publish --to` wrote"
        )
    return path
