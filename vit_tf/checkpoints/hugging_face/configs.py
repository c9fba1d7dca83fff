"""The fields of a `config.json`, checked before they are believed."""

from collections import Counter
from numbers import Real

from vit_tf.checkpoints.plans import MOST_LAYERS
from vit_tf.names import choose

# Names of transformers' `ACT2FN`, and the forms that they stand for.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}
MOST = {"num_hidden_layers": MOST_LAYERS, "num_channels": 1000}


class Config:
    """Typed access to the fields of a model's configuration; each raises a ValueError.

    Args:
        fields: dict of the fields.
        file: name of the file that they are of.
    """

    def __init__(self, fields, file="config.json"):
        self.fields, self.file = fields, file

    def whole(self, name):
        """An integer above 0."""
        value = self.fields.get(name)
        if type(value) is not int or not 0 < value <= MOST.get(name, 2**31):
            raise ValueError(
                f"Expected {name} of {self.file} to be an integer above 0. Received: {value!r}"
            )
        return value

    def flag(self, name, default):
        """True or False; `default`, that of transformers, where the file is silent."""
        value = self.fields.get(name, default)
        if type(value) is not bool:
            raise ValueError(
                f"Expected {name} of {self.file} to be true or false. Received: {value!r}"
            )
        return value

    def number(self, name):
        """A number above 0 and below 1, such as an epsilon."""
        value = self.fields.get(name)
        if not isinstance(value, Real) or not 0 < value < 1:
            raise ValueError(
                f"Expected {name} of {self.file} to be a number above 0 and below 1. "
                f"Received: {value!r}"
            )
        return float(value)

    def pair(self, name):
        """(height, width) of one or two integers above 0."""
        value = self.fields.get(name)
        pair = (value, value) if type(value) is int else value
        fit = isinstance(pair, list | tuple) and all(type(n) is int and n > 0 for n in pair)
        if not fit or len(pair) != 2:
            raise ValueError(
                f"Expected {name} of {self.file} to be one or two integers. Received: {value!r}"
            )
        return tuple(pair)

    def require(self, name, value):
        """Raises unless a field, where it is present, has the only value that is supported."""
        received = self.fields.get(name, value)
        if received != value:
            raise ValueError(
                f"Expected {name} of {self.file} to be {value!r}, which is all that is supported. "
                f"Received: {received!r}"
            )

    def activation(self):
        """The form of the GELU, by the name that `vit_tf.ViT` gives it."""
        return choose("hidden_act of config.json", str(self.fields.get("hidden_act")), ACTIVATIONS)


def image_fields(folder, whole):
    """Fields of the image encoder: those of `vision_config` where there is a text encoder too.

    Args:
        folder: the open folder.
        whole: the values of `model_type` with both encoders.

    Raises:
        ValueError: for a `vision_config` that is missing or no object.
    """
    fields = folder.config
    if fields["model_type"] in whole:
        fields = fields.get("vision_config")
    if not isinstance(fields, dict):
        raise ValueError(
            f"Expected vision_config of config.json to be an object. Received: {fields!r}"
        )
    return fields


def class_names(fields, num_classes):
    """Names of the classes in a classifier's `id2label`, or None.

    Some of ImageNet's classes have one name, which transformers' files do not separate: these get
    the number of their class. Names that transformers makes up, `LABEL_0` and so on, are none.

    Args:
        fields: those of the model's configuration.
        num_classes: number of the file's logits.

    Raises:
        ValueError: for labels that are not those of so many classes.
    """
    told = fields.get("id2label")
    if told is None:
        return None
    keys = [str(i) for i in range(num_classes)]
    names = isinstance(told, dict) and all(isinstance(name, str) for name in told.values())
    if not names or sorted(told) != sorted(keys):
        raise ValueError(
            f"Expected id2label of config.json to name the classes 0 to {num_classes - 1}. "
            f"Received: {str(told)[:200]}"
        )
    names = [told[key] for key in keys]
    if names == [f"LABEL_{key}" for key in keys]:
        return None
    counts = Counter(names)
    names = [f"{n} ({key})" if counts[n] > 1 else n for n, key in zip(names, keys, strict=True)]
    return tuple(names)
