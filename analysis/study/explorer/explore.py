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
from vit_tf.names import join_words
from vit_tf.preprocessing import Preprocessing
from vit_tf.remote import without_password

from ...engine.features import name_models, own_name
from ...engine.stream import eager_steps
from ...flow.attribution import require_samples
from ...report.explore_page import write_explore_page
from ...report.page import in_frame, require_own
from ..loaded_models import PROBES, LoadedModel, expected, study_model
from ..models import describe_model, slug
from .collect import FLAT, Subject, collect_results, is_flat
from .payload import ROUNDING, make_payload

MOST_PHOTO = 448  # pixels of a side of a photograph on the page


@dataclass(frozen=True)
class Exploration:
    """A written page; a notebook displays it in a frame.

    Attributes:
        path: path of the page.
        results: dict from result name to labelled result, or to a dict from layer to result where
            layers differ in their grid.
        left_out: list of (what is not shown, list of sentences on why).
    """

    path: Path
    results: dict[str, Any] = field(repr=False)
    left_out: list = field(repr=False)

    def save_results(self, folder: str | os.PathLike) -> None:
        """Write `NAME.nc` for each result; a dict of layers becomes one netCDF group per layer."""
        folder = Path(folder)
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
    samples=10,
    noise=0.1,
    seed=0,
):
    """Write an interactive page that shows how a model processes single images.

    Attention of each query, rollout, gradient-weighted attention, input gradients, Grad-CAM,
    similarity and correspondence of patches, features as colours, classes by layer and by patch,
    the effect of removing heads and blocks, norms, receptive fields. What does not apply to the
    layers of the model is listed with the reason.

    Examples:
        analysis.explore(vit, ["cat.jpg", "dog.jpg"], "cat.html")

    Args:
        model: a built Keras model of one input, the images; the path of one or the name of a
            pretrained one; a callable from images to `{tap: tensor}`; or several of these, as a
            list or a dict from name to model.
        images: path of an image file; list of paths and of arrays of shape (height, width,
            channel) with values in [0, 255]; or a `tf.data.Dataset` of such arrays, with labels
            or without, batched or not. They are resized to what the model takes.
        path: path of the HTML file; for several models, their names are added to it.
        name: name of the model; by default its own.
        preprocessing: the `vit_tf.Preprocessing` that the model expects, where it does not
            specify it.
        image_size: pixels, for a model that takes images of any size.
        taps, patch_size, prefix: for models whose layers or tokens are not known, as for
            `make_report`.
        classes: positions of the classes to explain; by default those of the five highest scores.
        samples, noise, seed: as for `input_gradients`.

    Returns:
        The `Exploration`: path of the page, and results as xarray objects; a list of these for
        several models.

    Raises:
        ValueError: for images that cannot be read, no size, classes that the model does not have, a
            model without any applicable result, or a file at `path` that vit_tf did not write.
    """
    if isinstance(model, list | tuple | Mapping):
        settings = {"preprocessing": preprocessing, "image_size": image_size, "taps": taps}
        settings |= {"patch_size": patch_size, "prefix": prefix, "classes": classes}
        settings |= {"samples": samples, "noise": noise, "seed": seed}
        path = Path(path)
        return [
            explore(one, images, path.with_stem(f"{path.stem}-{slug(n)}"), name=n, **settings)
            for n, one in name_models(model).items()
        ]
    if isinstance(model, str | os.PathLike):
        model, name = vit_tf.load(model), name or own_name(model)
    require_own(path)
    opened, subject, names, photos = open_subject(
        model,
        images,
        name=name,
        preprocessing=preprocessing,
        image_size=image_size,
        told={"taps": tuple(taps), "patch_size": patch_size, "prefix": prefix},
        options={"classes": classes, "samples": samples, "noise": noise, "seed": seed},
    )
    with eager_steps():
        results, left_out = collect_results(subject)
    if not results:
        reasons = " ".join(reason for _, reasons in left_out for reason in reasons)
        raise ValueError(
            f"Expected a model for which at least one result can be shown. Received: {reasons}"
        )
    return write_exploration(path, opened, subject, names, photos, results, left_out)


