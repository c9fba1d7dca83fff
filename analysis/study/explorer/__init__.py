"""A page for single images: what a model makes of each, from pixels to classes."""
