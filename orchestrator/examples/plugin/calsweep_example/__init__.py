"""A loss and a calibrator for calsweep."""

from . import floored, gce

__all__ = ["floored", "gce"]
