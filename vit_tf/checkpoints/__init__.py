"""Public checkpoints: files of named tensors, and how they become the weights of a model."""
