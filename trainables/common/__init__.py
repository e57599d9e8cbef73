"""Tools that every other room of trainables uses."""
