"""Readings, expectations and history in; findings out. No I/O, no clock, no constants of one GPU model."""
