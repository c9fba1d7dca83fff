"""A training step of a ViT-S/16."""

from vit_tf.scripts.benchmarks.forward_vit import CONFIG
from vit_tf.scripts.benchmarks.training_vit import contest

CONTEST = contest("ViT-S/16", CONFIG | {"num_classes": 1000}, batch=8, rounds=7)
