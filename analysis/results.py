"""What every result carries: provenance, and numbers that were checked."""

import math

import numpy as np


def provenance(features, examples, batches, **parameters):
    """Attributes of a result, in forms that netCDF can hold.

    Args:
        features: the callable that was measured; its `name` is noted.
        examples: number of images.
        batches: number of batches; all but the last are of one size.
        **parameters: further facts, such as the units, the estimator and the call's parameters.
    """
    attributes = {
        "model": model_name(features),
        "examples": int(examples),
        "batch_size": math.ceil(examples / batches),
    }
    for name, value in parameters.items():
        if isinstance(value, tuple | list):
            value = list(value) if value else "none"
        attributes[name] = str(value) if value is None or isinstance(value, bool) else value
    return attributes


def listed(names, most=10):
    """Names in a line of text, at most so many of them."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def model_name(features):
    """The name of a model or function, without the ending that a submodel adds."""
    name = getattr(features, "name", None) or getattr(features, "__name__", "features")
    return name.removesuffix("_taps")


def require_finite(what, values, layers):
    """Raises a `ValueError` that names the layers whose `values` (layer, ...) are not finite."""
    bad = [
        layer for layer, value in zip(layers, values, strict=True) if not np.isfinite(value).all()
    ]
    if bad:
        raise ValueError(
            f"Expected finite activations to compute {what}. "
            f"Received NaN or infinity at {', '.join(bad[:5])}{', ...' if bad[5:] else ''}"
        )


def mean_of(total, count):
    """`total / count` of arrays that broadcast, NaN where nothing was counted."""
    counted = np.asarray(count) > 0
    return np.where(counted, total / np.where(counted, count, 1), np.nan)


def raise_without_directions(layers):
    """Raises a `ValueError` that names `layers` whose features have no direction, if any do."""
    if layers:
        raise ValueError(
            "Expected features that are finite and not zero, to compare their directions. "
            f"Received others at {', '.join(layers[:5])}"
        )


def name_subjects(result, subjects):
    """Notes the names of the models that a result is of, as titles and tables show them."""
    names = {"model": subjects[0].name, "model_x": subjects[0].name, "model_y": subjects[-1].name}
    return result.assign_attrs(names)
