"""The process that delivers a journal: ``python -m orchestrator.tracking OPTIONS``.

OPTIONS are the arguments of ``sync`` without ``uri``, and ``plugins``, as a JSON object. The
tracker's address is in the environment variable that ``URI_VARIABLE`` names.
"""

import json
import logging
import os
import sys

from orchestrator.tracking._process import URI_VARIABLE
from trainables.common.errors import InputError
from trainables.common.paths import scrubbed

logger = logging.getLogger("orchestrator.tracking")

NICENESS = 10


def main() -> int:
    """Deliver a journal; return 1 if an ``InputError`` ended the delivery, else 0."""
    options, uri = json.loads(sys.argv[1]), os.environ[URI_VARIABLE]
    os.nice(NICENESS)
    _log_without_secrets(uri)
    try:
        from orchestrator.tracking._shipper import sync

        if plugins := options.pop("plugins"):
            from trainables.plugins import Pinned, load_plugins  # This imports PyTorch.

            load_plugins([Pinned(*plugin) for plugin in plugins], exact=False)
        shipment = sync(uri=uri, **options)
    except InputError as error:
        logger.error("%s", error)
        return 1
    logger.info("%d events in %d runs delivered", shipment.events, shipment.runs)
    return 0


def _log_without_secrets(uri: str) -> None:
    """Send all logs, and tracebacks of unexpected errors, to stderr (a file, ``shipper.log``)."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Scrubbing(uri))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    sys.excepthook = lambda *error: logger.critical("unforeseen", exc_info=error)


class _Scrubbing(logging.Formatter):
    """Removes the address's secrets from the logs of all libraries."""

    def __init__(self, uri: str) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._uri = uri

    def format(self, record: logging.LogRecord) -> str:
        """Return the message, with its traceback if it has one."""
        return scrubbed(super().format(record), self._uri)


if __name__ == "__main__":
    sys.exit(main())
