"""What every part keeps to, whatever its formula: checks of ours, and of a plugin's parts."""

from trainables.contracts.check import Check, checks_of
from trainables.contracts.losses import LOSS_CHECKS, batch, seasoned, settings, value_and_gradient
from trainables.contracts.maps import CALIBRATOR_CHECKS, draw_rows
from trainables.contracts.no_waiting import NoWaiting
from trainables.contracts.require import require
