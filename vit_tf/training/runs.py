"""Runs of training that resume: `train`, and the checks of its data while they are read."""

import contextlib
import logging
import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf

from vit_tf import distribute
from vit_tf.common.backend import on_jax, require_tensorflow_or_jax
from vit_tf.common.names import format_list, without_password
from vit_tf.data.batches import (
    ResumableDataset,
    as_shard,
    is_shard,
    require_finite_length,
    skip_batches,
    words_of_assertion,
)
from vit_tf.data.files import only_process
from vit_tf.data.labels import require_label_type
from vit_tf.data.preprocessing import (
    check_dtype,
    far_values,
    fix_image_shape,
    interval,
    require_finite_images,
    require_images_of,
    value_range,
)
from vit_tf.distribute.strategies import explained_failures, is_chief, num_workers, wait_for_workers
from vit_tf.models.model import VisionModel
from vit_tf.training import checkpointing
from vit_tf.training.checkpointing import Checkpoint, Preemption, tensorboard
from vit_tf.training.evaluation import require_scores
from vit_tf.training.recipes import CONSTANT, FineTuning, Recipe

BATCH_SIZE = 32  # of arrays, as in Keras

log = logging.getLogger("vit_tf.training")


def train(
    model: keras.Model,
    recipe: Recipe | FineTuning,
    train: Any,
    validation: Any,
    directory: str | os.PathLike,
    description: dict | None = None,
    verbose: str | int = "auto",
    steps_per_execution: int = 1,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    save_every: int | None = None,
    keep_states: int = 2,
    batch_size: int | None = None,
    optimizer: keras.optimizers.Optimizer | None = None,
    class_weight: dict[int, float] | None = None,
) -> dict[str, list[float]]:
    """Trains a model with a recipe; call it again with the same arguments to resume a killed run.

    The following files are written to `directory`:

    * `best.keras`: the model with the best validation accuracy or, without validation, the model
      after the last epoch
    * `log.csv` and `tensorboard/`: metrics of each epoch
    * `configuration.json`: the configuration of the run
    * `state/`: saved states, from which a killed run resumes

    A run resumes at the step of the last saved state. The batches of `vit_tf.data` before this step
    are skipped without decoding their images. (If the data set is kept in memory, all its images
    are decoded again, because the memory of the killed process is lost.) On one device, a resumed
    run ends with exactly the weights of an uninterrupted run, if every shuffle of `train` has a
    seed and `keras.utils.set_random_seed` was called before. On SIGTERM, the current step is
    finished and the state is saved. Then the previous signal handler runs. A finished run, also one
    that a callback such as `EarlyStopping` has ended, is loaded instead of trained again, with a
    log message. With a `Recipe` that has more `epochs` and is otherwise equal, a run is extended:
    from its last state on, the learning rate follows the schedule of the longer run. (A run that a
    callback has ended is extended from the weights that it returned.)

    Images and labels are checked while they are read, not before the first step. Several workers
    must share the directory, and only the chief writes to it. Several replicas train and validate
    as one device does (`distribute.divide_batches`). On the JAX backend, `tf.data` feeds the
    devices of the current `keras.distribution.DataParallel`.

    Args:
        model: a built `keras.Model` from images to logits.
        recipe: the `Recipe` or `FineTuning`.
        train, validation: batched `tf.data.Dataset` of (images, int labels). With (images, labels,
            weights), the loss of each example is multiplied by its weight. `train.cardinality()`
            must be finite and known. Instead of a `Dataset`, a tuple of arrays can be passed. It is
            split into batches of `batch_size`, and the examples of `train` are shuffled in each
            epoch with the seed of the recipe. `validation` may be None. If `train` has an attribute
            `class_names`, a model of this package stores it.
        directory: folder of the run, created if missing. It may be an address that
            `etils.epath` can open, such as `gs://bucket/run`, with weaker guarantees
            (`files.write_remote` and `files.only_process` describe them).
        description: dict that identifies the training data. A run resumes only with the same
            description.
        verbose: as for `keras.Model.fit`. `"auto"` shows a progress bar or, if the standard output
            is a file, one line per epoch.
        steps_per_execution: largest number of steps per compiled call. It is rounded down to a
            divisor of the number of steps between two validations.
        callbacks: additional Keras callbacks. At the end of an epoch, they are called before the
            state is saved. Therefore, if the run is killed before the state is saved, they are
            called again for this epoch. After a resume within an epoch, batch numbers start at 0.
        save_every: number of steps between saved states. A state is also saved at the end of each
            epoch.
        keep_states: number of most recent states to keep in the folder. If the newest state is
            corrupt, the run resumes from the state before it, with a log message.
        batch_size: examples per batch of arrays; None for 32.
        optimizer: Keras optimizer that replaces the recipe's, with its own learning rate, weight
            decay, clipping and averaging; create it in the scope of the strategy. The
            corresponding fields of the recipe are then ignored.
        class_weight: dict from classes to the weights of their examples in the training loss, as
            for `keras.Model.fit`; classes that are missing have the weight 1. The weights multiply
            those of `train`.

    Returns:
        dict from metric names (`"loss"`, `"accuracy"`, `"val_loss"`, ...) to lists with one float
        per epoch, including the epochs before a resume. With a `FineTuning`, there is one float per
        validation.

    Raises:
        ValueError: if the model ends in sigmoids, or in a softmax in front of which no scores are
            found (the loss is computed from the scores before a softmax), or if a callback sets the
            learning rate although `recipe.schedule` is not `"constant"` and `optimizer` is not set.
        ValueError: if images do not have the model's shape, are integers, are not finite, or lie
            far outside the range of the model's `preprocessing`, or if a label is outside the
            model's classes. (An invalid label stops the run when it is read. The last saved state
            remains.)
        ValueError: if the folder belongs to another run or is in use by another process, if all
            saved states are corrupt, or if the loss is not finite.
        ValueError: if the Keras backend is neither TensorFlow nor JAX, if `batch_size` is set for a
            `Dataset`, or if `class_weight` has other keys than classes.
        ConnectionError: if another worker stops.
    """
    require_tensorflow_or_jax("training")
    strategy = distribute.strategy_of(model)
    directory = os.fspath(directory)
    if not model.built:
        raise ValueError(f"{model.name!r} is not built: call it on a batch of images once")
    if not checkpointing.config_of(model):
        raise ValueError(
            f"{model.name!r} cannot be saved: its class {type(model).__name__} needs a "
            "get_config() that returns the arguments of its __init__"
        )
    if save_every is not None and save_every < 1:
        raise ValueError(f"Expected save_every to be at least 1. Received: {save_every=}")
    if keep_states < 1:
        raise ValueError(f"Expected keep_states to be at least 1. Received: {keep_states=}")
    setters = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)
    names = [type(callback).__name__ for callback in callbacks if isinstance(callback, setters)]
    if names and optimizer is None and recipe.schedule != CONSTANT:
        raise ValueError(
            f"{format_list(names)} sets the learning rate, which needs a recipe with "
            f"schedule={CONSTANT!r}. Received: schedule={recipe.schedule!r}"
        )
    splits = {"training": _as_batches(train, "training", batch_size, recipe.seed)}
    if validation is not None:
        splits["validation"] = _as_batches(validation, "validation", batch_size)
    num_classes = _num_classes(model, splits["training"].element_spec[0])
    for split, dataset in splits.items():
        cropped = split == "training" and getattr(recipe, "crop", None) is not None
        require_images_of(model, dataset.element_spec[0], any_size=cropped)
        if value_range(model) is not None:
            check_dtype(model, dataset.element_spec[0].dtype.name)
        if is_shard(dataset) and num_workers() > 1:
            raise ValueError(
                f"Each worker takes its own shard of the {split} data: pass all data, loaded "
                "without shard="
            )
        if isinstance(model, VisionModel) and not cropped:
            shape = model.accepted_shape
            dataset = ResumableDataset.from_sources(
                lambda batches, shape=shape: batches.map(
                    lambda images, *others: (fix_image_shape(images, shape), *others)
                ),
                dataset,
            )
        dataset = checked_images(dataset, model, split)
        splits[split] = checked_labels(dataset, num_classes, split)
    if validation is not None:
        require_finite_length(splits["validation"])
    # A model of this package is given the names of the classes of its training data.
    names = getattr(train, "class_names", None)
    if names and isinstance(model, VisionModel) and len(names) == num_classes:
        if model.class_names not in (None, tuple(names)):
            log.warning("%s adopts the class names of the training data", model.name)
        model.class_names = names
    num_batches = int(splits["training"].cardinality())
    if num_batches <= 0:
        unknown = {tf.data.INFINITE_CARDINALITY: "infinite", tf.data.UNKNOWN_CARDINALITY: "unknown"}
        raise ValueError(
            "Expected train to be a dataset of finite length, which is known or set by "
            "`train.apply(tf.data.experimental.assert_cardinality(number_of_batches))`. "
            f"Received: {unknown.get(num_batches, num_batches)} batches"
        )
    if class_weight:
        splits["training"] = _weigh_classes(splits["training"], class_weight, num_classes)
    recipe.compile(model, num_batches, optimizer)
    configuration = {
        # Only data sets of `vit_tf.data` identify their images.
        "images": {
            split: {"number": data.num_examples, "names": data.identify_names()}
            if getattr(data, "identify_names", None)
            else {}
            for split, data in splits.items()
        },
        "recipe": recipe.to_config(),
        "model": checkpointing.describe_model(model),
        "data": description,
        "steps_per_epoch": num_batches,
        "replicas": strategy.num_replicas_in_sync,
        "backend": keras.config.backend(),
        "batch_size": batch_size,
        "class_weight": class_weight,
        "optimizer": optimizer and checkpointing.describe_optimizer(optimizer),
    }
    alone = only_process(directory) if is_chief() else contextlib.nullcontext(lambda: None)
    with alone as still_alone, explained_failures(), Preemption() as preemption:
        checkpointing.check_configuration(configuration, directory)
        checkpointing.check_shared(directory)
        with strategy.scope():
            model.optimizer.build(model.trainable_variables)
        progress = checkpointing.restore_state(model, directory)
        if progress.history:
            checkpointing.write_log(progress.history, directory)
        _, steps = recipe.rounds(num_batches)
        model.steps_per_execution = distribute.steps_per_execution(
            math.gcd(steps, progress.step), steps_per_execution
        )
        checkpoint = Checkpoint(
            directory, progress, steps, preemption, save_every, still_alone, keep_states
        )
        callbacks = [*callbacks, checkpoint]
        _fit(model, recipe, splits, num_batches, progress, checkpoint, callbacks, verbose)
        return progress.history


