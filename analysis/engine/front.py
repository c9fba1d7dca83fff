"""The front of every measurement: a model becomes features, and images become batches.

A measurement is written for a callable from images to `{layer: tensor}` and for batches of images
as a model takes them. `measurement` decorates it so that it takes whatever has an answer.
"""

import fnmatch
import functools
import inspect
import os
from collections.abc import Mapping
from dataclasses import replace

import keras
import numpy as np
import tensorflow as tf

import vit_tf
from vit_tf.data.any_images import as_images, is_raw
from vit_tf.image_checks import innermost_features
from vit_tf.names import as_patterns, listed, match, unknown_name
from vit_tf.preprocessing import Preprocessing
from vit_tf.taps import recorder
from vit_tf.taps.attention_weights import computed_weights
from vit_tf.taps.representations import find_blocks, find_representations, last_output
from vit_tf.taps.submodels import TapModel
from vit_tf.tokens import TokenGrid

from .derived import Normalised
from .features import of_arrays, require_model, require_scores, taps_of
from .results import model_name

MODELS = ("features", "features_x", "features_y", "features_vit", "features_other", "source")
IMAGES = ("images", "train", "test", "queries", "database")
MAX_CLASSES = 5  # that are explained where none are given

# What is read of a whole model: what an error calls it, the taps of the tap grammar, and those of
# models of other origin. Kinds without patterns are chosen among the representations.
KINDS = {
    "representations": ("representations", (), ()),
    "outputs": ("representations", (), ()),  # without an embedding whose CLS token is constant
    "tokens": ("representations on a grid", (), ()),
    "output_tokens": ("representations on a grid", (), ()),
    "lens": ("blocks", (), ()),
    "patching": ("blocks of tokens", (), ()),
    "maps": ("maps", (), ()),
    "class_maps": ("maps", (), ()),
    "embedding": ("tokens", ("embedding", "block00/attention/weights"), ()),
    "attention": ("attention weights", ("*/attention/weights",), ("*/weights",)),
    "class_attention": ("attention weights", ("*/attention/weights",), ("*/weights",)),
    "rollout": (
        "attention weights and skips",
        tuple(f"block*/*/{what}" for what in ("weights", "skip", "branch", "sum")),
        ("*/weights",),
    ),
    "heads": ("outputs of attention heads", ("*/heads",), ("*/value",)),
    "block_heads": ("such a block", ("{block}/attention/weights", "{block}/attention/heads"), ()),
    "skips": ("skips and branches", ("*/skip", "*/branch"), ()),
    "ablated_skips": ("skips and branches", ("*/skip", "*/branch"), ()),
    "norms": ("norms of blocks", ("*/norm", "norm"), ()),
    "scores": ("scores", (), ()),
}
WITH_SCORES = {
    *("lens", "patching", "class_maps", "embedding", "class_attention", "heads"),
    *("ablated_skips", "scores"),
}
ON_GRID = {"tokens", "output_tokens", "lens", "patching", "maps", "class_maps", "embedding"}


def features_of(model, kind="representations", layers=None, block="block00"):
    """What a measurement reads of a model: a callable from images to `{layer: tensor}`.

    Of a whole model these are the layers of a kind; a submodel, a SavedModel and a function are
    taken as they are, unless `layers` chooses among theirs.

    Args:
        model: a built Keras model of one input, this package's or another; a submodel or a
            SavedModel; the path of one of these or the name of a pretrained model, as
            `vit_tf.load` opens them; or a function from images to `{layer: tensor}`, also one of
            NumPy arrays, which is run eagerly.
        kind: `"representations"`, as of `vit_tf.submodel(model)`, `"attention"`, `"skips"`,
            `"scores"` or another key of `KINDS`.
        layers: shell pattern, name, or list of them, in the place of the layers of the kind.
        block: name of the block of the kind `"block_heads"`.

    Raises:
        ValueError: for what is none of these, a model without layers of this kind, or a pattern
            that fits no layer; near matches are listed.

    Examples:
        features = analysis.features_of("vit-cls-cifar10", layers="block*/mlp/sum")
    """
    if isinstance(model, str | os.PathLike) and "*" not in os.fspath(model):
        return features_of(vit_tf.load(model), kind, layers, block)
    require_model(model)
    patterns = () if layers is None else as_patterns([layers])
    if not isinstance(model, keras.Model) or isinstance(model, TapModel):
        return _selected(model, patterns) if patterns else model
    scores = [last_output(model)] if kind in WITH_SCORES else []
    wanted = patterns or _of_kind(model, kind, block)
    features = vit_tf.submodel(model, *dict.fromkeys([*wanted, *scores]))
    if features.token_grid is None:
        features.token_grid = _infer_grid(features)
    if not patterns and kind in ON_GRID:
        features = _on_grid(features, kind, scores)
    if not patterns and kind.startswith("output") and features.token_grid:
        first, *others = features.taps
        if features.token_grid.prefix and others and "embed" in first:
            grid, features = features.token_grid, vit_tf.submodel(features, *others)
            features.token_grid = grid
    features.num_classes = getattr(model, "num_classes", None)
    features.class_names = getattr(model, "class_names", None)
    return features