def open_subject(model, images, *, name, preprocessing, image_size, told, options):
    """The `LoadedModel` model, it and its images as a `Subject`, and names and photographs."""
    require_samples(options["samples"], options["noise"])
    expects = preprocessing or expected(model)
    own = name or getattr(model, "name", None) or getattr(model, "__name__", "model")
    opened = LoadedModel(own, model, expects, **told)
    size = expects.size or (image_size and (image_size, image_size))
    if size is None:
        raise ValueError(
            "Expected image_size, as the model takes images of any size. Received: None"
        )
    if image_size and tuple(size) != (image_size, image_size):
        raise ValueError(
            f"Expected images of {size[0]} x {size[1]} pixels, as {own} takes. "
            f"Received: image_size={image_size}"
        )
    pictures, names = read_images(images)
    resize = Preprocessing(tuple(size), interpolation=expects.interpolation, crop=expects.crop)
    batch = np.stack([resize(picture) for picture in pictures])
    under_study = _shared(opened, study_model(opened, _probes(batch))[0])
    options = options | {"named": getattr(model, "prefix_names", None)}
    options["pooled"] = getattr(model, "pooled_tokens", None)
    subject = Subject(under_study, batch, foreign=opened.is_foreign, **options)
    if subject.classes is not None:
        _check_classes(subject)
    photos = [_photo(picture, expects, size) for picture in pictures]
    return opened, subject, names, photos


def _shared(opened, model):
    """The model under study with features that are parts of one submodel, traced once."""
    if not opened.is_keras:
        return model
    base = replace(opened, model=opened.submodel(*model.taps, *model.computed))
    return replace(model, features=cache(partial(base.features, model.grid)))


def _photo(picture, expects, size):
    """What the model sees of a picture, with as many more pixels as it has and a page shows."""
    seen = np.array(picture.shape[:2]) if expects.crop is None else min(picture.shape[:2])
    most = np.minimum(MOST_PHOTO, seen * (expects.crop or 1))
    times = max(1, int(np.min(most / np.array(size))))
    framed = Preprocessing(
        tuple(times * side for side in size),
        interpolation=expects.interpolation,
        crop=expects.crop,
    )(picture)
    return np.rint((framed + 1) * 127.5).clip(0, 255).astype(np.uint8)


def write_exploration(path, opened, subject, names, photos, results, left_out):
    """Write the page of results; the `Exploration`."""
    classes = getattr(opened.model, "class_names", None)
    payload = make_payload(subject, results, photos, names, classes)
    row = describe_model(opened, subject.model)
    listed = join_words(names)
    written = write_explore_page(
        path,
        title=f"{opened.name}: {listed}",
        payload=payload,
        shown=_shown(subject, results),
        size="{} x {}".format(*subject.images.shape[1:3]),
        left_out=left_out,
        facts={key: value for key, value in row.items() if value is not None}
        | {
            "images": listed,
            "expects": opened.expects.describe(),
            "versions": [
                f"vit_tf {vit_tf.__version__}",
                *(f"{package} {version(package)}" for package in ("tensorflow", "keras")),
            ],
        },
    )
    return Exploration(written, results, left_out)


def _shown(subject, results):
    """What there is to show: which panels the page has, and words in their texts."""
    grid, has = subject.model.grid, results.keys()
    tokens = bool(subject.model.has_tokens)
    return {
        "several": len(subject.images) > 1,
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
        "cell": "patch" if tokens else "place",
        "cells": "patches" if tokens else "places",
        "samples": subject.samples,
        "rounding": ROUNDING,
    }


def read_images(images):
    """Images as uint8 or float arrays with values in [0, 255], and their names.

    Args:
        images: as for `explore`.
    """
    from vit_tf.data.folder import decode_file
    from vit_tf.data.images.decoding import pixels_of

    single = isinstance(images, str | os.PathLike) or (hasattr(images, "ndim") and images.ndim == 3)
    if single or hasattr(images, "getexif"):  # of Pillow
        images = [images]
    if isinstance(images, tf.data.Dataset):
        images = _examples_of(images)
    images = [file for one in images for file in _files_of(one)]
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
    from vit_tf.data.layouts.listing import is_image

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
    chosen = list(subject.classes)
    wrong = [c for c in chosen if not isinstance(c, int | np.integer) or not 0 <= c < count]
    if wrong or not chosen:
        raise ValueError(
            f"Expected classes to be integers from 0 to {count - 1}. Received: {chosen}"
        )
