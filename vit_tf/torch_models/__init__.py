"""PyTorch modules as models: run as inference, their layers, attention, gradients and edits."""
