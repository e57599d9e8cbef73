"""The PyTorch part of calsweep: data, networks, methods, calibrators, and a trial's stages."""

import getpass
import os

try:
    getpass.getuser()
except (KeyError, OSError):
    # Torch's optimizers look up the user's name, which is missing for some users of containers.
    os.environ["USER"] = str(os.getuid())
