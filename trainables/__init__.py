"""calsweep: pure PyTorch stages of a calibration sweep."""

import getpass
import os

try:
    getpass.getuser()
except (KeyError, OSError):
    # A container may run as a number without a name, which torch's optimizers look up.
    os.environ["USER"] = str(os.getuid())
