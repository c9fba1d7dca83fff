"""From encoded images to pixels of the size that is asked for."""
