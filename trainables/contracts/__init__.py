"""Checks that all parts must pass, built-in parts as well as those of plugins."""

from trainables.contracts.check import Check, checks_of
from trainables.contracts.losses import LOSS_CHECKS, batch, seasoned, settings, value_and_gradient
from trainables.contracts.maps import CALIBRATOR_CHECKS, draw_rows
from trainables.contracts.no_waiting import NoWaiting
from trainables.contracts.require import require
