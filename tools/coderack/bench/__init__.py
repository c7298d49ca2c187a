"""Measurements and what they are compared with."""
