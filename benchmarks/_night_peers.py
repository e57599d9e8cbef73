"""Asks Apache Otava, E-divisive and asv where series become worse, for ``nightly_commits.py``.

Runs in an environment of its own (``pip install apache-otava asv``); reads series of which more is
worse as JSON, and writes the nights that each detector finds.
"""

import json
import sys
from importlib.metadata import version

import numpy as np


def otava(series: list[float]) -> list[int]:
    """Return the change points for the worse, by Otava's defaults."""
    from otava.analysis import compute_change_points

    points, _ = compute_change_points(series)  # Of an array it finds none.
    return [int(p.index) for p in points if p.stats.mean_2 > p.stats.mean_1]


def e_divisive(series: list[float]) -> list[int]:
    """Return the change points for the worse, by E-divisive with permutations."""
    from otava.analysis import compute_change_points_orig

    points, _ = compute_change_points_orig(series, seed=0)
    ends = sorted(int(p.index) for p in points)
    levels = [float(np.mean(part)) for part in np.split(np.array(series), ends)]
    return [end for end, old, new in zip(ends, levels, levels[1:], strict=False) if new > old]


def asv(series: list[float]) -> list[int]:
    """Return asv's regressions: steps upwards that the last values have not made good."""
    from asv.step_detect import detect_regressions, detect_steps

    positions = detect_regressions(detect_steps(series))[2]
    return [int(after) for _, after, *_ in positions or ()]


def main() -> None:
    """Answer what stands on the standard input."""
    every = json.loads(sys.stdin.read())
    detectors = {"Otava": otava, "E-divisive": e_divisive, "asv": asv}
    found = {name: [ask(series) for series in every] for name, ask in detectors.items()}
    versions = {"otava": version("apache-otava"), "asv": version("asv")}
    print(json.dumps({"found": found, "versions": versions}))


if __name__ == "__main__":
    main()
