"""The verdict on a night: what is compared with what, and what raises the alarm."""
