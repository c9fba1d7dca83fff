"""How to train: recipes from scratch, of fine-tuning and of pre-training, without a model."""

import dataclasses

from vit_tf.names import lookup

# The command line reads the fields of recipes at once: Keras and TensorFlow are imported when used.

# Optimizers of a recipe: the class in `optimizers`, and its momentum where none is specified.
OPTIMIZERS = {"adamw": ("AdamW", None), "sgd": ("SGD", 0.9), "muon": ("Muon", 0.95)}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Hyperparameters for training a classifier from scratch with `vit_tf.train`.

    The defaults suit small data sets: AdamW with warm-up and cosine decay, gradients clipped to
    norm 1 and a weight decay of 0.1 as in Steiner et al. 2021 (AugReg,
    https://arxiv.org/abs/2106.10270, section 3), labels smoothed by 0.1 as in Touvron et al.
    2021 (DeiT, table 9).

    Args:
        epochs: number of passes over the training data.
        learning_rate: peak learning rate.
        warmup_epochs: epochs until the peak, fractions allowed; None for a tenth of the run.
        schedule: decay after the peak: `"cosine"` or `"linear"` to 0, `"staircase"`,
            `"short_staircase"` or `"upstream_staircase"`; see `WarmupDecay`.
        weight_decay: weight decay; a step shrinks a kernel by `learning_rate * weight_decay`.
        label_smoothing: probability that label smoothing spreads over all classes.
        clip_norm: largest global norm of the gradients; None for no limit.
        ema: momentum of an exponential moving average of the weights, such as 0.999; the averaged
            weights are validated, saved and returned; None for no averaging.
        rand_augment: magnitude of RandAugment, in [0, 1]; or a dict of its arguments, as for
            `vit_tf.data.augment`.
        mixup: alpha of MixUp, such as 0.2.
        cutmix: alpha of CutMix, such as 1.0.
        flip: mirror half of the images left to right.
        shift: largest random shift, in pixels.
        seed: seed of shuffling and augmentation.
        warmup_steps: steps until the peak, in place of `warmup_epochs`; None for `warmup_epochs`.
        momentum: momentum of SGD or Muon; without `optimizer`, it selects SGD; None for 0.9 with
            SGD and 0.95 with Muon.
        erase: fraction of the images in which a rectangle is erased, such as 0.25.
        epsilon: epsilon of AdamW, added to the root of the corrected second moment as in optax and
            PyTorch; not for SGD; None for that of Keras, 1e-7 before the correction.
        layer_decay: factor of the learning rate from each block of a ViT to the one below; not for
            SGD; None for one learning rate.
        gradient_accumulation_steps: number of batches whose gradients are averaged for an update;
            updates count as the steps of the warm-up, the schedule and the average of weights.
        optimizer: `"adamw"`, `"sgd"` or `"muon"`; Muon (Jordan et al. 2024; Liu et al. 2025,
            https://arxiv.org/abs/2502.16982) updates the kernels within a model, AdamW its head,
            root, embeddings, norms and biases, both with `learning_rate` and `weight_decay`; None
            for adamw, or sgd with `momentum`.

    Raises:
        ValueError: for a value out of its range.
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

    def __post_init__(self):
        from vit_tf.training.optimizers import DECAYS

        warmup, clip, ema = self.warmup_epochs, self.clip_norm, self.ema
        lookup("schedule", self.schedule, DECAYS)
        expect(isinstance(self.epochs, int) and self.epochs > 0, "epochs", "an int > 0", self)
        expect(self.learning_rate > 0, "learning_rate", "> 0", self)
        in_run = warmup is None or 0 <= warmup < self.epochs
        expect(in_run, "warmup_epochs", f"None or in [0, epochs={self.epochs})", self)
        steps, momentum = self.warmup_steps, self.momentum
        alone = steps is None or (steps >= 0 and warmup is None)
        expect(alone, "warmup_steps", "None or >= 0 without warmup_epochs", self)
        expect(momentum is None or 0 <= momentum < 1, "momentum", "None or in [0, 1)", self)
        expect(self.weight_decay >= 0, "weight_decay", ">= 0", self)
        expect(0 <= self.label_smoothing < 1, "label_smoothing", "in [0, 1)", self)
        expect(clip is None or clip > 0, "clip_norm", "None or > 0", self)
        expect(ema is None or 0 <= ema < 1, "ema", "None or in [0, 1)", self)
        for name in ("mixup", "cutmix", "shift"):
            expect(getattr(self, name) >= 0, name, ">= 0", self)
        expect(0 <= self.erase <= 1, "erase", "in [0, 1]", self)
        lookup("optimizer", self._optimizer, dict.fromkeys(OPTIMIZERS))
        without = momentum is None or self._optimizer != "adamw"
        expect(without, "momentum", "None for optimizer='adamw'", self)
        epsilon, layer_decay = self.epsilon, self.layer_decay
        sgd = self._optimizer == "sgd"
        right = epsilon is None or (epsilon > 0 and not sgd)
        expect(right, "epsilon", "None or > 0, and None for SGD", self)
        right = layer_decay is None or (0 < layer_decay <= 1 and not sgd)
        expect(right, "layer_decay", "None or in (0, 1], and None for SGD", self)
        steps = self.gradient_accumulation_steps
        right = isinstance(steps, int) and steps > 0
        expect(right, "gradient_accumulation_steps", "an int > 0", self)

    def learning_rates(self, steps_per_epoch):
        """The `WarmupDecay` of a run with `steps_per_epoch` steps per epoch.

        Raises:
            ValueError: if the run ends within its warm-up.
        """
        from vit_tf.training.optimizers import WarmupDecay

        warmup = self.epochs / 10 if self.warmup_epochs is None else self.warmup_epochs
        total = self.epochs * steps_per_epoch // self.gradient_accumulation_steps
        steps = round(warmup * steps_per_epoch / self.gradient_accumulation_steps)
        steps = steps if self.warmup_steps is None else self.warmup_steps
        expect(steps < total, "warmup_steps", f"below the {total} steps of the run", self)
        return WarmupDecay(self.learning_rate, steps, total, self.schedule)

    @property
    def _optimizer(self):
        """The name of the optimizer, where None depends on the momentum."""
        return self.optimizer or ("adamw" if self.momentum is None else "sgd")

    def make_optimizer(self, steps_per_epoch):
        """The optimizer of a run with `steps_per_epoch` steps per epoch."""
        from vit_tf.training import optimizers

        settings = {
            "learning_rate": self.learning_rates(steps_per_epoch),
            "weight_decay": self.weight_decay,
            "global_clipnorm": self.clip_norm,
            "use_ema": self.ema is not None,
            "ema_momentum": self.ema or 0.0,
        }
        if self.gradient_accumulation_steps > 1:
            settings |= {"gradient_accumulation_steps": self.gradient_accumulation_steps}
        name, momentum = OPTIMIZERS[self._optimizer]
        if momentum is not None:
            settings |= {"momentum": momentum if self.momentum is None else self.momentum}
        if name != "SGD":
            settings |= {"layer_decay": self.layer_decay}
        if self.epsilon is not None:
            settings |= {"epsilon": self.epsilon, "corrected_epsilon": True}
        return getattr(optimizers, name)(**settings)

    def to_config(self):
        """The fields as a dict; newer fields only if they are not off."""
        fields = dataclasses.asdict(self)
        later = ("warmup_steps", "momentum", "epsilon", "layer_decay", "optimizer")
        off = {"erase": 0.0, "gradient_accumulation_steps": 1} | dict.fromkeys(later)
        return {k: v for k, v in fields.items() if k not in off or v != off[k]}

    def augment(self, dataset, num_classes):
        """Augments batches of (images, labels); unchanged if every augmentation is off."""
        from vit_tf import data

        mild = {name: getattr(self, name) for name in ("mixup", "cutmix", "flip", "shift", "erase")}
        # RandAugment of magnitude 0 or with no arguments of its own, `{}`, is not off.
        if self.rand_augment is False and not any(mild.values()):
            return dataset
        return data.augment(
            dataset, num_classes, rand_augment=self.rand_augment, seed=self.seed, **mild
        )

    def rounds(self, num_batches):
        """Number of rounds of a run, each ending with a validation, and of steps per round."""
        return self.epochs, num_batches

    def compile(self, model, steps_per_epoch):
        """Compile a model for this recipe, so that `model.fit(train, epochs=...)` follows it.

        With `ema`, give `fit` a `keras.callbacks.SwapEMAWeights()` to validate the average.
        """
        compile_classifier(model, self.make_optimizer(steps_per_epoch), self.label_smoothing)


def compile_classifier(model, optimizer, label_smoothing=0.0):
    """Compile a model for cross-entropy and top-1 accuracy, under its own strategy."""
    from vit_tf.training.objectives import SoftmaxCrossEntropy, Top1Accuracy, compile_model

    compile_model(model, optimizer, SoftmaxCrossEntropy(label_smoothing), Top1Accuracy())


def expect(condition, field, expected, recipe):
    """Raises a ValueError that names a field of a recipe and its value unless a condition holds."""
    if not condition:
        raise ValueError(
            f"Expected {field} to be {expected}. Received: {field}={getattr(recipe, field)!r}"
        )


@dataclasses.dataclass(frozen=True)
class FineTuning:
    """Hyperparameters for fine-tuning a classifier with `vit_tf.train`.

    SGD with momentum and no weight decay, for a number of steps. The defaults are those of ViT
    (Dosovitskiy et al. 2020, appendix B.1.1) on a small data set.

    Args:
        steps: number of steps.
        learning_rate: peak learning rate.
        momentum: momentum of SGD.
        warmup_steps: steps until the peak; None for a fifth of all, 500 at most.
        schedule: decay after the peak: `"cosine"` or `"linear"` to 0, `"staircase"` or
            `"short_staircase"`; see `WarmupDecay`.
        clip_norm: largest global norm of the gradients; None for no limit.
        ema: momentum of an exponential moving average of the weights, such as 0.9999 for 20,000
            steps; the averaged weights are validated, saved and returned; None for no averaging.
        mixup: alpha of MixUp, such as 0.1.
        flip: mirror half of the images left to right.
        resize: (height, width) to which training images are resized before `crop`; None without
            `crop`.
        crop: (height, width) of random crops; None for no cropping.
        validations: number of validations, evenly spaced; must divide `steps`.
        seed: seed of shuffling and augmentation.

    Raises:
        ValueError: for a value out of its range.
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

    def __post_init__(self):
        from vit_tf.training.optimizers import DECAYS

        for name in ("resize", "crop"):  # JSON has lists
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else tuple(value))
        warmup, clip, ema, crop = self.warmup_steps, self.clip_norm, self.ema, self.crop
        lookup("schedule", self.schedule, DECAYS)
        for name in ("steps", "validations"):
            value = getattr(self, name)
            expect(isinstance(value, int) and value > 0, name, "an int > 0", self)
        divides = self.steps % self.validations == 0
        expect(divides, "steps", f"a multiple of validations={self.validations}", self)
        expect(self.learning_rate > 0, "learning_rate", "> 0", self)
        expect(0 <= self.momentum < 1, "momentum", "in [0, 1)", self)
        in_run = warmup is None or 0 <= warmup < self.steps
        expect(in_run, "warmup_steps", f"None or in [0, steps={self.steps})", self)
        expect(clip is None or clip > 0, "clip_norm", "None or > 0", self)
        expect(ema is None or 0 <= ema < 1, "ema", "None or in [0, 1)", self)
        expect(self.mixup >= 0, "mixup", ">= 0", self)
        expect((self.resize is None) == (crop is None), "resize", f"as {crop=}, both or none", self)

    @classmethod
    def vit(cls, num_examples, **changes):
        """ViT's recipe for a data set of `num_examples` examples; `changes` sets other fields."""
        return cls(**{"steps": _steps(num_examples)} | changes)

    @classmethod
    def hyperrule(cls, num_examples, image_size, batch_size=512, **changes):
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

    def rounds(self, num_batches):
        """Number of rounds of a run, each ending with a validation, and of steps per round."""
        return self.validations, self.steps // self.validations

    def make_optimizer(self):
        """The optimizer of a run."""
        from vit_tf.training.optimizers import SGD, WarmupDecay

        warmup = min(500, self.steps // 5) if self.warmup_steps is None else self.warmup_steps
        return SGD(
            WarmupDecay(self.learning_rate, warmup, self.steps, self.schedule),
            momentum=self.momentum,
            global_clipnorm=self.clip_norm,
            use_ema=self.ema is not None,
            ema_momentum=self.ema or 0.0,
        )

    def augment(self, dataset, num_classes):
        """Augments batches of (images, labels); unchanged if every augmentation is off."""
        from vit_tf import data

        steps = {name: getattr(self, name) for name in ("mixup", "flip", "crop")}
        if not any(steps.values()):
            return dataset
        return data.augment(dataset, num_classes, seed=self.seed, **steps)

    def to_config(self):
        """The fields as a dict."""
        return dataclasses.asdict(self)

    def compile(self, model, num_batches=None):
        """Compile a model for this recipe; `num_batches` is ignored."""
        compile_classifier(model, self.make_optimizer())


def _steps(num_examples):
    """Steps for a data set: those of the HyperRule, which are ViT's too (table 4)."""
    if num_examples < 20_000:
        return 500
    return 10_000 if num_examples < 500_000 else 20_000


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
