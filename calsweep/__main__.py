"""Makes ``python -m calsweep`` the same as ``calsweep``."""

import sys

from orchestrator.cli import main

if __name__ == "__main__":
    sys.exit(main())
