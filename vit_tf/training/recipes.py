"""Training a classifier: the recipe from scratch, and a run of any recipe that can be resumed."""

import contextlib
import dataclasses
import logging
import os
import sys

import keras
import tensorflow as tf

from vit_tf import data, distribute
from vit_tf.backend import require_tensorflow
from vit_tf.distribute.cluster import explained_failures, is_chief
from vit_tf.image_shapes import require_images_of
from vit_tf.names import choose
from vit_tf.training import checkpointing
from vit_tf.training.locks import only_process
from vit_tf.training.objectives import SoftmaxCrossEntropy, Top1Accuracy
from vit_tf.training.optimizers import DECAYS, AdamW, WarmupDecay

log = logging.getLogger("vit_tf.training")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to train a classifier from scratch; `dataclasses.asdict` and `Recipe(**d)` invert.

    The defaults suit small data sets: AdamW with warm-up and cosine decay, gradients clipped to
    norm 1 and a weight decay of 0.1 as in Steiner et al. 2021 (AugReg,
    https://arxiv.org/abs/2106.10270, section 3), labels smoothed by 0.1 as in Touvron et al.
    2021 (DeiT, table 9).

    Args:
        epochs: number of passes over the training data.
        learning_rate: the peak of the schedule.
        warmup_epochs: epochs until the peak, fractions allowed; None for a tenth of the run.
        schedule: decay after the peak, to 0 `"cosine"` or `"linear"`, or a `"staircase"`.
        weight_decay: a kernel shrinks by `learning_rate * weight_decay` of itself at each step.
        label_smoothing: share of a label that is spread over all classes.
        clip_norm: largest global norm of the gradients; None for no limit.
        ema: momentum of the average of the weights that is validated, saved and returned; None
            for the weights themselves.
        rand_augment, mixup, cutmix, flip, shift, seed: as for `vit_tf.data.augment`; all off.

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

    def __post_init__(self):
        warmup, clip, ema = self.warmup_epochs, self.clip_norm, self.ema
        choose("schedule", self.schedule, DECAYS)
        expect(isinstance(self.epochs, int) and self.epochs > 0, "epochs", "an int > 0", self)
        expect(self.learning_rate > 0, "learning_rate", "> 0", self)
        in_run = warmup is None or 0 <= warmup < self.epochs
        expect(in_run, "warmup_epochs", f"None or in [0, epochs={self.epochs})", self)
        expect(self.weight_decay >= 0, "weight_decay", ">= 0", self)
        expect(0 <= self.label_smoothing < 1, "label_smoothing", "in [0, 1)", self)
        expect(clip is None or clip > 0, "clip_norm", "None or > 0", self)
        expect(ema is None or 0 <= ema < 1, "ema", "None or in [0, 1)", self)
        for name in ("mixup", "cutmix", "shift"):
            expect(getattr(self, name) >= 0, name, ">= 0", self)

    def learning_rates(self, steps_per_epoch):
        """The `WarmupDecay` of a run with so many steps per epoch."""
        warmup = self.epochs / 10 if self.warmup_epochs is None else self.warmup_epochs
        steps = self.epochs * steps_per_epoch
        return WarmupDecay(
            self.learning_rate, round(warmup * steps_per_epoch), steps, self.schedule
        )

    def optimizer(self, steps_per_epoch):
        """The optimizer of a run with so many steps per epoch."""
        return AdamW(
            self.learning_rates(steps_per_epoch),
            weight_decay=self.weight_decay,
            global_clipnorm=self.clip_norm,
            use_ema=self.ema is not None,
            ema_momentum=self.ema or 0.0,
        )

    def augment(self, dataset, num_classes):
        """Batches of (images, labels) augmented; unchanged where every augmentation is off."""
        mild = {name: getattr(self, name) for name in ("mixup", "cutmix", "flip", "shift")}
        # RandAugment of magnitude 0 or with no arguments of its own, `{}`, is not off.
        if self.rand_augment is False and not any(mild.values()):
            return dataset
        return data.augment(
            dataset, num_classes, rand_augment=self.rand_augment, seed=self.seed, **mild
        )

    def rounds(self, num_batches):
        """Number of rounds, each ending with a validation, and steps in each, of a run."""
        return self.epochs, num_batches

    def compile(self, model, steps_per_epoch):
        """Compile a model for this recipe, so that `model.fit(train, epochs=...)` follows it.

        With `ema`, give `fit` a `keras.callbacks.SwapEMAWeights()` to validate the average.
        """
        compile_classifier(model, self.optimizer(steps_per_epoch), self.label_smoothing)


def compile_classifier(model, optimizer, label_smoothing=0.0):
    """Compile a model for cross-entropy and top-1 accuracy, under its own strategy."""
    require_tensorflow("training")
    with model.distribute_strategy.scope():
        model.compile(
            optimizer=optimizer,
            loss=SoftmaxCrossEntropy(label_smoothing),
            metrics=[Top1Accuracy()],
        )


def expect(condition, field, expected, recipe):
    """Raises a ValueError that names a field of a recipe and its value unless a condition holds."""
    if not condition:
        raise ValueError(
            f"Expected {field} to be {expected}. Received: {field}={getattr(recipe, field)!r}"
        )


def train(
    model,
    recipe,
    train,
    validation,
    directory,
    description=None,
    verbose="auto",
    steps_per_execution=None,
    callbacks=(),
):
    """Train a model by a recipe; call again with the same arguments to resume a killed run.

    Writes to `directory`: `log.csv`, `tensorboard/`, `best.keras` (best validation accuracy),
    `configuration.json` and `state/` (to resume after the last whole epoch). A resumed run on one
    device ends with the very weights of an undisturbed one if every shuffle of `train` has a seed
    and `keras.utils.set_random_seed` was called before. Of several workers, which must share the
    directory, only the chief writes; on a TPU, batches smaller than the first are left out. A run
    that is finished is loaded, and a line of the log says so.

    Args:
        model: a built `keras.Model` from images to logits.
        recipe: the `Recipe` or `FineTuning`.
        train, validation: batched `tf.data.Dataset` of (images, int labels), of finite length.
        directory: the run's folder; it is made.
        description: dict that tells this training data from other data, for the resume's check.
        verbose: as for `keras.Model.fit`; `"auto"` is a line for each epoch where the standard
            output is a file, in which a bar would leave all of its states.
        steps_per_execution: at most so many steps, a divisor of those between two validations, go
            in one call; None for up to 50 on a TPU and 1 elsewhere.
        callbacks: further Keras callbacks. At the end of an epoch they are called before its state
            is saved, and so once more in a run that was killed between.

    Returns:
        dict from `"loss"`, `"accuracy"`, `"val_loss"`, ... to one float per epoch (of a
        `FineTuning`, per round), those before a resume included.

    Raises:
        ValueError: for images of another shape than the model's, labels outside its classes,
            another backend of Keras than TensorFlow, a folder of another run or one that another
            process works in, a damaged state, or a loss that is no longer finite.
        ConnectionError: if another worker stops.
    """
    require_tensorflow("training")
    directory = os.fspath(directory)
    if not model.built:
        raise ValueError(f"Expected a built model. Received: {model.name!r}, which is not")
    if distribute.is_tpu(model.distribute_strategy):
        train, validation = distribute.full_batches(train), distribute.full_batches(validation)
    num_batches = _num_batches(train)
    for dataset in (train, validation):
        require_images_of(model, dataset.element_spec[0])
        data.check_labels(dataset, _num_classes(model))
    recipe.compile(model, num_batches)
    configuration = {
        "recipe": dataclasses.asdict(recipe),
        "model": checkpointing.describe_model(model),
        "data": description,
        "steps_per_epoch": num_batches,
    }
    alone = only_process(directory) if is_chief() else contextlib.nullcontext()
    model.steps_per_execution = distribute.steps_per_execution(
        model.distribute_strategy, recipe.rounds(num_batches)[1], steps_per_execution
    )
    with alone, explained_failures():
        return _fit(model, recipe, train, validation, configuration, directory, verbose, callbacks)


def _fit(model, recipe, train, validation, configuration, directory, verbose, callbacks):
    """Go on with a run in its folder to its end; its history."""
    num_batches = configuration["steps_per_epoch"]
    history = _resume(model, configuration, directory)
    batches = recipe.augment(train, _num_classes(model))
    rounds, steps = recipe.rounds(num_batches)
    rounds_done = len(history.get("loss", ()))
    if rounds_done >= rounds and is_chief():
        # The callbacks still see a training begin and end, and may write what a kill cost them.
        log.warning("The run in %r is finished; it is loaded, and nothing is trained", directory)
    passes_done, batches_done = divmod(rounds_done * steps, num_batches)
    # A seeded shuffle takes its order from how many iterators there were; making one reads nothing.
    # `fit` makes more than one per epoch, unless the data repeat and the steps are counted.
    for _ in range(passes_done):
        iter(batches)
    if (replicas := model.distribute_strategy.num_replicas_in_sync) > 1:
        batches = _weigh_shares(batches, replicas)
    callbacks = [*callbacks, checkpointing.Checkpoint(directory, history)]
    if recipe.ema is not None:
        callbacks.append(keras.callbacks.SwapEMAWeights())
    if is_chief():
        # First: what is logged is on the disk at once, and not logged again after the state is.
        logs = os.path.join(directory, "tensorboard")
        callbacks.insert(0, keras.callbacks.TensorBoard(logs, write_graph=False))
    model.fit(
        batches.repeat().skip(batches_done),
        steps_per_epoch=steps,
        validation_data=validation,
        epochs=rounds,
        initial_epoch=rounds_done,
        callbacks=callbacks,
        verbose=_shown(verbose) if is_chief() else 0,
        shuffle=False,
    )
    return history


def _shown(verbose):
    """Keras' `verbose`: a bar only where it can be redrawn."""
    redrawn = sys.stdout.isatty() or "ipykernel" in sys.modules
    return 2 if verbose == "auto" and not redrawn else verbose


def _weigh_shares(batches, replicas):
    """Batches with weights, so that replicas with unlike shares train as one device does.

    Replica `r` minimises the mean over its `n_r` examples of a batch of `n`, and the means count
    alike: each example needs the weight `replicas * n_r / n`. TensorFlow gives every replica
    `ceil(n / replicas)` examples until none is left. The logged loss of such a batch is weighted
    too, if only by about as much as the shares differ.
    """

    def weigh(images, labels):
        count = tf.shape(labels)[0]
        most = -(-count // replicas)
        shares = tf.clip_by_value(count - most * tf.range(replicas), 0, most)
        weights = tf.repeat(shares * replicas / count, shares)
        return images, labels, tf.ensure_shape(tf.cast(weights, tf.float32), labels.shape[:1])

    return batches.map(weigh)


def _resume(model, configuration, directory):
    """Bring a compiled model to where the run in a folder ended; its history so far."""
    checkpointing.remove_leftovers(directory)
    checkpointing.check_configuration(configuration, directory)
    checkpointing.check_shared(directory)
    with model.distribute_strategy.scope():
        model.optimizer.build(model.trainable_variables)
    history = checkpointing.restore_state(model, directory)
    if history:
        checkpointing.write_log(history, directory)
    return history


def _num_classes(model):
    """Number of logits of a model, which only some models name."""
    return model.num_classes if hasattr(model, "num_classes") else model.output_shape[-1]


def _num_batches(dataset):
    """Number of batches of a dataset, counted where it is not known.

    Raises:
        ValueError: for a dataset that is empty or never ends.
    """
    count = int(dataset.cardinality())
    if count == tf.data.UNKNOWN_CARDINALITY:
        count = int(dataset.reduce(tf.constant(0, tf.int64), lambda n, _: n + 1))
    if count <= 0:
        received = "an endless one" if count == tf.data.INFINITE_CARDINALITY else "an empty one"
        raise ValueError(f"Expected train to be a dataset of finite length. Received: {received}")
    return count
