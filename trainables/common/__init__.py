"""Tools that all packages of trainables use."""
