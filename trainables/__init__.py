"""calsweep: pure PyTorch stages of a calibration sweep."""
