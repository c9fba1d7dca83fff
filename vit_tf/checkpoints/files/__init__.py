"""File formats of checkpoints: named tensors, read one at a time."""
