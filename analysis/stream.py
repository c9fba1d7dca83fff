"""The one engine of every analysis: a compiled statistic, summed or concatenated over batches."""

import itertools

import numpy as np
import tensorflow as tf
from tqdm.auto import tqdm

BATCH_SIZE = 128


def accumulate(step, images, *, with_labels=False, description=None):
    """Sums `step(images)` over the batches of a data set.

    The step is compiled once, together with the forward pass inside it, so that activations are
    freed as they are consumed. Under a `tf.distribute` strategy every replica takes whole batches
    and their results are added; the sum is that of one device.

    Args:
        step: function of a batch of images (and of its labels, `with_labels`) that returns a
            structure of tensors, made of TensorFlow operations. It is traced as it stands:
            decorate with `tf.function` what needs AutoGraph.
        images: array of shape (example, height, width, channel), batched `tf.data.Dataset` of
            images or of (images, labels), or a pair of arrays (images, labels).
        with_labels: whether the step takes the labels as its second argument.
        description: words beside the progress bar, which appears when the work takes long.

    Returns:
        The structure, with float64 arrays.

    Raises:
        ValueError: for data that is empty, unbatched or without the labels asked for.
    """
    total = None
    for result in _results(step, images, with_labels, description):
        if total is None:
            total = tf.nest.map_structure(lambda x: np.array(x, np.float64), result)
        else:
            total = tf.nest.map_structure(lambda s, x: np.add(s, x, out=s), total, result)
    return tf.nest.map_structure(np.asarray, total)


def collect(step, images, *, with_labels=False, description=None, min_batch=1):
    """Concatenates `step(images)` over the batches of a data set, in their order.

    For what really needs the rows. Arguments and errors are those of `accumulate`, and
    `min_batch`, the number of examples that a batch must have.

    Returns:
        The structure, with arrays whose first axis is the concatenation.
    """
    results = list(_results(step, images, with_labels, description, min_batch))
    return tf.nest.map_structure(lambda *rows: np.concatenate(rows), *results)


def as_dataset(data, batch_size=BATCH_SIZE):
    """`data` as a batched `tf.data.Dataset`; arrays are cut into batches of `batch_size`.

    Raises:
        ValueError: for data that is neither, or images that do not come in batches.
    """
    if not isinstance(data, tf.data.Dataset):
        leaves = data if isinstance(data, tuple) else (data,)
        if not all(hasattr(leaf, "shape") for leaf in leaves):
            raise ValueError(
                "Expected images to be an array, a pair of arrays (images, labels) or a "
                f"tf.data.Dataset. Received: {type(data).__name__}"
            )
        data = tf.data.Dataset.from_tensor_slices(data).batch(batch_size)
    spec = data.element_spec
    images = spec[0] if isinstance(spec, tuple) else spec
    if not isinstance(images, tf.TensorSpec) or images.shape.rank in (0, 1, 3):
        raise ValueError(
            "Expected batches of images of shape (example, height, width, channel). "
            f"Received elements {spec}; call dataset.batch(...) if they are single images"
        )
    return data


def first_batch(data):
    """The images of the first batch of a data set, to learn shapes from."""
    for batch in as_dataset(data).take(1):
        return batch[0] if isinstance(batch, tuple) else batch
    raise ValueError("Expected at least one batch of images. Received none")


def _results(step, data, with_labels, description, min_batch=1):
    """Yields the result of each batch, as arrays, in the order of the batches."""
    dataset = as_dataset(data)
    if isinstance(dataset.element_spec, tuple):
        if not with_labels:
            dataset = dataset.map(lambda images, *_: (images,))
    elif with_labels:
        raise ValueError(
            f"Expected batches of (images, labels). Received elements {dataset.element_spec}"
        )
    else:
        dataset = dataset.map(lambda images: (images,))
    strategy = tf.distribute.get_strategy()
    free = [tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) for spec in dataset.element_spec]
    compiled = tf.function(step, input_signature=free, autograph=False).get_concrete_function()
    every_replica = tf.function(
        lambda batches: strategy.run(_tensors(step), batches),
        reduce_retracing=True,
        autograph=False,
    )

    count = dataset.cardinality().numpy()
    batches = iter(
        tqdm(dataset, desc=description, total=count if count >= 0 else None, delay=2, leave=False)
    )
    empty = True
    while group := list(itertools.islice(batches, strategy.num_replicas_in_sync)):
        empty = False
        for images, *_ in group:
            _check_size(images, min_batch)
        if len(group) == strategy.num_replicas_in_sync > 1:
            result = every_replica(_spread(strategy, group))
            for replica in range(len(group)):
                yield tf.nest.map_structure(
                    lambda x, i=replica: np.asarray(strategy.experimental_local_results(x)[i]),
                    result,
                )
        else:
            for batch in group:
                yield tf.nest.map_structure(np.asarray, compiled(*batch))
    if empty:
        raise ValueError("Expected at least one batch of images. Received none")


def _tensors(step):
    """The step with its plain numbers as tensors: of those a strategy keeps no copy a replica."""
    return lambda *batch: tf.nest.map_structure(tf.convert_to_tensor, step(*batch))


def _spread(strategy, group):
    """One batch for each replica: a tuple of per-replica values from a list of tuples."""
    return tuple(
        strategy.experimental_distribute_values_from_function(
            lambda context, leaf=leaf: leaf[context.replica_id_in_sync_group]
        )
        for leaf in zip(*group, strict=True)
    )


def _check_size(images, min_batch):
    if images.shape[0] < min_batch:
        raise ValueError(
            f"Expected batches of at least {min_batch} examples. Received one of "
            f"{images.shape[0]}; drop the remainder or choose another batch size"
        )
