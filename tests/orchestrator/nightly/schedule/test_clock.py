"""Which night a start belongs to: clocks that jump, repeat, and disagree a little."""

from __future__ import annotations

import time
from collections.abc import Iterator
