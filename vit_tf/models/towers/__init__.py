"""Towers for images that were trained beside one for texts."""
