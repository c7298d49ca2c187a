"""Thin typed faces of other programs."""