def _as_batches(data: Any, split: str, batch_size: int | None, seed: int | None = None) -> Any:
    """Data of `train` as a batched data set; arrays are shuffled where there is a seed."""
    if hasattr(data, "element_spec"):
        if batch_size is not None:
            raise ValueError(
                "batch_size= is for arrays: a tf.data.Dataset has batches. Received: "
                f"{batch_size=} for the {split} data"
            )
    else:
        batch_size = BATCH_SIZE if batch_size is None else batch_size
        if batch_size < 1:
            raise ValueError(f"Expected batch_size to be at least 1. Received: {batch_size=}")
        if (
            not isinstance(data, tuple | list)
            or len(data) not in (2, 3)
            or not all(hasattr(array, "shape") for array in data)
        ):
            raise ValueError(
                f"Expected {split} data to be a batched tf.data.Dataset, or arrays, of (images, "
                f"labels) or (images, labels, weights). Received: {type(data).__name__}"
            )
        counts = {len(array) for array in data}
        if len(counts) > 1 or counts == {0}:
            raise ValueError(
                f"Expected {split} data of at least one image and as many labels as images. "
                f"Received: arrays of shapes {[tuple(array.shape) for array in data]}"
            )
        # Here the numbers of images are those of the arrays, which are shuffled below.
        require_finite_images(data[0])
        data = tf.data.Dataset.from_tensor_slices(tuple(data))
        data = data if seed is None else data.shuffle(*counts, seed=seed)
        data = data.batch(batch_size)
    spec = data.element_spec
    if not isinstance(spec, tuple) or len(spec) not in (2, 3):
        raise ValueError(
            f"Expected {split} data to be batches of (images, labels) or (images, labels, "
            f"weights). Received elements: {spec}"
        )
    return data


