"""The shipper's process: ``python -m orchestrator.tracking --journal PATH``.

The address of the tracker comes by the environment.
"""

import argparse
import logging
import os
import sys
from pathlib import Path

from orchestrator.tracking._process import URI_VARIABLE
from trainables.common.addresses import scrubbed
from trainables.common.errors import InputError

logger = logging.getLogger("orchestrator.tracking")

NICENESS = 10


def main() -> int:
    """Deliver a journal; return 0 when all of it is delivered, else 1."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.tracking", description=__doc__)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--artifact-root", type=Path)
    parser.add_argument("--parent-pid", type=int)
    parser.add_argument("--poll-seconds", type=float, default=1.0)
    parser.add_argument("--since", type=int, default=0)
    parser.add_argument("--plugin", nargs=2, action="append", default=[])
    options = vars(parser.parse_args())
    uri = os.environ.get(URI_VARIABLE)
    if not uri:
        parser.error(f"{URI_VARIABLE} is not set")
    os.nice(NICENESS)
    _log_without_secrets(uri)
    try:
        from orchestrator.tracking._shipper import sync

        if plugins := options.pop("plugin"):
            from trainables.plugins import Pinned, load_plugins  # They import PyTorch.

            load_plugins([Pinned(*plugin) for plugin in plugins])
        shipment = sync(options.pop("journal"), uri, **options)
    except InputError as error:
        logger.error("%s", error)
        return 1
    logger.info("%d events in %d runs delivered", shipment.events, shipment.runs)
    return 0


def _log_without_secrets(uri: str) -> None:
    """Send all logs, and the traceback of what nobody foresaw, to stderr, which is a file."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Scrubbing(uri))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    sys.excepthook = lambda *error: logger.critical("unforeseen", exc_info=error)


class _Scrubbing(logging.Formatter):
    """Leaves an address's secrets out of whatever any library logs."""

    def __init__(self, uri: str) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._uri = uri

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, or the lines of a traceback."""
        return scrubbed(super().format(record), self._uri)


if __name__ == "__main__":
    sys.exit(main())
