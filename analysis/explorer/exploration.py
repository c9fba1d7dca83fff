"""Exploring single images: opened, measured, and written as one page of rounded values."""

import base64
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import tensorflow as tf
import xarray as xr

import vit_tf
from vit_tf.common.errors import explain
from vit_tf.common.names import join_words, without_password
from vit_tf.data.any_images import as_images
from vit_tf.data.files import write_whole
from vit_tf.data.known_forms import Examples, in_known_form
from vit_tf.data.preprocessing import Preprocessing, require_levels
from vit_tf.features.conversion import facts_of, name_models, own_name

from ..engine.class_scores import ClassesLike, as_probabilities
from ..engine.results import encode_picture, layer_names
from ..engine.stream import eager_steps
from ..figures.models import (
    PROBES,
    LoadedModel,
    describe_model,
    open_model,
    slug,
    study_model,
)
from ..flow.attribution import require_samples
from ..plots.style import colour_map
from ..report.first_screen import LeftOut
from ..report.page import as_json, in_frame, require_own, write_page
from .exploration_results import (
    FLAT,
    MEASURES,
    MeasurementPanel,
    Subject,
    collect_results,
    is_flat,
)

MAX_LISTED = 4  # images in the title by name
MOST_PIXELS = 112  # a side of a map of pixels on the page
ATTENTION_BITS = 8  # of a weight
PREDICTIONS = 5  # classes that the model predicts for an image
SPAN = (2, 98)  # percentiles of a principal component that colours run between
BEST = 3  # classes with the highest scores in a layer: top-1 to top-3
LEVELS = {8: 255, 16: 65_535}
MOST_PHOTO = 448  # pixels of a side of a photograph on the page
# Kinds of the large map that the page opens with, and the results that they need, best first.
FIRST = {
    "attention": "attention",
    "cam": "grad_cam",
    "nearest": "similarity",
    "gradients": "input_gradients",
}
# The results that each panel of the page shows; most panels have the name of their result.
RESULTS_OF_PANELS = {name: (name,) for name in MEASURES} | {
    "relevance": ("gradient_attention",),
    "gradients": ("input_gradients",),
    "cam": ("grad_cam",),
    "lens": ("logit_lens",),
    "classes": ("scores",),
    "evidence": ("gradient_attention", "input_gradients", "grad_cam"),
}


@dataclass(frozen=True)
class Exploration:
    """An interactive page that was written to a file; a notebook displays it in a frame.

    For several models, `results`, `left_out` and `calls` are dicts from the name of a model to the
    value described below.

    Attributes:
        path: path of the HTML file.
        results: dict from result name to labelled result. If the grid of a result differs between
            layers, the value is a dict from layer to the result of this layer.
        left_out: the views that are missing, as a list of pairs: what the view shows, and a list of
            sentences that give the reasons.
        calls: dict from result name to a Python expression that computes the result from `model`
            and `images`. Only results that a measurement computes have an entry.
    """

    path: Path
    results: dict[str, Any] = field(repr=False)
    left_out: LeftOut | dict[str, LeftOut] = field(repr=False)
    calls: dict[str, Any] = field(repr=False, default_factory=dict)

    def save_results(self, folder: str | os.PathLike) -> None:
        """Writes a netCDF file `NAME.nc` for each result.

        If a result is a dict from layer to result, the file has a group for each layer. The
        results of several models are in one folder for each model, with the name of the model.
        """
        folder = Path(folder)
        are_several = isinstance(self.left_out, dict)
        for model, results in self.results.items() if are_several else [("", self.results)]:
            for name, result in results.items():
                if isinstance(result, dict):
                    result = xr.DataTree.from_dict(
                        {
                            layer: x.to_dataset(name=name) if isinstance(x, xr.DataArray) else x
                            for layer, x in result.items()
                        }
                    )
                path = folder / (slug(model) if are_several else "") / f"{name}.nc"
                write = partial(result.to_netcdf, engine="h5netcdf")
                write_whole(path, write)

    def select(self, name: str) -> "Exploration":
        """The page of several models, with the results of one model only."""
        left_out = cast(dict[str, LeftOut], self.left_out)[name]
        return Exploration(self.path, self.results[name], left_out, self.calls[name])

    def _repr_html_(self) -> str:
        return in_frame(self.path)


