"""Photographs of a TFDS data set, read for training and for evaluation."""

from vit_tf.scripts.benchmarks.input import contest_of

CONTEST = contest_of(tfds=True)
