"""What every other room of trainables uses."""