def explore(
    model: Any,
    images: Any,
    path: str | os.PathLike = "explore.html",
    *,
    name: str | None = None,
    preprocessing: Any = None,
    image_size: int | tuple[int, int] | None = None,
    taps: Sequence[str] = (),
    patch_size: int | None = None,
    prefix: int | None = None,
    classes: ClassesLike = None,
    samples: int = 6,
    noise: float = 0.1,
    seed: int = 0,
) -> Exploration:
    """Writes an interactive page that shows how one or more models process single images.

    The page shows:

    * the attention of each query, attention rollout and gradient-weighted attention,
    * input gradients and Grad-CAM,
    * the similarity and correspondence of patches, and features as colours,
    * the predicted classes by layer and by patch,
    * the effect of removing heads and blocks,
    * norms and receptive fields.

    The page also lists results that do not apply to the model, with the reasons. Several models
    are shown side by side, and a patch that is selected in one model is selected in all models.

    Examples:
        analysis.explore(vit, ["cat.jpg", "dog.jpg"], "cat.html")
        analysis.explore(["vit-cls-cifar10", "bit-cifar10"], "cat.jpg")

    Args:
        model: one model, a list of models, or a dict from name to model. A model is a built Keras
            model with images as its only input, a PyTorch module, the path of a model, the name of
            a pretrained model, or a function from images to a dict from layer to tensor.
        images: one image or a list of images: paths of files or folders, PIL images, or arrays of
            shape (height, width, channel) with values in [0, 255]; or a `tf.data.Dataset` of such
            arrays, with or without labels, batched or not; or a pair of images and their integer
            labels. Images are resized to the size that the model expects.
        path: path of the HTML file that is written.
        name: name of a single model; by default, the model's own name.
        preprocessing: the `vit_tf.Preprocessing` that the model expects, for a model that does not
            specify it.
        image_size: side of the images in pixels, for a model that accepts images of any size.
        taps, patch_size, prefix: as for `make_report`, for models whose layers or tokens are
            unknown.
        classes: positions of the classes to explain. By default, these are the five classes with
            the highest scores if there is a single image, and the three classes with the highest
            scores for each image if there are several. Results contain NaN for a class that was
            selected for another image.
        samples, noise, seed: as for `input_gradients`.

    Returns:
        The `Exploration`, with the path of the page and the results as xarray objects. For several
        models, the results are grouped by model.

    Raises:
        ValueError: if images cannot be read, if the size of images is unknown, or if the model does
            not have the given classes.
        ValueError: if no result applies to the model, or if `path` is a file that vit_tf did not
            write.
    """
    settings = {
        "preprocessing": preprocessing,
        "image_size": image_size,
        "taps": taps,
        "patch_size": patch_size,
        "prefix": prefix,
        "classes": classes,
        "samples": samples,
        "noise": noise,
        "seed": seed,
    }
    if isinstance(model, list | tuple | Mapping):
        models = {n: (single_model, settings) for n, single_model in name_models(model).items()}
        return explore_models(models, images, path)
    if isinstance(model, str | os.PathLike):
        model, name = vit_tf.load(model), name or own_name(model)
    page_name = name or own_name(model)
    return explore_models({page_name: (model, settings)}, images, path).select(page_name)


