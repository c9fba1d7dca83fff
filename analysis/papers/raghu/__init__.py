"""Raghu et al. 2021: "Do Vision Transformers See Like Convolutional Neural Networks?"."""

from ..vocabulary import Paper

RAGHU = Paper("Raghu et al. (2021)", "https://arxiv.org/abs/2108.08810", prefix="", rank=1)
