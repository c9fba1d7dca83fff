"""The words that a figure is written in, and what carries them out."""