def explore_models(
    models: Mapping[str, tuple[Any, dict[str, Any]]], images: Any, path: str | os.PathLike
) -> Exploration:
    """Write one page of several models; an `Exploration` with a dict from name for all."""
    require_own(path)
    pictures, image_names, labels = read_images(images)
    views, results, left_out, calls = [], {}, {}, {}
    for name, (model, settings) in models.items():
        model = open_model(model)
        opened, subject, photos = open_subject(name, model, pictures, **settings)
        with eager_steps():
            results[name], left_out[name] = collect_results(subject)
        view = _view(opened, subject, photos, results[name], left_out[name], labels)
        calls[name] = view["calls"]
        if not results[name]:
            reasons = " ".join(dict.fromkeys(r for _, why in left_out[name] for r in why))
            raise ValueError(f"None of the results can be shown for these models: {reasons}")
        views.append(view)
    packages = ("tensorflow", "keras")
    data = {
        "images": image_names,
        "colours": colour_map(),
        "models": [{"name": view["name"], **view["payload"]} for view in views],
    }
    words = {view["shown"]["cell"]: view["shown"]["cells"] for view in views}
    count = len(image_names)
    shown_images = join_words(image_names) if count <= MAX_LISTED else f"{count} images"
    written = write_page(
        path,
        "explore",
        True,
        __package__ or "",
        title=f"{join_words(models)}: {shown_images}",
        payload=as_json(data),
        views=[
            {**view, "number": number, "suffix": f"-{number + 1}" if number else ""}
            for number, view in enumerate(views)
        ],
        several=count > 1,
        cell=next(iter(words)) if len(words) == 1 else "position",
        cells=next(iter(words.values())) if len(words) == 1 else "positions",
        image_names=image_names,
        versions=[f"vit_tf {vit_tf.__version__}", *(f"{x} {version(x)}" for x in packages)],
    )
    return Exploration(written, results, left_out, calls)


def open_subject(
    name: str,
    model: Any,
    pictures: Sequence[np.ndarray],
    *,
    preprocessing: Any,
    image_size: int | tuple[int, int] | None,
    taps: Sequence[str],
    patch_size: int | None,
    prefix: int | None,
    samples: int,
    noise: float,
    **options: Any,
) -> tuple[LoadedModel, Subject, list[tuple[np.ndarray, np.ndarray]]]:
    """The `LoadedModel`, it and its images as a `Subject`, and pairs (photograph, as seen)."""
    require_samples(samples, noise)
    expects = preprocessing or facts_of(model).expected_images
    opened = LoadedModel(
        name, model, expects, taps=tuple(taps), patch_size=patch_size, prefix=prefix
    )
    size: Any = expects.size or (image_size and (image_size, image_size))
    if not size:
        raise ValueError("The model takes images of any size: specify image_size=.")
    if image_size and tuple(size) != (image_size, image_size):
        raise ValueError(
            f"Expected images of {size[0]} x {size[1]} pixels, as {name} takes. "
            f"Received: image_size={image_size}"
        )
    framing = expects.framing(tuple(size))
    batch = np.stack([_framed(picture, framing) for picture in pictures])
    # The shapes of taps are read on a few different images.
    probes = batch
    if len(batch) < PROBES:
        probes = np.concatenate([batch, batch[:, ::-1], -batch])[:PROBES]
    studied = study_model(opened, probes)[0]
    subject = Subject(
        replace(studied, features=studied.features.with_pooled_tokens()),
        batch,
        samples=samples,
        noise=noise,
        **options,
    )
    if subject.classes is not None:
        (num_classes,) = subject.model.shapes[subject.model.require_scores()]
        are_there = [
            isinstance(x, int | np.integer) and 0 <= x < num_classes for x in subject.classes
        ]
        if not all(are_there) or not are_there:
            raise ValueError(
                f"Expected classes to be integers from 0 to {num_classes - 1}. "
                f"Received: {list(subject.classes)}"
            )
    photos = [
        (_photo(picture, expects, size), _photo(picture, expects, size, largest=0))
        for picture in pictures
    ]
    return opened, subject, photos