def _of_kind(model, kind, block):
    """The taps of a kind that a whole model has; of one of shapes, those to choose from."""
    words, own, foreign = KINDS[kind]
    if kind == "scores":
        return []
    is_own, patterns = hasattr(model, "intermediates"), ()
    if not (own if is_own else foreign):
        find = find_blocks if kind in ("lens", "patching") else find_representations
        taps = find(model) if not own or kind == "embedding" else []
    elif is_own:
        patterns, taps = [pattern.format(block=block) for pattern in own], model.taps
    else:
        found = [*recorder.find_taps(model)]
        patterns, taps = foreign, [*found, *computed_weights(model, found)]
    if patterns:
        taps = [tap for tap in taps if any(fnmatch.fnmatchcase(tap, p) for p in patterns)]
    if not taps:
        raise ValueError(
            f"Expected a model with {words}. Received: {model.name!r}, a {type(model).__name__} "
            "without any that are known; layers= chooses others"
        )
    return taps


def _on_grid(features, kind, scores):
    """The features whose shapes are those that a kind is about: on one grid, or maps."""
    shapes = {tap: tuple(x.shape[1:]) for tap, x in features.output.items() if tap not in scores}
    grid = features.token_grid
    if kind in ("maps", "class_maps"):
        maps = {tap: shape[:2] for tap, shape in shapes.items() if len(shape) == 3}
        kept = list({size: tap for tap, size in maps.items()}.values())
    else:
        kept = [tap for tap, shape in shapes.items() if _lies_on(grid, tap, shape)]
    if kind in ("lens", "patching"):
        kept = [tap for tap in kept if shapes[tap][-1] == shapes[kept[-1]][-1]]
    if kind == "embedding":
        kept = [*kept[:1], *(tap for tap in shapes if tap.endswith("/weights"))]
    if not kept:
        raise ValueError(
            f"Expected a model with {KINDS[kind][0]}. Received: {features.name!r} with none among "
            f"{listed(shapes)}; layers= chooses others"
        )
    if [*kept, *scores] == list(features.output):
        return features
    chosen = vit_tf.submodel(features, *dict.fromkeys([*kept, *scores]))
    chosen.token_grid = grid
    return chosen


def _lies_on(grid, tap, shape):
    """Whether a tap of a shape without the example axis holds the tokens of a grid."""
    if grid is None or tap.endswith("/weights"):
        return False
    if len(shape) == 3:
        return not grid.prefix and shape[:2] == (grid.rows, grid.columns)
    return len(shape) == 2 and shape[0] == grid.num_tokens


