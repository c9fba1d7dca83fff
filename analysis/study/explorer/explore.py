"""Exploring single images: opened, measured, and written as one page."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import xarray as xr

import vit_tf
from vit_tf.batches import require_finite_length
from vit_tf.data.any_images import as_images
from vit_tf.files import without_password
from vit_tf.preprocessing import Preprocessing

from ...engine.features import name_models, own_name
from ...engine.stream import eager_steps
from ...flow.attribution import require_samples
from ...report.explore_page import write_explore_page
from ...report.page import in_frame, require_own
from ..models import PROBES, LoadedModel, describe_model, expected, slug, study_model
from .collect import FLAT, Subject, collect_results, is_flat
from .payload import attention_bits, make_payload

MOST_PHOTO = 448  # pixels of a side of a photograph on the page
# Kinds of the large map that the page opens with, and the results that they need, best first.
FIRST = {
    "attention": "attention",
    "cam": "grad_cam",
    "nearest": "similarity",
    "gradients": "input_gradients",
}


@dataclass(frozen=True)
class Exploration:
    """A written page; a notebook displays it in a frame.

    Attributes:
        path: of the page.
        results: dict from result name to labelled result, or to a dict from layer to its own where
            layers differ in their grid; of several models a dict from name to such a dict.
        left_out: list of (what is not shown, list of sentences on why); of several models a dict
            from name to such a list.
    """

    path: Path
    results: dict[str, Any] = field(repr=False)
    left_out: Any = field(repr=False)

    def save_results(self, folder: str | os.PathLike) -> None:
        """Write `NAME.nc` for each result; a dict of layers as a group of netCDF for each layer.

        Those of several models are in a folder of the model's name each.
        """
        folder = Path(folder)
        if isinstance(self.left_out, dict):
            for name in self.results:
                self.select(name).save_results(folder / slug(name))
            return
        folder.mkdir(parents=True, exist_ok=True)
        for name, result in self.results.items():
            if isinstance(result, dict):
                result = xr.DataTree.from_dict(
                    {
                        layer: x.to_dataset(name=name) if isinstance(x, xr.DataArray) else x
                        for layer, x in result.items()
                    }
                )
            result.to_netcdf(folder / f"{name}.nc", engine="h5netcdf")

    def select(self, name: str) -> "Exploration":
        """The same page with the results of one of its several models."""
        return Exploration(self.path, self.results[name], self.left_out[name])

    def _repr_html_(self):
        return in_frame(self.path)


def explore(
    model,
    images,
    path="explore.html",
    *,
    name=None,
    preprocessing=None,
    image_size=None,
    taps=(),
    patch_size=None,
    prefix=None,
    classes=None,
    samples=6,
    noise=0.1,
    seed=0,
):
    """Write an interactive page that shows how one or more models process single images.

    Attention of each query, rollout, gradient-weighted attention, input gradients, Grad-CAM,
    similarity and correspondence of patches, features as colours, classes by layer and by patch,
    the effect of removing heads and blocks, norms, receptive fields. What does not apply to the
    layers of the model is listed with the reason.

    Several models stand side by side, and a patch that is chosen in one is chosen in all.

    Examples:
        analysis.explore(vit, ["cat.jpg", "dog.jpg"], "cat.html")
        analysis.explore(["vit-cls-cifar10", "bit-cifar10"], "cat.jpg")

    Args:
        model: a built Keras model of one input, the images; the path of one or the name of a
            pretrained one; a callable from images to `{tap: tensor}`; or several of these, as a
            list or a dict from name to model.
        images: path of an image file; list of paths and of arrays of shape (height, width,
            channel) with values in [0, 255]; or a `tf.data.Dataset` of such arrays, with labels
            or without, batched or not. They are resized to what the model takes.
        path: of the page, an HTML file.
        name: of a single model; by default its own.
        preprocessing: the `vit_tf.Preprocessing` that the model expects, where it does not
            specify it.
        image_size: pixels, for a model that takes images of any size.
        taps, patch_size, prefix: for models whose layers or tokens are not known, as for
            `make_report`.
        classes: positions of the classes to explain; by default the five of the highest scores, or
            the three of each of several images. Results hold NaN for a class of another image.
        samples, noise, seed: of `input_gradients`.

    Returns:
        The `Exploration`: the page's path and the results as xarray objects, by model if several
        are given.

    Raises:
        ValueError: for images that cannot be read, no size, classes that the model does not have, a
            model without any applicable result, or a file at `path` that vit_tf did not write.
    """
    settings = {"preprocessing": preprocessing, "image_size": image_size, "taps": taps}
    settings |= {"patch_size": patch_size, "prefix": prefix, "classes": classes}
    settings |= {"samples": samples, "noise": noise, "seed": seed}
    if isinstance(model, list | tuple | Mapping):
        models = {n: (single_model, settings) for n, single_model in name_models(model).items()}
        return explore_models(models, images, path)
    if isinstance(model, str | os.PathLike):
        model, name = vit_tf.load(model), name or own_name(model)
    own = name or getattr(model, "name", None) or getattr(model, "__name__", "model")
    return explore_models({own: (model, settings)}, images, path).select(own)


def explore_models(models, images, path):
    """Write one page of several models; an `Exploration` with a dict from name for all."""
    require_own(path)
    pictures, image_names = read_images(images)
    views, results, left_out = [], {}, {}
    for name, (model, settings) in models.items():
        model = vit_tf.load(model) if isinstance(model, str | os.PathLike) else model
        opened, subject, photos = open_subject(name, model, pictures, **settings)
        with eager_steps():
            results[name], left_out[name] = collect_results(subject)
        if not results[name]:
            reasons = " ".join(reason for _, why in left_out[name] for reason in why)
            raise ValueError(
                f"Expected a model for which at least one result can be shown. Received: {reasons}"
            )
        views.append(_view(opened, subject, photos, results[name], left_out[name]))
    written = write_explore_page(
        path,
        views=views,
        image_names=image_names,
        versions=[
            f"vit_tf {vit_tf.__version__}",
            *(f"{package} {version(package)}" for package in ("tensorflow", "keras")),
        ],
    )
    return Exploration(written, results, left_out)


def open_subject(
    name,
    model,
    pictures,
    *,
    preprocessing=None,
    image_size=None,
    taps=(),
    patch_size=None,
    prefix=None,
    samples=6,
    noise=0.1,
    **options,
):
    """The `LoadedModel`, it and its images as a `Subject`, and its photographs."""
    require_samples(samples, noise)
    expects = preprocessing or expected(model)
    opened = LoadedModel(
        name, model, expects, taps=tuple(taps), patch_size=patch_size, prefix=prefix
    )
    size = expects.size or (image_size and (image_size, image_size))
    if size is None:
        raise ValueError(
            "Expected image_size, as the model takes images of any size. Received: None"
        )
    if image_size and tuple(size) != (image_size, image_size):
        raise ValueError(
            f"Expected images of {size[0]} x {size[1]} pixels, as {name} takes. "
            f"Received: image_size={image_size}"
        )
    resize = Preprocessing(tuple(size), interpolation=expects.interpolation, crop=expects.crop)
    batch = np.stack([resize(picture) for picture in pictures])
    subject = Subject(
        _shared(opened, study_model(opened, _probes(batch))[0]),
        batch,
        samples=samples,
        noise=noise,
        foreign=opened.is_foreign,
        named=getattr(model, "prefix_names", None),
        pooled=getattr(model, "pooled_tokens", None),
        **options,
    )
    if subject.classes is not None:
        _check_classes(subject)
    return opened, subject, [_photo(picture, expects, size) for picture in pictures]


def _shared(opened, model):
    """The model under study with features that are parts of one submodel, traced once."""
    if not opened.is_keras:
        return model
    base = replace(opened, model=opened.submodel(*model.taps, *model.computed))
    return replace(model, features=cache(partial(base.features, model.grid)))


def _photo(picture, expects, size):
    """What the model sees of a picture, with as many more pixels as it has and a page shows."""
    visible_size = np.array(picture.shape[:2]) if expects.crop is None else min(picture.shape[:2])
    most = np.minimum(MOST_PHOTO, visible_size * (expects.crop or 1))
    times = max(1, int(np.min(most / np.array(size))))
    framed = Preprocessing(
        tuple(times * side for side in size),
        interpolation=expects.interpolation,
        crop=expects.crop,
    )(picture)
    return np.rint((framed + 1) * 127.5).clip(0, 255).astype(np.uint8)


def _view(opened, subject, photos, results, left_out):
    """What the page shows of a model: name, numbers, panels, what is left out, and facts."""
    classes = getattr(opened.model, "class_names", None)
    row = describe_model(opened, subject.model)
    return {
        "name": opened.name,
        "payload": make_payload(subject, results, photos, classes),
        "shown": _shown(subject, results),
        "left_out": left_out,
        "facts": {key: value for key, value in row.items() if value is not None}
        | {"expects": opened.expects.describe()},
    }


def _shown(subject, results):
    """What there is to show: which panels the page has, and words in their texts."""
    grid, has = subject.model.grid, results.keys()
    tokens = bool(subject.model.has_tokens)
    return {
        "size": "{} x {}".format(*subject.images.shape[1:3]),
        "attention": "attention" in has,
        "rollout": "rollout" in has,
        "relevance": "gradient_attention" in has,
        "gradients": "input_gradients" in has,
        "cam": "grad_cam" in has,
        "evidence": bool(has & {"gradient_attention", "input_gradients", "grad_cam"}),
        "similarity": "similarity" in has,
        "fields": "fields" in has,
        "lens": "logit_lens" in has,
        "components": "components" in has,
        "patch_lens": "patch_lens" in has,
        "removals": "removals" in has,
        "heads": "removals" in has and len(results["removals"]["removed"]) > 1,
        "token_norms": "token_norms" in has,
        "flat": FLAT if is_flat(results) else "",
        "norms": "norms" in has,
        "classes": "scores" in has,
        "pooled": subject.pooled_name if tokens and grid else "",
        "grid": f"{grid.rows} x {grid.columns}" if grid else "",
        "queries": bool(tokens and grid and has & {"attention", "rollout"}),
        "first": next((kind for kind, name in FIRST.items() if name in has), ""),
        "cell": "patch" if tokens else "position",
        "cells": "patches" if tokens else "positions",
        "samples": subject.samples,
        "steps": 2 ** attention_bits(results["attention"]) - 1 if "attention" in has else 0,
    }


def read_images(images):
    """Images as uint8 or float arrays with values in [0, 255], and their names."""
    from vit_tf.data.folder import decode_file
    from vit_tf.data.imaging import pixels_of

    single = isinstance(images, str | os.PathLike) or (hasattr(images, "ndim") and images.ndim == 3)
    if single or hasattr(images, "getexif"):  # of Pillow
        images = [images]
    if isinstance(images, tf.data.Dataset):
        images = _examples_of(images)
    images = [file for source in images for file in _files_of(source)]
    if not images:
        raise ValueError("Expected at least one image. Received: none")
    read, names = [], []
    for number, image in enumerate(images, start=1):
        is_path = isinstance(image, str | Path)
        if is_path and not Path(image).is_file():
            raise ValueError(
                f"Expected an image file. Received: {without_password(image)!r}, no such file"
            )
        if hasattr(image, "getexif"):
            image = pixels_of(image)
        read.append(decode_file(image) if is_path else np.asarray(image))
        names.append(Path(image).name if is_path else f"image {number}")
    return read, names


def _examples_of(dataset):
    """The images of a dataset one by one, without their labels."""
    require_finite_length(dataset)
    for batch in as_images(dataset):
        yield from (batch[0] if isinstance(batch, tuple) else batch).numpy()


def _files_of(image):
    """The images of a folder, or the one that is given."""
    from vit_tf.data.folder import is_image

    if not isinstance(image, str | Path) or not Path(image).is_dir():
        return [image]
    return sorted(path for path in Path(image).rglob("*") if is_image(path.name))


def _probes(batch):
    """A few different images, on which the shapes of taps are read."""
    turned = [batch, batch[:, ::-1], -batch]
    return np.concatenate(turned)[: max(PROBES, len(batch))] if len(batch) < PROBES else batch


def _check_classes(subject):
    """Raises a `ValueError` for classes that are not there."""
    (count,) = subject.model.shapes[subject.scores_tap]
    classes = list(subject.classes)
    wrong = [c for c in classes if not isinstance(c, int | np.integer) or not 0 <= c < count]
    if wrong or not classes:
        raise ValueError(
            f"Expected classes to be integers from 0 to {count - 1}. Received: {classes}"
        )
