"""Fine-tuning a trained model on other data: the recipes of ViT and of BiT."""

import dataclasses

from vit_tf.names import lookup
from vit_tf.training.recipes import compile_classifier, expect


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
