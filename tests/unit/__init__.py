"""Tests of the Python package: no root, no network, seconds."""
