"""The explorer: one self-contained page about single images."""