def _photo(
    picture: np.ndarray, expects: Any, size: tuple[int, int], largest: int = MOST_PHOTO
) -> np.ndarray:
    """What the model sees of a picture, with as many more pixels as it has and a page shows."""
    is_squeezed = expects.crop is None or expects.aspect == "squeeze"
    visible_size = np.array(picture.shape[:2]) if is_squeezed else min(picture.shape[:2])
    most = np.minimum(largest, visible_size * (expects.crop or 1))
    times = max(1, int(np.min(most / np.array(size))))
    framing = expects.framing(tuple(times * side for side in size))
    framed = _framed(picture, replace(framing, mean=(0.5,) * 3, std=(0.5,) * 3))
    return np.rint((framed + 1) * 127.5).clip(0, 255).astype(np.uint8)


def _framed(picture: np.ndarray, preprocessing: Preprocessing) -> np.ndarray:
    """A picture of any number of channels as a preprocessing makes it."""
    from vit_tf.data.imaging import framing_of

    picture = picture[..., None] if picture.ndim == 2 else picture
    require_levels(picture)
    return framing_of(preprocessing, picture.shape[:2]).fit(tf.convert_to_tensor(picture)).numpy()


def _view(
    opened: LoadedModel,
    subject: Subject,
    photos: Sequence[tuple[np.ndarray, np.ndarray]],
    results: dict[str, Any],
    left_out: LeftOut,
    labels: Sequence[int | str | None],
) -> dict[str, Any]:
    """What the page shows of a model: name, numbers, panels, what is left out, and facts."""
    classes = subject.model.features.facts.class_names
    row = describe_model(opened, subject.model)
    packed = {}
    for name, result in list(results.items()):
        try:
            packed[name] = PACKERS[name](result, subject, classes)
        except Exception as error:
            title, _ = MEASURES[name]
            left_out.append((title, [explain(error, f"{title} of {opened.name}")]))
            del results[name]
    payload = make_payload(subject, results, photos, classes, packed)
    if "scores" in results:
        predicted = results["scores"].values.argmax(axis=-1).tolist()
        for example, label, number in zip(payload["examples"], labels, predicted, strict=True):
            example |= compare_with_label(label, number, classes)
    panels = {name: MEASURES[name][1] for name in results}
    calls = {
        name: panel.call(subject)
        for name, panel in panels.items()
        if isinstance(panel, MeasurementPanel)
    }
    return {
        "name": opened.name,
        "calls": calls,
        "panel_calls": {
            panel: [calls[name] for name in names if name in calls]
            for panel, names in RESULTS_OF_PANELS.items()
        },
        "payload": payload,
        "shown": _shown(subject, results),
        "left_out": left_out,
        "facts": {key: value for key, value in row.items() if value is not None}
        | {"expects": opened.expects.describe()},
    }


def _shown(subject: Subject, results: Mapping[str, Any]) -> dict[str, Any]:
    """What there is to show: which panels the page has, and words in their texts."""
    grid, has = subject.model.grid, results.keys()
    tokens = bool(subject.model.has_tokens)
    return {panel: bool(has & {*names}) for panel, names in RESULTS_OF_PANELS.items()} | {
        "size": "{} x {}".format(*subject.images.shape[1:3]),
        "heads": "removals" in has and len(results["removals"]["removed"]) > 1,
        "flat": FLAT if is_flat(results) else "",
        "pooled": subject.pooled_name if tokens and grid else "",
        "grid": f"{grid.rows} x {grid.columns}" if grid else "",
        "queries": bool(tokens and grid and has & {"attention", "rollout"}),
        "first": next((kind for kind, name in FIRST.items() if name in has), ""),
        "cell": "patch" if tokens else "position",
        "cells": "patches" if tokens else "positions",
        "samples": subject.samples,
        "steps": LEVELS[ATTENTION_BITS],
    }


