"""Trains with augmentations, from the start or from where an earlier run was killed.

    python tests/helpers/resume_worker.py AUGMENTATION FOLDER STEP SIGNAL

The process sends itself the signal when it has done so many steps. Its state is saved every three
steps.
"""

import gc
import os
import signal
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

from vit_tf import MaskedPatchPrediction, ViT, data
from vit_tf.training.checkpointing import BackgroundWriter
from vit_tf.training.recipes import FineTuning, Pretraining, Recipe
from vit_tf.training.runs import train

EVERY = {
    "mixup": 0.4,
    "cutmix": 1.0,
    "flip": True,
    "shift": 2,
    "rand_augment": {"magnitude": 0.9, "augmentations_per_image": 1},
}
# RandAugment takes long to trace.
ALONE = [name for name in EVERY if name != "rand_augment"]
COMMON = {"epochs": 3, "ema": 0.6}
TUNED = {"mixup": 0.4, "flip": True, "resize": (10, 10), "crop": (8, 8)}
RECIPES = {
    "none": Recipe(**COMMON),
    **{name: Recipe(**COMMON, **{name: EVERY[name]}) for name in ALONE},
    "every": Recipe(**COMMON, **EVERY),
    "fast": Recipe(**COMMON, **{name: EVERY[name] for name in ALONE}),
    # A pass has 4 steps, so that a round is one and a half.
    "fine-tuning": FineTuning(steps=18, validations=3, ema=0.6, **TUNED),
    "masks": Pretraining(**COMMON),
}


def make_run(name):
    """A tiny model with dropout, a recipe, and the digits to train and to validate it on."""
    keras.utils.set_random_seed(3)
    recipe = RECIPES[name]
    side = getattr(recipe, "resize", None) or (8, 8)
    training, validation = data.load(
        "digits",
        image_size=side,
        splits=("train", "validation"),
        take={"train": 60, "validation": 20},
        batch_size=16,
    )
    if name == "fine-tuning":
        validation = validation.map(lambda images, labels: (images[:, 1:9, 1:9], labels))
    if name == "masks":
        model = ViT((8, 8, 3), 4, 1, 2, 8, 8, num_classes=10, dropout_rate=0.2)
        training = data.augment(training, 10, **EVERY | {"rand_augment": False})
        masks = {"grid": model.token_grid, "preprocessing": model.preprocessing}
        training = data.mask_patches(training, **masks)
        validation = data.mask_patches(validation, fixed=True, **masks)
        return MaskedPatchPrediction(model), recipe, training, validation
    layers = [keras.layers.Flatten(), keras.layers.Dropout(0.2), keras.layers.Dense(10)]
    return keras.Sequential([keras.Input((8, 8, 3)), *layers]), recipe, training, validation


def run(name, folder, callbacks=(), save_every=None):
    """Train to the end; all weights of the model and its history."""
    model, *rest = make_run(name)
    more = {"callbacks": callbacks, "save_every": save_every}
    history = train(model, *rest, folder, verbose=0, **more)
    return [np.asarray(weight) for weight in model.get_weights()], history


class Kill(keras.callbacks.Callback):
    """Sends a signal to the process after so many steps, or so many batches of validations."""

    def __init__(self, step, number=signal.SIGKILL, validation=False):
        super().__init__()
        self.left, self.number, self.validation = step, number, validation

    def on_train_batch_end(self, batch, logs=None):
        self._count(not self.validation)

    def on_test_batch_end(self, batch, logs=None):
        self._count(self.validation)

    def _count(self, counts):
        self.left -= counts
        if counts and not self.left:
            for writer in gc.get_objects():  # what was handed to the thread is on the disk
                if isinstance(writer, BackgroundWriter):
                    writer.finish()
            os.kill(os.getpid(), self.number)


if __name__ == "__main__":
    name, folder, *moment = sys.argv[1:]
    run(name, folder, [Kill(*map(int, moment))], save_every=3)
