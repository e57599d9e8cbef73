"""Calibration of logits that were computed elsewhere."""