def _weigh_classes(
    dataset: tf.data.Dataset, class_weight: dict[int, float], num_classes: int
) -> ResumableDataset:
    """Batches of (images, labels, weights) whose weights include those of the classes."""
    labels_rank = dataset.element_spec[1].shape.rank
    if labels_rank not in (1, 2) or not set(class_weight) <= set(range(num_classes)):
        raise ValueError(
            f"Expected class_weight to map classes from 0 to {num_classes - 1} to weights. "
            f"Received: {class_weight=}"
        )
    weights_of_classes = np.ones(num_classes, "float32")
    weights_of_classes[[*class_weight]] = [*class_weight.values()]

    def weigh(images: Any, labels: tf.Tensor, *given_weights: tf.Tensor) -> tuple:
        classes = tf.argmax(labels, axis=-1) if labels_rank == 2 else labels
        weights = tf.gather(weights_of_classes, classes)
        for given in given_weights:
            weights *= tf.cast(given, tf.float32)
        return images, labels, weights

    return ResumableDataset.from_sources(lambda batches: batches.map(weigh), dataset)


def _fit(
    model: keras.Model,
    recipe: Recipe | FineTuning,
    splits: dict[str, Any],
    num_batches: int,
    progress: checkpointing.Progress,
    checkpoint: Checkpoint,
    callbacks: Sequence[keras.callbacks.Callback],
    verbose: str | int,
) -> None:
    """Go on with a run to its end."""
    rounds, steps = recipe.rounds(num_batches)
    done = checkpointing.num_epochs(progress.history)
    is_stopped = progress.stopped_of == rounds
    rounds = done if is_stopped else rounds
    if done >= rounds and is_chief():
        # The callbacks still see a training begin and end, and may write what a kill cost them.
        folder = without_password(os.fspath(checkpoint.directory))
        log.warning("The run in %r is finished; it is loaded without further training", folder)
    if is_chief():
        # First: what is logged is on the disk at once, and not logged again after the state is.
        callbacks = [*tensorboard(os.path.join(checkpoint.directory, "tensorboard")), *callbacks]
    strategy = distribute.strategy_of(model)
    num_classes = _num_classes(model, splits["training"].element_spec[0])
    batches = recipe.augment_batches(splits["training"], num_classes)
    batches = distribute.divide_batches(batches, strategy)
    validation = splits.get("validation")
    if validation is not None:
        validation = distribute.divide_batches(validation, strategy)
    # A progress bar is redrawn in its line, which only terminals and notebooks show.
    if verbose == "auto" and not (sys.stdout.isatty() or "ipykernel" in sys.modules):
        verbose = 2
    try:
        with explain_wrong_examples(), _built(model, batches.element_spec):
            model.fit(
                _between(batches, done * steps + progress.step, rounds * steps, num_batches),
                steps_per_epoch=steps,
                validation_data=validation,
                epochs=rounds,
                initial_epoch=done,
                callbacks=callbacks,
                # Keras does not annotate it: its type is inferred from the default, "auto".
                verbose=cast(Any, verbose if is_chief() else 0),
                shuffle=False,
            )
    except WrongExample:
        checkpoint.save_if_validating()
        raise
    finally:
        checkpoint.writer.finish()
    wait_for_workers()
    if is_stopped:
        # The end of `fit` has put averaged weights in the place of those that a callback restored.
        checkpointing.restore_state(model, checkpoint.directory)


