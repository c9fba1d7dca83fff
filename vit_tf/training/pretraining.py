"""Pre-training without labels: the recipe of masked patch prediction."""

import dataclasses

from vit_tf.training.masked_patches import ColourAccuracy, ColourCrossEntropy
from vit_tf.training.objectives import compile_model
from vit_tf.training.recipes import Recipe, expect


@dataclasses.dataclass(frozen=True)
class Pretraining(Recipe):
    """How to train a `MaskedPatchPrediction`, for `vit_tf.train`, on `vit_tf.data.mask_patches`.

    Cross-entropy averaged over the corrupted patches; `accuracy` is the share of them whose colour
    is predicted.

    Args:
        epochs, learning_rate, warmup_epochs, schedule, weight_decay, clip_norm, ema: as for
            `Recipe`.
        label_smoothing, rand_augment, mixup, cutmix, flip, shift, erase: off. Colours are those of
            the augmented image, so that augmentations come before `mask_patches`.

    Raises:
        ValueError: for a value out of its range.
    """

    label_smoothing: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        # RandAugment of magnitude 0 or with no arguments of its own, `{}`, is not off.
        plain = self.rand_augment is False
        expect(plain, "rand_augment", "False: augment images before `mask_patches`", self)
        for name in ("label_smoothing", "mixup", "cutmix", "flip", "shift", "erase"):
            off = not getattr(self, name)
            expect(off, name, "off: images are augmented before `mask_patches`", self)

    def compile(self, model, steps_per_epoch):
        """Compile a model for this recipe, so that `model.fit(train, epochs=...)` follows it."""
        optimizer = self.optimizer(steps_per_epoch)
        compile_model(model, optimizer, ColourCrossEntropy(), ColourAccuracy())