def read_images(images: Any) -> tuple[list[np.ndarray], list[str], list[int | str | None]]:
    """Images as uint8 or float arrays with values in [0, 255], their names and their labels.

    A label is a number, the name of a class or of its folder, or None.
    """
    from vit_tf.data.folder import decode_file, is_image
    from vit_tf.data.imaging import pixels_of

    labels: list[Any] = []
    given_labels: list[int] | None = None
    # A pair of images and their integer labels, and no pair of images.
    if isinstance(images, tuple) and len(images) == 2 and not _is_one(images[1]):
        given = np.asarray(images[1])
        if given.ndim == 1 and given.dtype.kind in "iu":
            images, given_labels = images[0], _class_labels(given.tolist()) or None
    if hasattr(images, "__next__"):
        images = list(images)
    # Dicts and tables of images and labels become pairs.
    if not isinstance(images, list | tuple):
        images = in_known_form(images)
        if isinstance(images, tuple):
            return read_images(images)
    if isinstance(images, Examples):
        images, *others = zip(*images.read_singly(), strict=True)
        labels = _class_labels([np.asarray(x).tolist() for x in others[0]]) if others else []
    elif isinstance(images, tf.data.Dataset):
        class_names, examples = getattr(images, "class_names", None), []
        for batch in as_images(images):
            batch, *others = batch if isinstance(batch, tuple) else (batch,)
            examples += list(batch.numpy())
            labels += np.asarray(others[0]).tolist() if others else []
        labels = _class_labels(labels)
        images, labels = examples, [class_names[x] for x in labels] if class_names else labels
    elif isinstance(images, str | os.PathLike) and Path(images).is_dir():
        folder = Path(images)
        images = sorted(path for path in folder.rglob("*") if is_image(path.name))
        parts = [path.relative_to(folder).parts for path in images]
        # Folders of classes, and no files next to them.
        labels = [part[0] for part in parts] if all(len(part) > 1 for part in parts) else []
    elif _is_one(images):
        images = [images]

    pictures, names = [], []
    for image in cast(Iterable, images):
        if not isinstance(image, str | os.PathLike):
            pictures.append(pixels_of(image) if hasattr(image, "getexif") else np.asarray(image))
            names.append(f"image {len(names) + 1}")
            continue
        path = Path(image)
        for file in sorted(x for x in path.rglob("*") if is_image(x.name)) or [path]:
            if not file.is_file():
                raise ValueError(
                    f"Image file not found: {without_password(image)!r}. Download images at web "
                    "addresses first."
                )
            pictures.append(decode_file(file))
            names.append(file.name)
    if not pictures:
        raise ValueError("Expected at least one image. Received: none")
    labels = (labels or [None] * len(pictures)) if given_labels is None else given_labels
    if len(labels) != len(pictures):
        raise ValueError(
            f"Expected a label for each of {len(pictures)} images. Received: {len(labels)} labels"
        )
    return pictures, names, labels


def _class_labels(labels: list) -> list:
    """Labels that are all numbers or names of classes; an empty list for others."""
    are_classes = all(isinstance(x, str) or (isinstance(x, int) and x >= 0) for x in labels)
    return labels if are_classes else []


def _is_one(image: Any) -> bool:
    """Whether this is a path, a PIL image or an array (height, width, channel)."""
    is_array = getattr(image, "ndim", None) == 3
    return is_array or isinstance(image, str | os.PathLike) or hasattr(image, "getexif")


def compare_with_label(
    label: int | str | None, predicted: int, class_names: Sequence[str] | None
) -> dict[str, Any]:
    """The name of an image's label and whether it is predicted; no entries if it is no class."""
    names = tuple(class_names or ())
    if isinstance(label, str):
        label = names.index(label) if label in names else None
    if label is None or (names and label >= len(names)):
        return {}
    return {"label": class_name(names, label), "correct": label == predicted}


# What is shared by all images, and what the page reads about each.
Payload: TypeAlias = tuple[dict[str, Any], list[dict[str, Any]]]