@contextlib.contextmanager
def _built(model: keras.Model, spec: Any) -> Iterator[None]:
    """A model whose metrics are built from the spec of its batches, within a `with`."""
    # Keras would build them from a first batch, of an iterator that it makes for that: a seeded
    # shuffle would then be in its second order in the first epoch. `fit` reads this batch even
    # where all is built, and no public method or option prevents that.
    with distribute.strategy_of(model).scope():
        model._symbolic_build(data_batch=spec)
    if on_jax() or num_workers() > 1:
        yield
        return
    model._maybe_symbolic_build = lambda *_, **__: None
    try:
        yield
    finally:
        del model._maybe_symbolic_build  # the class' own method is in effect again


def _between(batches: Any, step: int, last: int, num_batches: int) -> tf.data.Dataset:
    """Passes over batches from a step on to the last, as a run that was never stopped sees them."""
    passes_done, batches_done = divmod(step, num_batches)
    # `fit` makes more than one iterator per epoch, unless the data repeat and steps are counted.
    passes = batches.repeat()
    if batches_done:
        passes = skip_batches(batches, batches_done).concatenate(passes)
    if passes_done:
        # Passes of which nothing is chosen, so that nothing is read: shuffles count those begun.
        begun = tf.data.Dataset.choose_from_datasets([batches], tf.data.Dataset.range(0))
        begun = tf.data.Dataset.range(passes_done).flat_map(lambda number: begun)
        passes = begun.concatenate(passes)
    # TensorFlow would read on into a pass that nobody wants. The filter hides the length from
    # Keras, which would count an epoch without steps as a step.
    left = passes.take(last - step).filter(lambda *batch: True)
    return as_shard(left, batches.worker_shard) if is_shard(batches) else left


