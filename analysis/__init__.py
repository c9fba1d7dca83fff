"""Measurements of what a vision model has learned."""
