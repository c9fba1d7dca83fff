"""Forward pass of a small ViT."""

from vit_tf.scripts.benchmarks.forward_vit import contest
from vit_tf.scripts.benchmarks.training_vit import SMALL

CONTEST = contest("ViT of 6 layers x 128", SMALL, batch=256)