def make_payload(
    subject: Subject,
    results: Mapping[str, Any],
    photos: Sequence[tuple[np.ndarray, np.ndarray]],
    class_names: Sequence[str] | None,
    packed: Any,
) -> dict[str, Any]:
    """What the script of the page draws; `packed` is what `PACKERS` made of each result."""
    grid = subject.model.grid
    explained_classes = subject.explained_classes if "scores" in results else [[] for _ in photos]
    shared = {
        "grid": grid and {**vars(grid)},
        "prefix_names": list(subject.prefix_names),
        "pooled": list(subject.pooled_tokens),
        "pooled_name": subject.pooled_name,
        "size": list(subject.images.shape[1:3]),
        "layers": {
            name: list(result) if isinstance(result, dict) else layer_names(result)
            for name, result in ((name, results.get(key)) for name, key in LAYERS.items())
            if result is not None
        },
        "examples": [
            {
                "picture": _as_data_url(photo),
                "seen": _as_data_url(seen),
                "classes": [class_name(class_names or (), number) for number in explained],
            }
            for (photo, seen), explained in zip(photos, explained_classes, strict=True)
        ],
    }
    for of_all, of_each in packed.values():
        shared |= of_all
        for example, arrays in zip(shared["examples"], of_each, strict=True):
            example |= arrays
    return shared


def class_name(names: Sequence[str], position: int) -> str:
    """The name of a class."""
    return names[position] if names else f"class {position}"


def _scores(result: xr.DataArray, subject: Subject, class_names: Sequence[str]) -> Payload:
    """The most probable classes of each image, and those explained that are not among them."""
    shares_of_images = as_probabilities(result.values, subject.model.has_sigmoids)
    classes_by_image = []
    for shares, explained in zip(shares_of_images, subject.explained_classes, strict=True):
        best = np.argsort(-shares, kind="stable")[:PREDICTIONS].tolist()
        listed = [*best, *(number for number in explained if number not in best)]
        classes_by_image.append(
            [
                {
                    "name": class_name(class_names, number),
                    "share": float(f"{shares[number]:.4g}"),
                    "explained": explained.index(number) if number in explained else -1,
                }
                for number in (listed if subject.classes is not None else best)
            ]
        )
    return {}, [{"predictions": classes} for classes in classes_by_image]


def _attention(result: xr.Dataset, subject: Subject, _: object) -> Payload:
    weights = result["attention"].values
    by_image = [
        {
            "attention": pack(weights[index], ATTENTION_BITS, 3, low=0),
            "distance": pack(result["distance"].values[index], 32),
            "mass": pack(result["mass"].values[index], 16),
        }
        for index in range(len(weights))
    ]
    return {"heads": weights.shape[2]}, by_image


def _rollout(result: xr.DataArray, *_: object) -> Payload:
    return {}, [{"rollout": pack(image_values, 16, 1)} for image_values in result.values]


def _relevance(result: xr.DataArray, subject: Subject, _: object) -> Payload:
    pooled, prefix = list(subject.pooled_tokens), subject.model.require_grid().prefix
    read = [values[:, pooled].mean(axis=1)[:, prefix:] for values in subject.explained(result)]
    return {}, [{"relevance": pack(image_values, 32)} for image_values in read]


def _gradients(result: xr.DataArray, subject: Subject, _: object) -> Payload:
    sizes = [shrunk(np.abs(values).sum(axis=-1)) for values in subject.explained(result)]
    shared = {"gradient_size": list(sizes[0].shape[-2:])}
    return shared, [{"gradients": pack(image_values, 8, 1)} for image_values in sizes]


def _similarity(result: xr.DataArray, *_: object) -> Payload:
    by_example = result.transpose("example", "layer", "token", "other_example", "other_token")
    return {}, [{"similarity": pack(image_values, 8, 3)} for image_values in by_example.values]


def _lens(result: xr.DataArray, subject: Subject, class_names: Sequence[str]) -> Payload:
    shares = as_probabilities(result.values, subject.model.has_sigmoids)
    lens_by_image = []
    for values, explained in zip(shares, subject.explained_classes, strict=True):
        best = np.argsort(-values, axis=-1, kind="stable")[:, :BEST]
        top = [
            [(class_name(class_names, int(c)), float(f"{layer[c]:.4g}")) for c in order]
            for layer, order in zip(values, best, strict=True)
        ]
        lens_by_image.append({"lens": pack(values[:, explained], 32), "top": top})
    return {}, lens_by_image


