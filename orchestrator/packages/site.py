"""A page of a package, and the package beside it."""

import json
from pathlib import Path
from typing import Any

from orchestrator.logits.files import make_folder, write_whole
from orchestrator.packages.derive import cell_record
from orchestrator.packages.package import PAGE, Package
from orchestrator.storage.provenance import library_version
from orchestrator.tables.arrange import build_table
from orchestrator.view import environment

ARCHIVE = "package.zip"
SHORT = 12


def write_site(package: Package, site: Path) -> list[Path]:
    """Write page and archive of a package into a folder; return the files.

    Raises:
        InputError: If the package is damaged, or the folder cannot be written.
    """
    text = render_site(package)
    folder = make_folder(site)
    write_whole(folder / PAGE, lambda stream: stream.write(text.encode()))
    return [folder / PAGE, package.pack(folder / ARCHIVE)]


def render_site(package: Package) -> str:
    """Return the page: tables, and for every cell its configuration and how to compute it again."""
    results = package.results
    names = list(dict.fromkeys(ledger.sweep for ledger in package.ledgers))
    tables = [
        build_table([result for result in results if result.task == task])
        for task in dict.fromkeys(result.task for result in results)
    ]
    page = environment().get_template("site.html")
    return page.render(
        name=", ".join(names),
        tables=tables,
        cells=[_cell(cell_record(package, cell)) for cell in package.cells],
        several=len(tables) > 1,
        facts=_facts(package),
        version=library_version("calsweep"),
    )


def _cell(record: dict[str, Any]) -> dict[str, Any]:
    """Return what the page shows of a cell."""
    configuration = json.dumps(record["configuration"], ensure_ascii=False, sort_keys=True)
    return {**record, "trial": record["trial"][:SHORT], "configuration": configuration}


def _facts(package: Package) -> list[tuple[str, str]]:
    found: dict[str, dict[str, None]] = {}

    def add(name: str, text: str) -> None:
        found.setdefault(name, {})[text] = None

    for ledger in package.ledgers:
        add("Sweep", f"{ledger.sweep} {ledger.sweep_id}")
        add("Code", ledger.git_commit or "not known")
        versions = ledger.provenance.get("versions") or {}
        add("Versions", ", ".join(f"{name} {number}" for name, number in versions.items()))
    for result in package.results:
        add(f"Data of {result.task}", result.fingerprint)
    add("Bins", str(package.header.get("bins")))
    add("License", str(package.header.get("license")))
    told = ((name, "; ".join(filter(None, texts))) for name, texts in found.items())
    return [(name, text) for name, text in told if text]
