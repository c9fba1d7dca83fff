"""How does an image travel through a model? Receptive fields, skips, the first layer."""
