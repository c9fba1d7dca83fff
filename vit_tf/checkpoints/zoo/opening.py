"""Opening a model that comes with the package."""

import keras

from vit_tf.checkpoints.zoo.files import zoo
from vit_tf.models.resolution import at_resolution


def open_zoo(name, wishes, positions=None):
    """A model of the zoo, as `load_pretrained` gives it.

    Args:
        name: one of `zoo()`.
        wishes: the `Wishes` of the caller.
        positions: as for `vit_tf.at_resolution`; None is `"bilinear"`.

    Raises:
        ValueError: for a wish that the file leaves no choice for, or that `at_resolution` refuses.
    """
    wishes.refuse("the zoo", "pooling", "num_heads", "activation")
    model = keras.saving.load_model(zoo()[name], compile=False)
    other_head = wishes.num_classes not in (None, model.num_classes)
    shape = wishes.image_shape or model.image_shape
    if other_head or tuple(shape) != tuple(model.image_shape)[: len(shape)]:
        classes = wishes.num_classes if other_head else None
        model = at_resolution(model, shape, classes, positions or "bilinear")
    if wishes.preprocessing is not None:
        model.preprocessing = wishes.preprocessing
    return model
