"""Runs that are killed: their processes, and the files that they leave."""
