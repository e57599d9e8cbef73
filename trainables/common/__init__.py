"""Used by every other room of trainables."""