def _infer_grid(features):
    """The `TokenGrid` of a submodel whose model declares none, or None where it cannot be inferred.

    Square patches that tile the image and leave the fewest tokens, 8 at most, for the prefix; of a
    model of maps the last map's.
    """
    height, width = features.input_shape[1:3]
    if not height or not width:
        return None
    shapes = {tap: tuple(x.shape[1:]) for tap, x in features.output.items()}
    counts = [
        shape[-2]
        for tap, shape in shapes.items()
        if len(shape) == (3 if tap.endswith("/weights") else 2) and shape[-2]
    ]
    maps = [s for t, s in shapes.items() if len(s) == 3 and not t.endswith("/weights")]
    maps = [shape for shape in maps if None not in shape and shape[0] * shape[1] > 1]
    if not counts:
        if not maps or height % maps[-1][0] or height * maps[-1][1] != width * maps[-1][0]:
            return None
        return TokenGrid(*maps[-1][:2], 0, height // maps[-1][0])
    strides = [s for s in range(1, min(height, width) + 1) if not height % s and not width % s]
    tilings = [(height // stride, width // stride, stride) for stride in strides]
    fits = [
        TokenGrid(rows, columns, counts[-1] - rows * columns, stride)
        for rows, columns, stride in tilings
        if 0 <= counts[-1] - rows * columns <= min(8, rows * columns - 1)
    ]
    return min(fits, key=lambda grid: grid.prefix, default=None)


def _selected(features, patterns):
    """The taps of a submodel or a function that fit patterns."""
    if isinstance(features, TapModel):
        return vit_tf.submodel(features, *patterns)
    if hasattr(features, "taps"):
        match(patterns, features.taps)
    return Selected(features, patterns)


class Selected:
    """The taps of a function that fit patterns."""

    def __init__(self, features, patterns):
        self.name, self.features = model_name(features), features
        self.token_grid = getattr(features, "token_grid", None)
        self._patterns = patterns

    def __call__(self, images):
        taps = taps_of(self.features, images)
        return {name: taps[name] for name in match(self._patterns, tuple(taps))}


def measurement(kind="representations", any_size=False, **kinds):
    """Decorates a measurement so that it takes any model and any images, and `layers=`.

    Args:
        kind: as for `features_of`.
        any_size: whether images keep their size, which is not that of the model.
        **kinds: the kind of an argument that is of another one.
    """

    def decorate(function):
        @functools.wraps(function)
        def measure(*args, layers=None, **kwargs):
            # Not kept in the closure, of which `fingerprint` makes a key.
            signature = inspect.signature(function)
            try:
                given = signature.bind_partial(*args, **kwargs)
            except TypeError:
                return function(*args, **kwargs)  # which raises it in its own name
            _prepare(given.arguments, signature.parameters, kind, kinds, layers, any_size)
            return function(*given.args, **given.kwargs)

        layers = inspect.Parameter(
            "layers",
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation="str | Sequence[str] | None",
        )
        signature = inspect.signature(function)
        parameters = [*signature.parameters.values()]
        end = -1 if parameters[-1].kind is inspect.Parameter.VAR_KEYWORD else len(parameters)
        parameters.insert(end, layers)
        measure.__signature__ = signature.replace(parameters=parameters)
        return measure

    return decorate


def statistic_of(measure):
    """Decorates the function that makes the `Statistic` of a measurement: `measure.statistic`."""

    def decorate(function):
        measure.statistic, function.measurement = function, measure.__name__
        return function

    return decorate


def _prepare(given, parameters, kind, kinds, layers, any_size):
    """Replaces the arguments of a call by what the measurement is written for."""
    names = [name for name in MODELS if given.get(name) is not None]
    at_hand = [name for name in names if isinstance(given[name], Mapping)]
    if at_hand:
        _take_activations(given, names, parameters)
    models = {
        n: features_of(given[n], kinds.get(n, kind), layers, given.get("block", "block00"))
        for n in names
        if n not in at_hand
    }
    if "models" in parameters and "models" in given:
        models |= {("models", n): features_of(m, kind, layers) for n, m in _named(given["models"])}
    if not models and not at_hand:
        return
    data = {name: given[name] for name in IMAGES if name in given and not at_hand}
    if any(is_raw(images) for images in data.values()):
        models, expects = _on_same_images(models)
    else:
        expects = None
    if any_size and expects:
        expects = replace(expects, size=None, crop=None)
    for name, images in data.items():
        given[name] = as_images(images, expects)
    for name, features in models.items():
        if not isinstance(name, tuple):
            given[name] = features
    if "models" in given:
        given["models"] = {name[1]: f for name, f in models.items() if isinstance(name, tuple)}
    first = next(iter(models.values()), None)
    if "num_classes" in parameters and given.get("num_classes") is None:
        given["num_classes"] = _num_classes(first, given)
    if "scores" in parameters and "scores" not in given and isinstance(first, TapModel):
        given["scores"] = first.taps[-1]
    if "classes" in parameters and "images" in given:
        given["classes"] = _classes(first, given)


def _named(models):
    """Pairs of name and model of a dict, a list or one model."""
    return name_models(models).items()


def name_models(models):
    """A dict from name to model, of a dict, a list or one model.

    Raises:
        ValueError: for none, or two models of one name in a list.
    """
    if isinstance(models, Mapping):
        named = dict(models)
    else:
        models = list(models) if isinstance(models, list | tuple) else [models]
        named = {}
        for model in models:
            name, number = own_name(model), 2
            while name in named:
                name, number = f"{own_name(model)} ({number})", number + 1
            named[name] = model
    if not named:
        raise ValueError("Expected at least one model. Received: none")
    return named


def own_name(model):
    """The name of a model; of a path the name of its file without the ending."""
    if isinstance(model, str | os.PathLike):
        base = os.path.basename(os.path.normpath(model))
        return base.removesuffix(".keras")
    return model_name(model)


def _take_activations(given, names, parameters):
    """Makes rows of activations at hand the images, and features that return their columns."""
    labels = given.get("images")
    has_images = labels is not None and np.ndim(labels) != 1
    if has_images and "features_y" in parameters:
        raise ValueError(
            "Expected no images with activations: cka({name: array}), or "
            "cka({name: array}, features_y={name: array}). "
            f"Received: images={type(labels).__name__}"
        )
    if has_images or "images" not in parameters:
        require_model(given[names[0]])  # which raises what to do with them
    rows, *features = of_arrays(*(given[name] for name in names))
    given.update(zip(names, features, strict=True))
    given["images"] = rows if labels is None else (rows, np.asarray(labels))


def _on_same_images(models):
    """The models, and the `Preprocessing` of images that all of them can be shown.

    Models that expect different values have them made from values in [-1, 1].
    """
    expected = {n: getattr(innermost_features(f), "preprocessing", None) for n, f in models.items()}
    known = {n: e for n, e in expected.items() if e is not None}
    if not known:
        return models, None
    first = next(iter(known.values()))
    if all(one == first for one in known.values()):
        return models, first
    sizes = {models[name].name: one.size for name, one in known.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"Expected models that take images of one size. Received: {sizes}")
    plain = Preprocessing(first.size, interpolation=first.interpolation, crop=first.crop)
    return {n: Normalised(f, known[n]) if n in known else f for n, f in models.items()}, plain


def _num_classes(features, given):
    """The number of classes: that of the labels, of the data set or of the model."""
    data = [given[name] for name in ("train", "test") if given.get(name) is not None]
    arrays = [of[1] for of in data if isinstance(of, tuple) and len(of) > 1]
    if arrays:
        return 1 + max(int(np.max(labels)) for labels in arrays)
    for dataset in data:
        if getattr(dataset, "class_names", None):
            return len(dataset.class_names)
    if getattr(features, "num_classes", None):
        return features.num_classes
    labels = (batch[1] for of in data for batch in of)
    return 1 + max(int(np.max(batch)) for batch in labels)


def _classes(features, given):
    """Positions of classes given by name or number; by default those predicted for the images."""
    classes, names = given.get("classes"), getattr(features, "class_names", None) or ()
    if classes is None:
        scores, seen = given.get("scores", "logits"), []
        for batch in (
            given["images"] if isinstance(given["images"], tf.data.Dataset) else [given["images"]]
        ):
            images = batch[0] if isinstance(batch, tuple) else batch
            taps = taps_of(features, tf.cast(images, tf.float32))
            require_scores(taps, scores, [0])
            seen += np.argmax(taps[scores], 1).tolist()
        return [int(one) for one in dict.fromkeys(seen)][:MAX_CLASSES]
    classes = [classes] if isinstance(classes, str | int | np.integer) else list(classes)
    for name in classes:
        if isinstance(name, str) and name not in names:
            if not names:
                raise ValueError(
                    "Expected classes by number, as the model declares no class_names. "
                    f"Received: {name!r}"
                )
            raise unknown_name("class", name, names)
    return [names.index(one) if isinstance(one, str) else one for one in classes]
