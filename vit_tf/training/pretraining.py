"""Pre-training without labels: the recipe of masked patch prediction."""

import dataclasses

from vit_tf.training.recipes import Recipe, expect


@dataclasses.dataclass(frozen=True)
class Pretraining(Recipe):
    """Hyperparameters for training a `MaskedPatchPrediction` on `vit_tf.data.mask_patches`.

    Cross-entropy averaged over the corrupted patches; `accuracy` is the share of them whose colour
    is predicted correctly.

    The fields are those of `Recipe`. Label smoothing and augmentations are off: colours are those
    of the augmented image, so augment before `mask_patches`.

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
        from vit_tf.training.masked_patches import ColourAccuracy, ColourCrossEntropy
        from vit_tf.training.objectives import compile_model

        optimizer = self.make_optimizer(steps_per_epoch)
        compile_model(model, optimizer, ColourCrossEntropy(), ColourAccuracy())