def _num_classes(model: keras.Model, images: tf.TensorSpec) -> int:
    """Number of logits of a model, which only some models name, for such images."""
    if getattr(model, "num_classes", None) is not None:
        return model.num_classes
    shape = getattr(model, "output_shape", None)  # which subclassed models do not have
    if not isinstance(shape, tuple):
        scores = model.compute_output_spec(keras.KerasTensor(images.shape, images.dtype.name))
        if not hasattr(scores, "shape"):
            require_scores(scores)
        shape = scores.shape
    return shape[-1]


_WRONG = re.compile(r"Expected (?:labels|images) of the .*? data .*?Received: [-\w.,: ]*\w")


class WrongExample(ValueError):
    """An image or a label that is not valid for the model, or that cannot be decoded."""


def checked_images(dataset: tf.data.Dataset, model: keras.Model, split: str) -> tf.data.Dataset:
    """A data set that checks that images read are finite, and the first of a batch in range."""
    spec, limits = dataset.element_spec[0], far_values(model)
    if not isinstance(spec, tf.TensorSpec) or not spec.dtype.is_floating:
        return dataset
    expected = f"Expected images of the {split} data "

    def check(number: tf.Tensor, batch: Any) -> tuple:
        images, *others = batch
        sums = tf.reduce_sum(images, axis=list(range(1, images.shape.rank)))
        wrong = tf.strings.as_string(tf.where(~tf.math.is_finite(sums))[:, 0])
        where = [tf.strings.reduce_join(wrong[:1]), " of batch ", tf.strings.as_string(number)]
        received = ["to be finite. Received: NaN or infinite values in image ", *where, " (from 0)"]
        finite = tf.equal(tf.size(wrong), 0)
        checks = [tf.debugging.Assert(finite, [tf.strings.join([expected, *received])])]
        if limits:
            least, most = tf.reduce_min(images[:1]), tf.reduce_max(images[:1])
            near = (least >= limits[0]) & (most <= limits[1]) | tf.equal(tf.size(images), 0)
            ends = [tf.strings.as_string(end, shortest=True) for end in (least, most)]
            words = f"with values in {interval(*model.preprocessing.value_range)}. Received: "
            received = [expected, words, "values from ", ends[0], " to ", ends[1]]
            checks.append(tf.debugging.Assert(near | ~finite, [tf.strings.join(received)]))
        with tf.control_dependencies(checks):
            return tf.identity(images), *others

    return ResumableDataset.from_sources(lambda batches: batches.enumerate().map(check), dataset)


def checked_labels(
    dataset: tf.data.Dataset, num_classes: int, split: str
) -> tf.data.Dataset | ResumableDataset:
    """A data set that checks, when integer labels are read, that they lie in [0, num_classes)."""
    spec = dataset.element_spec[1]
    # Others are shares of classes, or what a model of another kind predicts.
    if spec.shape.rank in (0, 1) or not (spec.dtype.is_integer or spec.dtype.is_floating):
        require_label_type(spec, num_classes, split)
    if not spec.dtype.is_integer:
        return dataset
    expected = f"Expected labels of the {split} data to be in [0, {num_classes}), the numbers of "
    expected += "the classes. Received: "

    def check(inputs: tf.Tensor, labels: tf.Tensor, *weights: tf.Tensor) -> tuple:
        wrong = tf.boolean_mask(labels, (labels < 0) | (labels >= num_classes))
        received = tf.strings.reduce_join(tf.strings.as_string(wrong[:5]), separator=", ")
        right = tf.debugging.Assert(tf.equal(tf.size(wrong), 0), [expected + received])
        with tf.control_dependencies([right]):
            return inputs, tf.identity(labels), *weights

    return ResumableDataset.from_sources(lambda batches: batches.map(check), dataset)


@contextlib.contextmanager
def explain_wrong_examples() -> Iterator[None]:
    """Converts the TensorFlow error for an invalid image or label to a `WrongExample`."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        match = _WRONG.search(error.message)
        words = match[0] if match else words_of_assertion(error)
        if not words:
            raise
        raise WrongExample(words) from error
