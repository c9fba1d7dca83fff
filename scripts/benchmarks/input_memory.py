"""Whether memory stays flat while photographs of a folder are read for training."""

import os

import numpy as np

from vit_tf.scripts.benchmarks.contest import Contest, Growth, Ratio
from vit_tf.scripts.benchmarks.input import BATCH, SIZE, batches_of_training

IMAGES, FIRST = 50_000, 5_000
# Batches whose memory is read at either end, as some are in the making at any time.
READINGS = 10


def resident_memory():
    """Memory of this process that is in use now, in MB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def growth(batches, images, first, readings):
    """By how many MB memory grows while images are read, epoch after epoch.

    Args:
        batches: data set of (images, labels).
        images: number of them to read.
        first: of these, how many are read before memory counts.
        readings: number of batches of which the median is taken, after those and at the end.
    """
    memory, seen = [], []
    while not seen or seen[-1] < images:
        for found, _ in batches:
            seen.append(len(found) + (seen[-1] if seen else 0))
            memory.append(resident_memory())
    start = np.searchsorted(seen, first)
    return np.median(memory[-readings:]) - np.median(memory[start : start + readings])


def train():
    """A function that reads `IMAGES` images of the folder for training."""
    batches = batches_of_training(tfds=False)
    return lambda: Growth(growth(batches, IMAGES, FIRST, READINGS))


CONTEST = Contest(
    f"{IMAGES:,} photographs at {SIZE} px from a folder in batches of {BATCH}, "
    f"after the first {FIRST:,}",
    {"train": train},
    (Ratio((), 200, "growth", of="train"),),
    once=("train",),
    rounds=1,
)
