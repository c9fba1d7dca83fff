"""A training by the script, of images in memory, that kills itself.

    python tests/helpers/remote_run.py OUT STEP

The process sends itself SIGKILL when it has done so many steps, as if the machine failed. The
images are the same in every process, so that a run can be resumed in another one.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import buckets
import numpy as np
import tensorflow as tf
from keras.src.trainers import trainer
from PIL import Image
from resume_worker import Kill

import vit_tf
from vit_tf.scripts import train as train_script

TINY = "--image-size 8 --take 40 --epochs 3 --batch-size 12 --patch-size 8 --num-layers 1"
TINY += " --num-heads 1 --hidden-dim 16 --mlp-dim 16 --dropout-rate 0.1 --ema 0.9 --mixup 0.2"
TINY += " --strategy none --save-every 2"


def write_photos(folder, rng):
    """Two classes with 30 images each, at an address."""
    for number in range(60):
        subfolder = f"{folder}/{('ape', 'bee')[number % 2]}"
        tf.io.gfile.makedirs(subfolder)
        with tf.io.gfile.GFile(f"{subfolder}/{number}.png", "wb") as file:
            Image.fromarray(rng.integers(0, 256, (8, 8, 3)).astype("uint8")).save(file, "PNG")
    return folder


def run(photos, out, *kills):
    """Train until the end or the kill; the script's exit status."""
    real = vit_tf.train

    def train(*args, callbacks=(), **kwargs):
        return real(*args, callbacks=[*callbacks, *kills], **kwargs)

    vit_tf.train = train
    try:
        return train_script.main([*TINY.split(), "--data", photos, "--out", str(out)])
    finally:
        vit_tf.train = real


if __name__ == "__main__":
    out, step = sys.argv[1:]
    buckets.serve_buckets(buckets.FtpBucket)
    photos = write_photos("ram://photos", np.random.default_rng(0))
    trainer.model_supports_jit = lambda model: False  # as in the tests, whose bits are compared
    run(photos, out, Kill(int(step)))