def _components(result: dict[str, xr.DataArray], *_: object) -> Payload:
    """Red, green and blue from 0 to 1 of every patch, on one scale for all images of a layer."""
    by_image = [{} for _ in range(next(iter(result.values())).sizes["example"])]
    for index, scores in enumerate(result.values()):
        low, high = np.percentile(scores.values, SPAN, axis=(0, 1, 2))
        shares = (scores.values - low) / np.where(high > low, high - low, 1)
        for example, values in zip(by_image, np.moveaxis(shares.clip(0, 1), -1, 1), strict=True):
            example[f"components{index}"] = pack(np.moveaxis(shrunk(values), 0, -1), 8, low=0)
    explained = [float(f"{values['explained'].values.sum():.3g}") for values in result.values()]
    return {"explained": explained}, by_image


def _token_norms(result: dict[str, xr.Dataset], *_: object) -> Payload:
    num_examples = next(iter(result.values())).sizes["example"]
    each: list[dict[str, Any]] = [{"prefix_norms": []} for _ in range(num_examples)]
    for index, norms in enumerate(result.values()):
        for at, (example, values) in enumerate(zip(each, norms["norm"].values, strict=True)):
            example[f"token_norms{index}"] = pack(shrunk(values), 16)
            prefix = norms["prefix_norm"].values[at] if "prefix_norm" in norms else ()
            example["prefix_norms"].append([float(f"{size:.4g}") for size in prefix])
    sizes = [list(shrunk(norms["norm"].values).shape[-2:]) for norms in result.values()]
    return {"token_sizes": sizes}, each


def _patch_lens(result: xr.DataArray, subject: Subject, class_names: Sequence[str]) -> Payload:
    """The most probable class of every patch, and the probabilities of those explained."""
    shares = as_probabilities(result.values, subject.model.has_sigmoids)
    best = shares.argmax(axis=-1)
    classes, numbers = np.unique(best, return_inverse=True)
    by_image = [
        {
            "patch_top": top.tolist(),
            "patch_share": pack(values.max(axis=-1), 8, low=0),
            "patch_classes": pack(np.moveaxis(values[..., explained], -1, 0), 16, 1, low=0),
        }
        for top, values, explained in zip(
            numbers.reshape(best.shape), shares, subject.explained_classes, strict=True
        )
    ]
    return {"patch_names": [class_name(class_names, int(number)) for number in classes]}, by_image


def _removals(result: xr.DataArray, subject: Subject, _: object) -> Payload:
    """Changes of the probabilities of the classes explained, in points: (class, layer, removed)."""
    has_sigmoids = subject.model.has_sigmoids
    intact = as_probabilities(subject.scores.values, has_sigmoids)[:, None, None]
    missing = np.asarray(np.isnan(result.values).any(axis=-1))
    without = as_probabilities(np.where(missing[..., None], 0, result.values), has_sigmoids)
    change = np.where(missing[..., None], np.nan, 100 * (without - intact))
    shared = {"removed": [str(tap) for tap in result["removed"].values]}
    changes = [
        values[..., classes]
        for values, classes in zip(change, subject.explained_classes, strict=True)
    ]
    return shared, [{"removals": pack(np.moveaxis(values, -1, 0), 32)} for values in changes]


def _norms(result: xr.Dataset, subject: Subject, _: object) -> Payload:
    both = [result[name].values for name in ("skip", "branch")]
    grid = subject.model.grid
    if grid is None or np.isnan(both[0]).any() or both[0].shape[-1] != grid.num_tokens:
        both = [np.nanmean(x, axis=-1, keepdims=True) for x in both]
    norms_by_image = [
        {"skip": pack(s, 32), "branch": pack(b, 32)} for s, b in zip(*both, strict=True)
    ]
    return {"norm_tokens": both[0].shape[-1]}, norms_by_image


