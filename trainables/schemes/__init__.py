"""Training schemes, which change the trained parameters over time, one file each."""

from trainables.schemes._base import SCHEMES, Scheme
