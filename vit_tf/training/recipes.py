"""How to train: recipes from scratch, of fine-tuning, of pre-training and of papers."""

import dataclasses
import typing
from typing import TYPE_CHECKING, Any

from vit_tf.common.names import lookup

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from vit_tf.models.model import VisionModel
    from vit_tf.training.optimizers import WarmupDecay

# The command line reads the fields of recipes at once: Keras and TensorFlow are imported when used.

# Optimizers of a recipe: the class in `optimizers`, and its momentum where none is specified.
OPTIMIZERS = {"adamw": ("AdamW", None), "sgd": ("SGD", 0.9), "muon": ("Muon", 0.95)}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Hyperparameters for training a classifier from scratch with `vit_tf.train`.

    The defaults suit small data sets. The optimizer is AdamW with warm-up and cosine decay.
    Gradients are clipped to norm 1, and the weight decay is 0.1, as in Steiner et al. 2021 (AugReg,
    https://arxiv.org/abs/2106.10270, section 3). Labels are smoothed by 0.1, as in Touvron et al.
    2021 (DeiT, table 9).

    There are three optimizers:

    * `"adamw"`: AdamW updates all weights. `momentum` must not be set.
    * `"sgd"`: SGD with `momentum` updates all weights. `epsilon` and `layer_decay` must not be set.
    * `"muon"`: Muon (Jordan et al. 2024; Liu et al. 2025, https://arxiv.org/abs/2502.16982) updates
      the kernels of blocks and units, with `momentum`. AdamW updates the head, the root,
      embeddings, norms and biases. Both have the same `learning_rate` and `weight_decay`.

    Args:
        epochs: number of passes over the training data.
        learning_rate: peak learning rate.
        warmup_epochs: number of epochs of warm-up, such as 5 or 0.5; None for a tenth of the run.
        schedule: decay of the learning rate, `"cosine"` or `"linear"` to 0, `"staircase"`,
            `"short_staircase"`, `"upstream_staircase"` or `"epoch_cosine"`; `WarmupDecay` describes
            them. With `"constant"`, there is no warm-up, and `LearningRateScheduler` and
            `ReduceLROnPlateau` of Keras can set the learning rate.
        weight_decay: weight decay; each step multiplies kernels by `1 - learning_rate *
            weight_decay`.
        label_smoothing: share of the target probability that is spread evenly over all classes.
        clip_norm: largest global norm of the gradients; None for no limit.
        ema: momentum of a moving average of the weights, such as 0.999; the averaged weights are
            validated, saved and returned; None for no averaging.
        rand_augment: magnitude of RandAugment, in [0, 1]; a dict sets its other arguments too, as
            in `vit_tf.data.augment`.
        mixup: alpha of MixUp, such as 0.2.
        cutmix: alpha of CutMix, such as 1.0.
        flip: mirror half of the images left to right.
        shift: largest random shift, in pixels.
        seed: seed of shuffling and augmentation.
        warmup_steps: steps until the peak learning rate, which replace `warmup_epochs`; None for
            the steps of `warmup_epochs`.
        momentum: momentum of SGD or Muon. If it is None, SGD uses 0.9 and Muon uses 0.95. If a
            momentum is given without an `optimizer`, the optimizer is SGD.
        erase: fraction of the images in which a rectangle is erased, such as 0.25.
        epsilon: epsilon of AdamW, added to the root of the second moment after the correction of
            its bias, as in optax and PyTorch; None for 1e-7 before this correction, as in Keras.
        layer_decay: ratio of the learning rate of each block of a ViT to the learning rate of the
            block above it, such as 0.75; None for the same learning rate in all blocks.
        gradient_accumulation_steps: number of batches whose gradients are averaged for an update;
            the warm-up, the schedule and the average of the weights count updates as steps.
        optimizer: `"adamw"`, `"sgd"` or `"muon"`; the list above describes them; None for
            `"adamw"`, or `"sgd"` if `momentum` is set.
        augment: preprocessing layer of Keras or KerasCV, or a list of layers, such as
            `[keras.layers.RandAugment(), keras.layers.CutMix()]`. These layers are applied in
            addition to the augmentations above, as the argument `layers` of `vit_tf.data.augment`
            describes.
        first_learning_rate: learning rate at the beginning of the warm-up.
        last_learning_rate: learning rate to which the schedule falls.
        erase_noise: whether erased rectangles are filled with noise in place of grey.
        mix_per_batch: whether MixUp and CutMix draw one weight for each batch, in place of one for
            each image.
        loss: `"softmax"`, or `"sigmoid"` for the sum over classes of binary cross-entropies, as in
            AugReg; `label_smoothing` must then be 0.

    Raises:
        ValueError: if a value is out of its range.
    """

    epochs: int = 100
    learning_rate: float = 1e-3
    warmup_epochs: float | None = None
    schedule: str = "cosine"
    weight_decay: float = 0.1
    label_smoothing: float = 0.1
    clip_norm: float | None = 1.0
    ema: float | None = None
    rand_augment: bool | float | dict = False
    mixup: float = 0.0
    cutmix: float = 0.0
    flip: bool = False
    shift: int = 0
    seed: int = 0
    warmup_steps: int | None = None
    momentum: float | None = None
    erase: float = 0.0
    epsilon: float | None = None
    layer_decay: float | None = None
    gradient_accumulation_steps: int = 1
    optimizer: str | None = None
    augment: tuple = ()
    first_learning_rate: float = 0.0
    last_learning_rate: float = 0.0
    erase_noise: bool = False
    mix_per_batch: bool = False
    loss: str = "softmax"

    def __post_init__(self) -> None:
        if self.augment != ():
            import keras

            given = self.augment
            augment = tuple(given) if isinstance(given, list | tuple) else (given,)
            if not all(isinstance(layer, keras.Layer) for layer in augment):
                raise ValueError(
                    "Expected augment to be preprocessing layers of Keras or KerasCV. "
                    f"Received: augment={given!r}"
                )
            object.__setattr__(self, "augment", augment)
        check_fields(self)
        warmup, name = self.warmup_epochs, self._optimizer
        ends_in_run = warmup is None or warmup < self.epochs
        expect(ends_in_run, "warmup_epochs", f"None or in [0, epochs={self.epochs})", self)
        has_one_unit = self.warmup_steps is None or warmup is None
        expect(has_one_unit, "warmup_steps", "None or >= 0 without warmup_epochs", self)
        lookup("optimizer", name, OPTIMIZERS)  # an unknown one raises
        lookup("loss", self.loss, dict.fromkeys(LOSSES))
        can_smooth = self.loss == "softmax" or not self.label_smoothing
        expect(can_smooth, "label_smoothing", "0 for loss='sigmoid'", self)
        takes_momentum = self.momentum is None or name != "adamw"
        expect(takes_momentum, "momentum", "None for optimizer='adamw'", self)
        for field in ("epsilon", "layer_decay"):
            expect(getattr(self, field) is None or name != "sgd", field, "None for SGD", self)

    def learning_rates(self, steps_per_epoch: int) -> "WarmupDecay":
        """The `WarmupDecay` of a run with `steps_per_epoch` steps per epoch.

        Raises:
            ValueError: if the run ends within its warm-up.
        """
        from vit_tf.training.optimizers import WarmupDecay

        share = 0 if self.schedule == CONSTANT else self.epochs / 10
        warmup = share if self.warmup_epochs is None else self.warmup_epochs
        total = self.epochs * steps_per_epoch // self.gradient_accumulation_steps
        steps = round(warmup * steps_per_epoch / self.gradient_accumulation_steps)
        steps = steps if self.warmup_steps is None else self.warmup_steps
        expect(steps < total, "warmup_steps", f"below the {total} steps of the run", self)
        return WarmupDecay(
            self.learning_rate,
            steps,
            total,
            self.schedule,
            first=self.first_learning_rate,
            last=self.last_learning_rate,
            steps_per_epoch=max(steps_per_epoch // self.gradient_accumulation_steps, 1),
        )

    @property
    def _optimizer(self) -> str:
        """The name of the optimizer, where None depends on the momentum."""
        return self.optimizer or ("adamw" if self.momentum is None else "sgd")

    def make_optimizer(self, steps_per_epoch: int) -> "keras.optimizers.Optimizer":
        """The optimizer of a run with `steps_per_epoch` steps per epoch."""
        from vit_tf.training import optimizers

        name, momentum = OPTIMIZERS[self._optimizer]
        settings: dict[str, Any] = {}
        if momentum is not None:
            settings["momentum"] = momentum if self.momentum is None else self.momentum
        if name != "SGD":
            settings["layer_decay"] = self.layer_decay
        if self.epsilon is not None:
            settings |= {"epsilon": self.epsilon, "corrected_epsilon": True}
        batches = self.gradient_accumulation_steps
        return getattr(optimizers, name)(
            _settable(self.learning_rates(steps_per_epoch)),
            weight_decay=self.weight_decay,
            global_clipnorm=self.clip_norm,
            use_ema=self.ema is not None,
            ema_momentum=self.ema or 0.0,
            gradient_accumulation_steps=batches if batches > 1 else None,
            **settings,
        )

    def to_config(self) -> dict[str, Any]:
        """The fields as a dict of what JSON holds."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if self.augment:
            import keras

            serialize = keras.saving.serialize_keras_object
            fields["augment"] = [serialize(layer) for layer in self.augment]
        return fields

    def augment_batches(self, dataset: "tf.data.Dataset", num_classes: int) -> "tf.data.Dataset":
        """Augments batches of (images, labels); unchanged if every augmentation is off."""
        from vit_tf import data

        # RandAugment of magnitude 0 or with no arguments of its own, `{}`, is not off.
        is_on = [self.mixup, self.cutmix, self.flip, self.shift, self.erase, self.augment]
        if self.rand_augment is False and not any(is_on):
            return dataset
        return data.augment(
            dataset,
            num_classes,
            seed=self.seed,
            rand_augment=self.rand_augment,
            mixup=self.mixup,
            cutmix=self.cutmix,
            flip=self.flip,
            shift=self.shift,
            erase=self.erase,
            erase_noise=self.erase_noise,
            mix_per_batch=self.mix_per_batch,
            layers=self.augment,
        )

    def rounds(self, num_batches: int) -> tuple[int, int]:
        """Number of rounds of a run, each ending with a validation, and of steps per round."""
        return self.epochs, num_batches

    def compile(
        self,
        model: "keras.Model",
        steps_per_epoch: int,
        optimizer: "keras.optimizers.Optimizer | None" = None,
    ) -> None:
        """Compile a model for this recipe, so that `model.fit(train, epochs=...)` follows it.

        With `ema`, pass `keras.callbacks.SwapEMAWeights()` to `fit` to validate the average. An
        `optimizer` replaces the recipe's.
        """
        optimizer = optimizer or self.make_optimizer(steps_per_epoch)
        compile_classifier(model, optimizer, self.label_smoothing, self.loss)


def compile_classifier(
    model: "keras.Model",
    optimizer: "keras.optimizers.Optimizer",
    label_smoothing: float = 0.0,
    loss: str = "softmax",
) -> None:
    """Compile a model for cross-entropy and top-1 accuracy, under its own strategy."""
    from vit_tf.training import objectives

    if loss == "sigmoid":
        function = objectives.SigmoidCrossEntropy()
    else:
        from_softmax = objectives.ends_in_softmax(model)
        function = objectives.SoftmaxCrossEntropy(label_smoothing, from_softmax=from_softmax)
    objectives.compile_model(model, optimizer, function, objectives.Top1Accuracy())


# What a field has to be, unless it may be None.
CHECKS = {
    "an int > 0": lambda value: isinstance(value, int) and value > 0,
    "> 0": lambda value: value > 0,
    ">= 0": lambda value: value >= 0,
    "in [0, 1)": lambda value: 0 <= value < 1,
    "in [0, 1]": lambda value: 0 <= value <= 1,
    "in (0, 1]": lambda value: 0 < value <= 1,
}
EXPECTED = {
    **dict.fromkeys(("epochs", "steps", "validations"), "an int > 0"),
    "gradient_accumulation_steps": "an int > 0",
    **dict.fromkeys(("learning_rate", "clip_norm", "epsilon"), "> 0"),
    **dict.fromkeys(("weight_decay", "mixup", "cutmix", "shift"), ">= 0"),
    **dict.fromkeys(("first_learning_rate", "last_learning_rate"), ">= 0"),
    **dict.fromkeys(("warmup_epochs", "warmup_steps"), ">= 0"),
    **dict.fromkeys(("label_smoothing", "ema", "momentum"), "in [0, 1)"),
    "erase": "in [0, 1]",
    "layer_decay": "in (0, 1]",
}


# Decays of the learning rate, which `vit_tf.training.optimizers` defines; Keras is not needed here.
CONSTANT = "constant"
SCHEDULES = ("cosine", "linear", "staircase", "short_staircase", "upstream_staircase", CONSTANT)
SCHEDULES += ("epoch_cosine",)
LOSSES = ("softmax", "sigmoid")


def _settable(schedule: "WarmupDecay") -> "WarmupDecay | float":
    """The learning rate of an optimizer; a constant one is a number, which callbacks can change."""
    return schedule.peak if schedule.decay == CONSTANT else schedule


def check_fields(recipe: "Recipe | FineTuning") -> None:
    """Raises a `ValueError` for a field of a recipe that is out of its range."""
    lookup("schedule", recipe.schedule, dict.fromkeys(SCHEDULES))  # an unknown one raises
    if recipe.schedule == CONSTANT:
        for name in ("warmup_epochs", "warmup_steps"):
            expect(not getattr(recipe, name, None), name, "0 for schedule='constant'", recipe)
    for field in dataclasses.fields(recipe):
        value, expected = getattr(recipe, field.name), EXPECTED.get(field.name)
        optional = type(None) in typing.get_args(field.type)
        if expected and not (optional and value is None):
            words = f"None or {expected}" if optional else expected
            expect(CHECKS[expected](value), field.name, words, recipe)


def expect(condition: bool, field: str, expected: str, recipe: "Recipe | FineTuning") -> None:
    """Raises a ValueError that names a field of a recipe and its value unless a condition holds."""
    if not condition:
        raise ValueError(
            f"Expected {field} to be {expected}. Received: {field}={getattr(recipe, field)!r}"
        )


@dataclasses.dataclass(frozen=True)
class FineTuning:
    """Hyperparameters for fine-tuning a classifier with `vit_tf.train`.

    The optimizer is SGD with momentum and without weight decay. The length of the training is a
    number of steps. The defaults are the values with which ViT is fine-tuned on small data sets
    (Dosovitskiy et al. 2020, appendix B.1.1).

    Args:
        steps: number of steps.
        learning_rate: peak learning rate.
        momentum: momentum of SGD.
        warmup_steps: steps until the peak learning rate; None for a fifth of all steps, 500 at
            most.
        schedule: decay of the learning rate, `"cosine"` or `"linear"` to 0, `"staircase"` or
            `"short_staircase"`; `WarmupDecay` describes them; `"constant"` as for `Recipe`.
        clip_norm: largest global norm of the gradients; None for no limit.
        ema: momentum of a moving average of the weights, such as 0.9999 for 20,000 steps; the
            averaged weights are validated, saved and returned; None for no averaging.
        mixup: alpha of MixUp, such as 0.1.
        flip: mirror half of the images left to right.
        resize: (height, width) to which training images are resized before random cropping; set
            both `resize` and `crop`, or neither; None for no resizing.
        crop: (height, width) of random crops; None for no cropping.
        validations: number of validations, evenly spaced; it must divide `steps`.
        seed: seed of shuffling and augmentation.

    Raises:
        ValueError: if a value is out of its range.
    """

    steps: int = 500
    learning_rate: float = 0.01
    momentum: float = 0.9
    warmup_steps: int | None = None
    schedule: str = "cosine"
    clip_norm: float | None = 1.0
    ema: float | None = None
    mixup: float = 0.0
    flip: bool = False
    resize: tuple | None = None
    crop: tuple | None = None
    validations: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("resize", "crop"):  # JSON has lists
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else tuple(value))
        check_fields(self)
        divides = self.steps % self.validations == 0
        expect(divides, "steps", f"a multiple of validations={self.validations}", self)
        in_run = self.warmup_steps is None or self.warmup_steps < self.steps
        expect(in_run, "warmup_steps", f"None or in [0, steps={self.steps})", self)
        both = (self.resize is None) == (self.crop is None)
        expect(both, "resize", f"as crop={self.crop}, both or none", self)

    @classmethod
    def vit(cls, num_examples: int, **changes: Any) -> "FineTuning":
        """ViT's recipe for a data set of `num_examples` examples; `changes` sets other fields."""
        fields: dict[str, Any] = {"steps": _steps(num_examples), **changes}
        return cls(**fields)

    @classmethod
    def hyperrule(
        cls,
        num_examples: int,
        image_size: tuple[int, int],
        batch_size: int = 512,
        **changes: Any,
    ) -> "FineTuning":
        """The BiT-HyperRule (Kolesnikov et al. 2019, section 3.3).

        Fewer than 20,000 examples: 500 steps. Fewer than 500,000: 10,000 steps, otherwise 20,000
        steps, both with MixUp. Images with an area below 96 x 96 pixels are resized to 160 and
        cropped to 128 pixels, others to 448 and 384. The learning rate is 0.003 for a batch size of
        512 and proportional to it.

        Args:
            num_examples: number of training examples.
            image_size: original (height, width) of the images, in pixels.
            batch_size: examples per batch.
            **changes: other fields, such as `flip=False` where mirroring changes the class.
        """
        resize, crop = (160, 128) if image_size[0] * image_size[1] < 96 * 96 else (448, 384)
        fields = {
            "steps": _steps(num_examples),
            "learning_rate": 0.003 * batch_size / 512,
            "schedule": "short_staircase" if num_examples < 20_000 else "staircase",
            "clip_norm": None,
            "mixup": 0.0 if num_examples < 20_000 else 0.1,
            "flip": True,
            "resize": (resize, resize),
            "crop": (crop, crop),
        }
        return cls(**fields | changes)

    def rounds(self, num_batches: int) -> tuple[int, int]:
        """Number of rounds of a run, each ending with a validation, and of steps per round."""
        return self.validations, self.steps // self.validations

    def make_optimizer(self) -> "keras.optimizers.Optimizer":
        """The optimizer of a run."""
        from vit_tf.training.optimizers import SGD, WarmupDecay

        share = 0 if self.schedule == CONSTANT else min(500, self.steps // 5)
        warmup = share if self.warmup_steps is None else self.warmup_steps
        return SGD(
            _settable(WarmupDecay(self.learning_rate, warmup, self.steps, self.schedule)),
            momentum=self.momentum,
            global_clipnorm=self.clip_norm,
            use_ema=self.ema is not None,
            ema_momentum=self.ema or 0.0,
        )

    def augment_batches(self, dataset: "tf.data.Dataset", num_classes: int) -> "tf.data.Dataset":
        """Augments batches of (images, labels); unchanged if every augmentation is off."""
        from vit_tf import data

        if not (self.mixup or self.flip or self.crop):
            return dataset
        return data.augment(
            dataset, num_classes, seed=self.seed, mixup=self.mixup, flip=self.flip, crop=self.crop
        )

    def to_config(self) -> dict[str, Any]:
        """The fields as a dict."""
        return dataclasses.asdict(self)

    def compile(
        self,
        model: "keras.Model",
        num_batches: int | None = None,
        optimizer: "keras.optimizers.Optimizer | None" = None,
    ) -> None:
        """Compile a model for this recipe or another optimizer; `num_batches` is ignored."""
        compile_classifier(model, optimizer or self.make_optimizer())


def _steps(num_examples: int) -> int:
    """Steps for a data set: those of the HyperRule, which are ViT's too (table 4)."""
    if num_examples < 20_000:
        return 500
    return 10_000 if num_examples < 500_000 else 20_000


@dataclasses.dataclass(frozen=True)
class Pretraining(Recipe):
    """Hyperparameters for training a `MaskedPatchPrediction` on `vit_tf.data.mask_patches`.

    The loss is the cross-entropy averaged over the corrupted patches. `accuracy` is the share of
    corrupted patches whose colour is predicted correctly.

    The fields are those of `Recipe`, but label smoothing and augmentations must be off. The colours
    to predict are computed by `mask_patches`, so apply augmentations before `mask_patches`.

    Raises:
        ValueError: if a value is out of its range.
    """

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        expect(self.loss == "softmax", "loss", "'softmax'", self)
        for name in ("label_smoothing", "mixup", "cutmix", "flip", "shift", "erase", "augment"):
            off = not getattr(self, name)
            expect(off, name, "off: images are augmented before `mask_patches`", self)
        # RandAugment of magnitude 0 or with no arguments of its own, `{}`, is not off.
        is_off = self.rand_augment is False
        expect(is_off, "rand_augment", "False: augment images before `mask_patches`", self)

    def compile(
        self,
        model: "keras.Model",
        steps_per_epoch: int,
        optimizer: "keras.optimizers.Optimizer | None" = None,
    ) -> None:
        """Compile a model for this recipe, so that `model.fit(train, epochs=...)` follows it."""
        from vit_tf.training.masked_patches import ColourAccuracy, ColourCrossEntropy
        from vit_tf.training.objectives import compile_model

        optimizer = optimizer or self.make_optimizer(steps_per_epoch)
        compile_model(model, optimizer, ColourCrossEntropy(), ColourAccuracy())


VIT = "Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929, table 3 (ImageNet) and section 3"
AUGREG = "Steiner et al. 2021, https://arxiv.org/abs/2106.10270, table 1 and section 3"
PLAIN = "Beyer et al. 2022, https://arxiv.org/abs/2205.01580"
DEIT = "Touvron et al. 2021, https://arxiv.org/abs/2012.12877, table 9, and its code"
BIT = "Kolesnikov et al. 2020, https://arxiv.org/abs/1912.11370, section 3.2 (BiT-S)"


@dataclasses.dataclass(frozen=True)
class PublishedRecipe:
    """The settings of a paper for training on ImageNet; `vit_tf.recipe` returns them by name.

    Attributes:
        source: the paper.
        model: name of the model's class.
        variant: its published size.
        arguments: further arguments of `from_variant`.
        recipe: the `Recipe`, for `vit_tf.train`.
        image_size: side of the images, in pixels.
        batch_size: examples per batch, over all devices.
        area: range of the share of an image that a random crop shows, and the distribution of
            crops, as for `vit_tf.data.load`.
        interpolation: how images are resized, as in `vit_tf.Preprocessing`.
        head_bias: initial bias of the head, which `initialize` sets.
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
    area: tuple = (0.05, 1.0, "tensorflow")
    interpolation: str = "bilinear"
    head_bias: float = 0.0
    crop: float = 0.875
    validation: float = 0.01
    repeats: int = 1

    def make_model(self, num_classes: int = 1000, **changes: Any) -> "VisionModel":
        """The model, for images of (image_size, image_size, 3) unless `changes` says otherwise."""
        from vit_tf import models  # which import Keras

        shape = (self.image_size, self.image_size, 3)
        settings = {"image_shape": shape, "num_classes": num_classes} | self.arguments | changes
        return self.initialize(getattr(models, self.model).from_variant(self.variant, **settings))

    def initialize(self, model: "VisionModel") -> "VisionModel":
        """The model, whose head gets the bias of this recipe."""
        if self.head_bias:
            model.head.bias.assign(model.head.bias * 0 + self.head_bias)
        return model

    def with_batches_of(self, batch_size: int) -> "PublishedRecipe":
        """A copy for another batch size, with a proportional learning rate (Goyal et al. 2017)."""
        rate = self.recipe.learning_rate * batch_size / self.batch_size
        recipe = dataclasses.replace(self.recipe, learning_rate=rate)
        return dataclasses.replace(self, batch_size=batch_size, recipe=recipe)


def recipe(name: str) -> "PublishedRecipe":
    """Returns the recipe of a paper by name, such as `"plain-vit-s16"`. `RECIPES` lists all names.

    Random crops (Szegedy et al. 2014) cover 5 to 100 % of the image area, with TensorFlow's
    distribution, as in the code of ViT, AugReg and BiT. Those of DeiT cover 8 to 100 %, with
    torchvision's. The guide to training compares each setting with the code of the authors.

    Each step shrinks the weights by the fraction learning rate * weight decay. In AugReg and in the
    plain ViT, AdamW shrinks them by 1e-4 at the peak learning rate of 1e-3, so the weight decay is
    0.1. BiT instead has an L2 penalty, which adds 1e-4 times the weights to the gradient. A
    momentum of 0.9 multiplies a constant gradient by 10, so the weight decay is 1e-3.

    Raises:
        ValueError: if the name is unknown.
    """
    return lookup("recipe", name, RECIPES)


def _rand_augment(level: int) -> dict[str, Any]:
    """RandAugment of two operations of a level, as these papers' code has it."""
    strength = {"operations": "tpu", "magnitude": level / 10, "magnitude_stddev": 0.0}
    return strength | {"augmentations_per_image": 2, "rate": 1.0}


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
# Level of RandAugment and alpha of MixUp of AugReg, section 3, for each size those of its code:
# light1, medium1 and medium2.
_AUGREG = {"Ti/16": (0, 0.0), "S/32": (15, 0.2)}
_AUGREG |= dict.fromkeys(("S/16", "B/32", "B/16", "L/16"), (15, 0.5))
_WIDTHS = {"T": 192, "S": 384, "B": 768, "L": 1024}


def _short(variant: str) -> str:
    return variant.lower().replace("/", "")


RECIPES = {
    f"vit-{_short(variant)}": PublishedRecipe(
        VIT,
        "ViT",
        variant,
        _VIT,
        {
            "dropout_rate": 0.1,
            "representation_dim": _WIDTHS[variant[0]],
            "activation": "gelu_tanh",
        },
    )
    for variant in ("B/32", "B/16", "L/32", "L/16")
}
RECIPES |= {
    f"augreg-{_short(variant)}": PublishedRecipe(
        AUGREG,
        "ViT",
        variant,
        dataclasses.replace(
            _ADAM,
            rand_augment=_rand_augment(level),
            mixup=mixup,
            mix_per_batch=True,
            loss="sigmoid",
        ),
        {"representation_dim": _WIDTHS[variant[0]], "activation": "gelu_tanh"},
        head_bias=-6.9,
    )
    for variant, (level, mixup) in _AUGREG.items()
}
RECIPES["plain-vit-s16"] = PublishedRecipe(
    PLAIN,
    "ViT",
    "S/16",
    dataclasses.replace(
        _ADAM, epochs=90, rand_augment=_rand_augment(10), mixup=0.2, mix_per_batch=True
    ),
    {
        "pooling": "gap",
        "position_type": "sincos",
        "representation_dim": 384,
        "activation": "gelu_tanh",
    },
    batch_size=1024,
)
# RandAugment of magnitude 9 of 10 with deviation 0.5, applied in half of the cases. The code of
# DeiT averages weights, too, but evaluates those that are not averaged.
_DEIT = Recipe(
    epochs=300,
    learning_rate=1e-3,
    warmup_epochs=5.0,
    weight_decay=0.05,
    label_smoothing=0.1,
    clip_norm=None,
    schedule="epoch_cosine",
    first_learning_rate=1e-6,
    last_learning_rate=1e-5,
    rand_augment={
        "operations": "timm",
        "magnitude": 0.9,
        "magnitude_stddev": 0.05,
        "augmentations_per_image": 2,
        "rate": 0.5,
    },
    mixup=0.8,
    cutmix=1.0,
    flip=True,
    erase=0.25,
    erase_noise=True,
    mix_per_batch=True,
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
        area=(0.08, 1.0, "torchvision"),
        interpolation="bicubic",
        repeats=3,
    )
    for variant in ("Ti/16", "S/16", "B/16")
}
RECIPES |= {
    f"bit-{_short(variant)}": PublishedRecipe(BIT, "BiT", variant, _BIT)
    for variant in ("R50x1", "R50x3", "R101x1", "R101x3", "R152x2", "R152x4")
}
