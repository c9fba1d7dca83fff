"""Recipes of papers by name: model, training, images and batches, as they were published."""

import dataclasses

from vit_tf.names import lookup
from vit_tf.training.recipes import Recipe

VIT = "Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929, table 3 (ImageNet) and section 3"
AUGREG = "Steiner et al. 2021, https://arxiv.org/abs/2106.10270, table 1 and section 3"
PLAIN = "Beyer et al. 2022, https://arxiv.org/abs/2205.01580"
DEIT = "Touvron et al. 2021, https://arxiv.org/abs/2012.12877, table 9, and its code"
BIT = "Kolesnikov et al. 2020, https://arxiv.org/abs/1912.11370, section 3.2 (BiT-S)"


@dataclasses.dataclass(frozen=True)
class PublishedRecipe:
    """All that a paper says of a training on ImageNet; `vit_tf.recipe` gives it by name.

    Attributes:
        source: the paper.
        model: name of the model's class.
        variant: its published size.
        arguments: further arguments of `from_variant`.
        recipe: the `Recipe`, for `vit_tf.train`.
        image_size: side of the images, in pixels.
        batch_size: examples per batch, over all devices.
        area: range of the share of an image that a random crop shows.
        crop: the share of the shorter side that a validation shows.
        validation: the share of the train split that is held out: its last images.
        repeats: how often each image is repeated in an epoch, as for `vit_tf.data.load`.
    """

    source: str
    model: str
    variant: str
    recipe: Recipe
    arguments: dict = dataclasses.field(default_factory=dict)
    image_size: int = 224
    batch_size: int = 4096
    area: tuple = (0.05, 1.0)
    crop: float = 0.875
    validation: float = 0.01
    repeats: int = 1

    def make_model(self, num_classes=1000, **changes):
        """The model, for images of (image_size, image_size, 3) unless `changes` says otherwise."""
        import vit_tf

        shape = (self.image_size, self.image_size, 3)
        settings = {"image_shape": shape, "num_classes": num_classes} | self.arguments | changes
        return getattr(vit_tf, self.model).from_variant(self.variant, **settings)

    def with_batches_of(self, batch_size):
        """The same for another batch size: the learning rate is scaled by as much.

        Linear scaling is that of Goyal et al. 2017 (https://arxiv.org/abs/1706.02677), which BiT
        uses; the papers on ViTs have none. The steps of the warm-up stay as they are.
        """
        rate = self.recipe.learning_rate * batch_size / self.batch_size
        recipe = dataclasses.replace(self.recipe, learning_rate=rate)
        return dataclasses.replace(self, batch_size=batch_size, recipe=recipe)


def recipe(name):
    """Returns a `PublishedRecipe` by name, such as `"plain-vit-s16"`; `RECIPES` lists all.

    Random crops cover 5 to 100 % of the image area, as in the code of these papers (Szegedy et al.
    2014). Weight decay is relative to the learning rate: the AdamW of AugReg and of the plain ViT
    shrinks weights by 1e-4 per step at its peak learning rate of 1e-3, which is a weight decay of
    0.1. BiT's L2 penalty adds 1e-4 of the weights to the gradient; with a momentum of 0.9 this is
    equivalent to a weight decay of 1e-3.

    Raises:
        ValueError: for an unknown name.
    """
    return lookup("recipe", name, RECIPES)


def _rand_augment(level, number=2):
    """RandAugment of so many operations of a level, as these papers' code has it."""
    strength = {"operations": "tpu", "magnitude": level / 10, "magnitude_stddev": 0.0}
    return strength | {"augmentations_per_image": number, "rate": 1.0}


_VIT = Recipe(
    epochs=300,
    learning_rate=3e-3,
    warmup_steps=10_000,
    weight_decay=0.3,
    label_smoothing=0.0,
    flip=True,
    epsilon=1e-8,
)
# The epsilon of flax' and optax' Adam.
_ADAM = dataclasses.replace(_VIT, learning_rate=1e-3, weight_decay=0.1, epsilon=1e-8)
_BIT = Recipe(
    epochs=90,
    learning_rate=0.03 * 4096 / 256,
    warmup_steps=5000,
    schedule="upstream_staircase",
    weight_decay=1e-3,
    label_smoothing=0.0,
    clip_norm=None,
    flip=True,
    momentum=0.9,
)
# Levels of RandAugment and alphas of MixUp of AugReg, section 3; for each size that of its code.
_LEVELS = {"light1": (0, 0.0), "light2": (10, 0.2), "medium2": (15, 0.5)}
_AUGREG = {"Ti/16": "light1", "S/32": "light2", "S/16": "medium2", "B/32": "medium2"}
_AUGREG |= {"B/16": "medium2", "L/16": "medium2"}
_WIDTHS = {"T": 192, "S": 384, "B": 768, "L": 1024}


def _short(variant):
    return variant.lower().replace("/", "")


RECIPES = {
    f"vit-{_short(variant)}": PublishedRecipe(
        VIT,
        "ViT",
        variant,
        _VIT,
        {"dropout_rate": 0.1, "representation_dim": _WIDTHS[variant[0]]},
    )
    for variant in ("B/32", "B/16", "L/32", "L/16")
}
RECIPES |= {
    f"augreg-{_short(variant)}": PublishedRecipe(
        AUGREG,
        "ViT",
        variant,
        dataclasses.replace(
            _ADAM, rand_augment=_rand_augment(_LEVELS[level][0]), mixup=_LEVELS[level][1]
        ),
        {"representation_dim": _WIDTHS[variant[0]]},
    )
    for variant, level in _AUGREG.items()
}
RECIPES["plain-vit-s16"] = PublishedRecipe(
    PLAIN,
    "ViT",
    "S/16",
    dataclasses.replace(_ADAM, epochs=90, rand_augment=_rand_augment(10), mixup=0.2),
    {"pooling": "gap", "position_type": "sincos", "representation_dim": 384},
    batch_size=1024,
)
# RandAugment of magnitude 9 of 10 with deviation 0.5, applied in half of the cases. Rates fall to
# 0 here, to 1e-5 in the code; batches of unlike size scale the rate.
_DEIT = Recipe(
    epochs=300,
    learning_rate=1e-3,
    warmup_epochs=5.0,
    weight_decay=0.05,
    label_smoothing=0.1,
    clip_norm=None,
    ema=0.99996,
    rand_augment={
        "magnitude": 0.9,
        "magnitude_stddev": 0.05,
        "augmentations_per_image": 2,
        "rate": 0.5,
    },
    mixup=0.8,
    cutmix=1.0,
    flip=True,
    erase=0.25,
    epsilon=1e-8,
)
RECIPES |= {
    f"deit-{_short(variant)}": PublishedRecipe(
        DEIT,
        "ViT",
        variant,
        _DEIT,
        {"stochastic_depth": 0.1},
        batch_size=1024,
        area=(0.08, 1.0),
        repeats=3,
    )
    for variant in ("Ti/16", "S/16", "B/16")
}
RECIPES |= {
    f"bit-{_short(variant)}": PublishedRecipe(BIT, "BiT", variant, _BIT)
    for variant in ("R50x1", "R50x3", "R101x1", "R101x3", "R152x2", "R152x4")
}
