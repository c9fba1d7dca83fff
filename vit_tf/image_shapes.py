"""One error for images of another shape than a model takes, grey ones above all."""


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
    raise ValueError(f"Expected images of shape {expected}. Received: shape {received}{hint}")


def shape_of_images(model):
    """The shape (example, height, width, channel) of a Keras model's images, None for any size.

    None where the model does not tell. Models of this package may take other sizes than their own.
    """
    if hasattr(model, "image_shape"):
        return (None, None, None, model.image_shape[-1])
    shape = getattr(model, "input_shape", None)
    return shape if isinstance(shape, tuple) else None


def require_images_of(model, images):
    """Raises a `ValueError` unless images, or their `TensorSpec`, are such as a model takes."""
    expected = shape_of_images(model)
    if expected and images.shape.rank is not None:
        require_images(images.shape, expected)
