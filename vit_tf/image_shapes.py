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


def require_images_of(model, images):
    """Raises a `ValueError` unless images, or their `TensorSpec`, have the channels of a model's.

    Their size is left to the model, since a recipe may yet crop them.
    """
    if hasattr(model, "image_shape"):
        channels = model.image_shape[-1]
    else:
        shape = getattr(model, "input_shape", None)
        if not isinstance(shape, tuple) or len(shape) != 4:
            return
        channels = shape[-1]
    if images.shape.rank is not None:
        require_images(images.shape, (None, None, None, channels))
