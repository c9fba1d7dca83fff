"""What all models of this package share: their configuration, preprocessing and `call`."""

import os
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import keras
import numpy as np

from vit_tf.common.backend import Tensor, require_tensorflow_or_jax
from vit_tf.common.names import as_image_shape, as_names, lookup
from vit_tf.data.preprocessing import Preprocessing, fix_image_shape
from vit_tf.features.recorder import named_layers
from vit_tf.features.tokens import TokenGrid, prefix_names
from vit_tf.torch_models import is_torch_module

# What a user sets on a model of another package, for the measurements.
DECLARED = ("preprocessing", "class_names", "num_classes", "token_grid", "pooled_tokens")


class VisionModel(keras.Model):
    """A model of images that has a configuration and a preprocessing, to build others on.

    A subclass builds its layers and has `taps`, the names of its intermediates in depth order,
    and `intermediates(images, training=None)`, the dict of all of them; the last is its output. The
    images that it computes them of are those that `check_images` returns. `config` holds the
    arguments of its constructor, without the following ones. The `preprocessing` (a
    `Preprocessing`, its fields or None for values in [-1, 1]) and `class_names`, in the order of
    the logits, can be set later and are saved with the model.
    """

    variants: ClassVar[dict] = {}  # arguments by the name of a published size

    def __init__(
        self,
        config: dict[str, Any],
        preprocessing: Preprocessing | dict | None = None,
        class_names: Sequence[str] | None = None,
        **kwargs: Any,
    ):
        require_tensorflow_or_jax("the models of vit_tf")
        super().__init__(**kwargs)
        if config["num_classes"] is not None and config["num_classes"] < 1:
            raise ValueError(
                "Expected num_classes to be at least 1; for the features of a model use "
                f"vit_tf.submodel(model, 'pooled'). Received: num_classes={config['num_classes']}"
            )
        shape, sites = as_image_shape(config["image_shape"]), as_names(config["without_skips"])
        self._config = config | {"image_shape": shape, "without_skips": sites}
        self.image_shape, self.num_classes = shape, config["num_classes"]
        self.preprocessing = preprocessing
        self.class_names = class_names

    @classmethod
    def from_variant(cls, variant: str, **kwargs: Any) -> "VisionModel":
        """A model of a published size, such as `"B/16"`; keyword arguments as for the class."""
        return cls(**lookup("variant", variant, cls.variants) | kwargs)

    @property
    def preprocessing(self) -> Preprocessing:
        """The `Preprocessing` of the images; it is saved with the model."""
        return self._preprocessing

    @preprocessing.setter
    def preprocessing(self, value: Preprocessing | dict | None) -> None:
        default = Preprocessing.of(self.image_shape)
        value = default if value is None else Preprocessing.from_config(value)
        if value.size is None:
            value = replace(value, size=default.size)
        if value.size != default.size or len(value.mean) != len(default.mean):
            raise ValueError(
                "Expected preprocessing to be of the size and the channels of "
                f"image_shape={tuple(self.image_shape)}. Received: {value}"
            )
        self._preprocessing = value

    @property
    def without_skips(self) -> tuple[str, ...]:
        """Names of the sublayers or units without a skip; fixed when the model is made."""
        return self._config["without_skips"]

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes in the order of the logits: a tuple, or None where unknown."""
        return self._class_names

    @class_names.setter
    def class_names(self, names: Sequence[str] | None) -> None:
        names = None if names is None else tuple(map(str, names))
        if names is not None and not len(names) == len(set(names)) == self.num_classes:
            raise ValueError(
                f"Expected class_names to be {self.num_classes} different names. "
                f"Received: {len(names)} names, {len(set(names))} of them different"
            )
        self._class_names = names

    @property
    def patch_kernel(self) -> np.ndarray | None:
        """The projection of patches of the image: (row, column, channel, hidden unit), or None."""
        return None

    @property
    def prefix_names(self) -> tuple[str, ...]:
        """Names of the prefix tokens, in their order, such as `("CLS",)`."""
        grid = self.token_grid
        return prefix_names(grid.prefix if grid else 0)

    @property
    def pooled_tokens(self) -> tuple[int, ...] | None:
        """Positions of the tokens that the head uses (averages or attends to), or None."""
        grid = self.token_grid
        if grid is None:
            return None
        cls = grid.prefix and getattr(self, "pooling", "cls") == "cls"
        return (0,) if cls else tuple(range(grid.prefix, grid.num_tokens))

    @property
    def position_embedding(self) -> np.ndarray | None:
        """The absolute position embeddings, of shape (token, hidden unit), or None."""
        return None

    @property
    def accepted_shape(self) -> tuple[int | None, ...]:
        """Shape of the batches of images that the model accepts, None standing for any size."""
        return (None, *self.image_shape)

    def check_images(self, images: Tensor) -> Tensor:
        """Images, whose shape is checked to be an accepted one, now or when a graph runs."""
        return fix_image_shape(images, self.accepted_shape)

    def call(self, images: Tensor, training: bool | None = None) -> Tensor:
        return self.intermediates(images, training=training)[self.taps[-1]]

    def quantize(self, mode: str | None = None, config: Any = None, **kwargs: Any) -> None:
        """Converts the kernels of linear layers to int8, so that they are no longer trainable.

        Arguments are those of `keras.Model.quantize`, with `mode="int8"` and the default
        quantizers. Others raise a ValueError, since a saved model could not be loaded with them.
        """
        default = keras.quantizers.Int8QuantizationConfig().get_config()
        if mode != "int8" or config.get_config() != default:
            raise ValueError(
                "Expected mode to be 'int8' with the default quantizers: models of vit_tf cannot "
                f"be loaded with others. Received: mode={mode!r}, {type(config).__name__}"
            )
        super().quantize(mode=mode, config=config, **kwargs)

    def _linear_layers(self) -> dict[str, keras.layers.Layer]:
        """dict from path inside the model to layer, of those that can be quantized."""
        layers = (x for x in self._flatten_layers() if isinstance(x, keras.layers.Dense))
        # Keras gives each layer a path when it is made, before which it is None.
        return {cast(str, layer.path).partition("/")[2]: layer for layer in layers}

    def get_config(self) -> dict[str, Any]:
        config = super().get_config() | self._config
        if self.preprocessing != Preprocessing.of(self.image_shape):
            config["preprocessing"] = self.preprocessing.to_config()
        if self.class_names is not None:
            config["class_names"] = list(self.class_names)
        linear = self._linear_layers().items()
        if quantized := [path for path, layer in linear if layer.quantization_mode]:
            config["quantized"] = quantized
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "VisionModel":
        config = dict(config)
        quantized = config.pop("quantized", ())
        model = super().from_config(config)
        linear = model._linear_layers()
        for path in quantized:
            linear[path].quantize("int8")
        return model


def weights_by_name(model: keras.Model) -> dict[str, keras.Variable]:
    """dict from the path of each weight inside its model to the weight."""
    return {weight.path.partition("/")[2]: weight for weight in model.weights}


def name_after(model: keras.Model, source: str | os.PathLike) -> keras.Model:
    """The model, named after its file, folder or public name unless it has a name of its own."""
    plain = model.name.replace("_", "").rstrip("0123456789")
    if plain in (type(model).__name__.lower().replace("_", ""), "functional"):
        source = os.fspath(source).removeprefix("hf://").rstrip("/")
        folder, file = os.path.split(os.path.abspath(source) if os.path.exists(source) else source)
        stem = re.sub(r"\.(keras|npz|safetensors|pth|pt|tar|bin)$", "", file)
        stem = os.path.basename(folder) if stem == "model" and folder else stem
        # TensorFlow traces no model with another name.
        model.name = (
            re.sub(r"^[^A-Za-z0-9.]|[^A-Za-z0-9_.>-]", "_", stem).lstrip("_->") or model.name
        )
    return model


class ConfiguredLayer(keras.layers.Layer):
    """A layer that is saved with the arguments of its constructor, `config`."""

    def __init__(self, config: dict[str, Any], **kwargs: Any):
        super().__init__(**kwargs)
        self._config = config

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | self._config

    def make(
        self, kind: Callable[..., Any], *args: Any, name: str, **options: Any
    ) -> keras.layers.Layer:
        """A layer inside this one, in its precision."""
        return kind(*args, dtype=self.dtype_policy, name=name, **options)


def as_grid(grid: TokenGrid | dict) -> TokenGrid:
    """A `TokenGrid`, or the one that a configuration holds as a dict."""
    return TokenGrid(**grid) if isinstance(grid, dict) else grid


def site_taps(sites: dict, skips: tuple) -> tuple:
    """Taps of each site in turn: its own, skip where it is kept, branch and sum."""
    ends = {site: ("skip",) * (site in skips) + ("branch", "sum") for site in sites}
    return tuple(f"{site}/{tap}" for site in sites for tap in (*sites[site], *ends[site]))


def _tap_prefix(layer: keras.layers.Layer) -> str:
    return layer.name.replace("_", "/")


def inner_taps(layers: Iterable) -> list[str]:
    """Names of the taps of layers inside a model, in depth order."""
    return [f"{_tap_prefix(layer)}/{tap}" for layer in layers for tap in layer.taps]


def run_inner(layer: keras.layers.Layer, x: Tensor, taps: dict, *args: Any, **kwargs: Any) -> dict:
    """What a layer returns, a dict of its intermediates, which are added to the model's taps."""
    inside = layer(x, *args, **kwargs)
    taps |= {f"{_tap_prefix(layer)}/{tap}": inside[tap] for tap in layer.taps}
    return inside


