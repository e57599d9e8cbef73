"""Short histories of sweeps that have ended: each takes two steps in a copy of a sweep's folder."""

import random
from functools import cache
from pathlib import Path

from tests.outside.door import Door
from tests.outside.draw import Row
from tests.outside.history import History

BASE = {
    "executor": "in-process",
    "scheduler": "none",
    "sampler": "random",
    "refinement": "none",
    "tracker": "default",
    "submit": "none",
    "key": "none",
    "option": "none",
    "command": "read",
}
# These steps run the sweep again or take seconds; every sixth history has one of the first five.
DEAR = ("gc", "again", "move", "lose", "publish")
LONG = ("kill", "stop", "cancel", "pause", "double", "fresh", "relabel", "edit", "merge", "fraud")


class Short:
    """The sweeps of some rows and their histories; the first row must have no plugin."""

    def __init__(self, rows: tuple[Row, ...], folder: Path) -> None:
        self.rows, self.folder = rows, folder
        (folder / "scratch").mkdir()
        self.door = Door(folder / "scratch")
        first = self.ended(0)
        report = ("report", first.spec["name"], *first.storage, "--out", "../page.html")
        self.door.warm(*report, cwd=first.folder)

    @cache  # noqa: B019  # A module has one object.
    def ended(self, number: int) -> History:
        """Return the history of a sweep that nothing has disturbed."""
        found = History(self.rows[number], number, self.folder / str(number), self.door)
        found.call(*found.starting())
        found.calm = found.table()
        found.ends()
        return found

    def live(self, seed: int, folder: Path) -> None:
        """Take two or three steps that a seed draws, in a copy of one of the sweeps."""
        rng = random.Random(seed)
        history = self.ended(seed % len(self.rows)).copied(folder, self.door, seed)
        steps = history.further(2, without=(*LONG, *DEAR))
        if seed % 6 == 0:
            steps.insert(rng.randrange(3), DEAR[seed // 6])
        history.takes(steps)
