"""The shipper's process: ``python -m orchestrator.tracking --journal PATH --uri URI``."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from orchestrator.tracking._process import URI_VARIABLE
from trainables.errors import InputError

logger = logging.getLogger("orchestrator.tracking")

NICENESS = 10


def main() -> int:
    """Deliver a journal; return 0 when all of it is delivered, else 1."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.tracking", description=__doc__)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--uri", default=os.environ.get(URI_VARIABLE))
    parser.add_argument("--artifact-root", type=Path)
    parser.add_argument("--parent-pid", type=int)
    parser.add_argument("--poll-seconds", type=float, default=1.0)
    parser.add_argument("--since", type=int, default=0)
    parser.add_argument("--follow", action="store_true")
    options = vars(parser.parse_args())
    if not options["uri"]:
        parser.error(f"no --uri, and {URI_VARIABLE} is not set")
    os.nice(NICENESS)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    try:
        from orchestrator.tracking._shipper import ship

        shipment = ship(options.pop("journal"), options.pop("uri"), **options)
    except InputError as error:
        logger.error("%s", error)
        return 1
    logger.info("%d events in %d runs delivered", shipment.events, shipment.runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