def zero_head(num_classes: int, name: str = "head") -> keras.layers.Dense:
    """A linear layer to logits in float32 that starts at zero."""
    return keras.layers.Dense(num_classes, kernel_initializer="zeros", dtype="float32", name=name)


def reinitialize(model: Any, seed: int = 0) -> Any:
    """A randomly initialized copy of a model, for use as an untrained baseline.

    The copy of a Keras model keeps statistics of the data, which a layer such as `Normalization`
    has from its method `adapt`, and what is set on the model, such as `preprocessing`. The global
    random state does not change. If a layer of another package has an initializer with
    its own seed, it keeps this seed.

    Args:
        model: a built `keras.Model` that can be rebuilt from its configuration, or a PyTorch
            module. Modules of Transformers and timm get the weights that the library gives a new
            model. In other modules, each layer draws its weights by its method `reset_parameters`,
            which the layers of PyTorch have.
        seed: seed of the random weights. Equal seeds give equal weights.

    Returns:
        Model of the same class. A Keras model is built and not compiled.

    Raises:
        ValueError: if `model` is neither, is not built, or holds weights that no
            `reset_parameters` draws.

    Examples:
        untrained = vit_tf.reinitialize(vit, seed=1)
    """
    if is_torch_module(model):
        from vit_tf.torch_models.random_weights import randomly_initialized  # imports PyTorch

        return randomly_initialized(model, seed)
    if not isinstance(model, keras.Model) or not model.built:
        raise ValueError(f"Expected model to be a built keras.Model. Received: {model!r}")
    state = random.getstate()
    random.seed(seed)  # from which Keras draws the seed of every initializer
    try:
        untrained = type(model).from_config(model.get_config())
        if not untrained.built:
            untrained.build_from_config(model.get_build_config())
    finally:
        random.setstate(state)
    # Statistics of the data, such as those of an adapted `Normalization`, are no trained weights.
    for (_, layer), (_, copy) in zip(named_layers(model), named_layers(untrained), strict=True):
        if hasattr(layer, "adapt") and layer.weights:
            statistics: dict[str, Any] = {}
            layer.save_own_variables(statistics)
            copy.load_own_variables(statistics)
    # What a user has set on a model of another package is not in its configuration.
    for name in DECLARED:
        if hasattr(model, name) and not hasattr(untrained, name):
            setattr(untrained, name, getattr(model, name))
    return untrained
