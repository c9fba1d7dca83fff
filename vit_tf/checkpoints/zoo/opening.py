"""Opening a bundled model, or that was saved by Keras."""

import numpy as np

from vit_tf.models.model import VisionModel
from vit_tf.models.resolution import at_resolution
from vit_tf.taps.saving import load_model, name_after


def open_zoo(name, wishes, positions=None):
    """A model of the zoo or of a `.keras` file, as `load_pretrained` gives it.

    Args:
        name: one of `zoo()`, or the path of the file.
        wishes: the `Wishes` of the caller.
        positions: as for `vit_tf.at_resolution`; None is `"bilinear"`.

    Raises:
        ValueError: for a wish that the file leaves no choice for, or that `at_resolution` refuses.
    """
    wishes.refuse("the zoo", "pooling", "num_heads", "activation")
    model = load_model(name)
    if not isinstance(model, VisionModel):
        other = f"a {type(model).__name__}, which is not a model of this package"
        wishes.refuse(other, "num_classes", "image_shape", "preprocessing")
        return model
    # Without a head there is nothing to leave out, and a layer of tanh before it goes with it.
    headless = wishes.num_classes == 0 and model.head is not None
    classes = wishes.num_classes or None
    if headless:
        classes = (getattr(model, "pre_logits", None) or model.head).kernel.shape[0]
    other_head = headless or classes not in (None, model.num_classes)
    shape = wishes.image_shape or model.image_shape
    if other_head or tuple(shape) != tuple(model.image_shape)[: len(shape)]:
        classes = classes if other_head else None
        model = at_resolution(model, shape, classes, positions or "bilinear")
        if headless:
            model.head.kernel.assign(np.eye(classes))
    if wishes.preprocessing is not None:
        model.preprocessing = wishes.preprocessing
    return name_after(model, name)
