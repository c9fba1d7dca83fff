"""The same on few images, which takes about two minutes."""

from vit_tf.scripts.benchmarks.interventions import contest

CONTEST = contest(4, 1)
