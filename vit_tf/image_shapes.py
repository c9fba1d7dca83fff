"""One error for images of another shape than a model takes."""

import contextlib
import re

from vit_tf.names import as_sizes

# What `tf.ensure_shape` raises.
_WRONG = re.compile(
    r"Shape of tensor \S* ?\[([\d,]+)\] is not compatible with expected shape \[([\d,?]+)\]"
)


def as_image_shape(image_shape, counts=(3,)):
    """An `image_shape` as a tuple of int.

    Args:
        image_shape: (height, width, channels) in pixels.
        counts: how many numbers it may have.

    Raises:
        ValueError: for anything else.
    """
    return as_sizes("image_shape", image_shape, "(height, width, channels) in pixels", counts)


def require_images(received, expected):
    """Raises a `ValueError` unless images of one shape are such as a model takes.

    Args:
        received: shape of a batch of images, (example, height, width, channel).
        expected: that of the model's images. In either, None stands for any size.
    """
    received, expected = tuple(received), tuple(expected)
    if len(received) == len(expected) and all(
        None in pair or pair[0] == pair[1] for pair in zip(received, expected, strict=True)
    ):
        return
    hint = ""
    if len(received) == len(expected) - 1:
        hint = "; grey images need an axis of channels: images[..., None]"
    elif received[-1:] == (1,) and expected[-1:] == (3,):
        hint = "; grey images become colour images by numpy.repeat(images, 3, axis=-1)"
    elif len(received) == len(expected) == 4 and received[3] == expected[3]:
        hint = (
            "; resize the images, or make the model for their size: "
            f"image_shape={received[1:]}, or vit_tf.at_resolution for trained weights"
        )
    raise ValueError(f"Expected images of shape {expected}. Received: shape {received}{hint}")


def fix_image_shape(images, expected):
    """Images with the static shape of a model's; a size not known yet is checked when it is.

    Args:
        images: tensor of shape (example, height, width, channel).
        expected: that of the model's images. In either, None stands for any size.

    Raises:
        ValueError: for images of another shape. Inside a TensorFlow graph that does not know it,
            an `InvalidArgumentError`, which `explained_images` makes a `ValueError` of.
    """
    if getattr(images.shape, "rank", len(expected)) is not None:
        require_images(images.shape, expected)
        if all(size is not None for size, of in zip(images.shape, expected, strict=True) if of):
            return images
    import tensorflow as tf  # only its graphs have shapes that are not known yet

    return tf.ensure_shape(images, expected)


@contextlib.contextmanager
def explained_images():
    """Makes a `ValueError` of the error that `fix_image_shape` raises when a graph runs."""
    try:
        yield
    except Exception as error:
        wrong = _WRONG.search(str(error))
        if not wrong or isinstance(error, ValueError):
            raise
        received, expected = (
            tuple(None if size == "?" else int(size) for size in shape.split(","))
            for shape in wrong.groups()
        )
        try:
            require_images(received, expected)
        except ValueError as explained:
            raise explained from error
        raise


def spec_of_images(model, spec):
    """The `TensorSpec` of images, with the sizes that it leaves open where a model fixes them."""
    shape, rank = _shape_of(model), spec.shape.rank
    if shape is None or rank not in (None, 4):
        return spec
    own = (None,) * 4 if rank is None else tuple(spec.shape)
    sizes = [fixed if size is None else size for size, fixed in zip(own, shape, strict=True)]
    return type(spec)(sizes, spec.dtype, spec.name)


def _shape_of(model):
    """Shape of the batches of images that a model takes, or None where it does not declare it."""
    shape = getattr(model, "accepted_shape", None) or getattr(model, "input_shape", None)
    return shape if isinstance(shape, tuple) and len(shape) == 4 else None


def require_images_of(model, images, any_size=False):
    """Raises a `ValueError` unless images, or their `TensorSpec`, have the shape of a model's.

    Args:
        model: a Keras model, or another callable, of which nothing is known.
        images: an array, a tensor or a `TensorSpec`.
        any_size: whether only the channels count, such as of images that a recipe will crop.
    """
    shape = _shape_of(model)
    if shape is None or getattr(images.shape, "rank", 4) is None:
        return
    require_images(images.shape, (None, None, None, shape[-1]) if any_size else shape)
