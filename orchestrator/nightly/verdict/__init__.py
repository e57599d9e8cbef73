"""The verdict on a night: its comparisons, and the rules that raise the alarm."""