def _fields(result: xr.DataArray, *_: object) -> Payload:
    fields = shrunk(result.values, MOST_PIXELS // (1 if result.sizes["place"] < 10 else 2))
    grid = [result.attrs["rows"], result.attrs["columns"]]
    shared = {"field_grid": grid, "field_size": list(fields.shape[-2:])}
    return shared, [{"fields": pack(image_values, 8, 2)} for image_values in fields]


def _cam(result: xr.DataArray, subject: Subject, _: object) -> Payload:
    maps = list(map(shrunk, subject.explained(result)))
    shared = {"cam_size": list(maps[0].shape[-2:])}
    return shared, [{"cam": pack(image_values, 8, 2)} for image_values in maps]


PACKERS = {
    "scores": _scores,
    "attention": _attention,
    "rollout": _rollout,
    "gradient_attention": _relevance,
    "input_gradients": _gradients,
    "similarity": _similarity,
    "components": _components,
    "logit_lens": _lens,
    "patch_lens": _patch_lens,
    "removals": _removals,
    "token_norms": _token_norms,
    "norms": _norms,
    "fields": _fields,
    "grad_cam": _cam,
}
LAYERS = {
    "attention": "attention",
    "similarity": "similarity",
    "lens": "logit_lens",
    "tokens": "components",
    "patches": "patch_lens",
    "removals": "removals",
    "norms": "norms",
    "maps": "fields",
}


def shrunk(maps: np.ndarray, most: int = MOST_PIXELS) -> np.ndarray:
    """Maps of shape (..., row, column) with at most so many pixels a side, means of squares."""
    *lead, height, width = maps.shape
    side = -(-max(height, width) // most)
    rows, columns = -(-height // side), -(-width // side)
    spare = [(0, 0)] * len(lead) + [(0, rows * side - height), (0, columns * side - width)]
    padded = np.pad(maps, spare, mode="edge")
    return padded.reshape(*lead, rows, side, columns, side).mean(axis=(-3, -1))


def _as_data_url(photo: np.ndarray) -> str:
    """A photograph as PNG where it is small, otherwise as JPEG."""
    kind = "PNG" if max(photo.shape) <= MOST_PIXELS else "JPEG"
    text = encode_picture(photo, kind, optimize=True, quality=90)
    return f"data:image/{kind.lower()};base64,{text}"


def pack(
    values: np.ndarray, bits: int = 8, leading: int = 0, low: float | None = None
) -> dict[str, Any]:
    """An array as a dict that JSON can hold.

        value = low + step * level

    with whole-number levels from 0 to 2^bits - 1, that span the values of each slice of the first
    `leading` axes: none is off by more than half a step.

    The first `leading` axes have a scale for each slice; `low`, the value of level 0, is by default
    the smallest value of each slice, rounded down to float32. `data`, `low` and `step` are the
    base64 of little-endian bytes; at 32 bits `data` are the values as float32, without a scale.
    """
    values = np.asarray(values, np.float64)
    facts = {"shape": list(values.shape), "bits": bits, "leading": leading}
    if bits == 32:
        return facts | {"data": _text(values.astype("<f4"))}
    if not np.isfinite(values).all():
        raise ValueError("Expected finite values, to round them. Received NaN or infinity")
    slices = values.reshape(*values.shape[:leading], -1)
    if low is not None and (slices < low).any():
        raise ValueError(f"Expected values of at least {low}. Received: {slices.min()}")
    lowest = slices.min(axis=-1) if low is None else np.full(slices.shape[:-1], float(low))
    # The largest float32 numbers that are not above these.
    nearest = lowest.astype("<f4")
    below = np.nextafter(nearest, np.float32(-np.inf))
    lowest = np.where(nearest > lowest, below, nearest).astype("<f4")
    heights = slices - lowest[..., None]
    step = (heights.max(axis=-1) / LEVELS[bits]).astype("<f4")
    scale = np.where(step > 0, step, 1).astype(np.float64)[..., None]
    levels = np.rint(heights / scale).clip(0, LEVELS[bits]).astype("<u2" if bits == 16 else "u1")
    return facts | {"data": _text(levels), "low": _text(lowest), "step": _text(step)}


def _text(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
