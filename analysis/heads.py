"""Heads by their reach: what local and global attention heads share with another model."""

import numpy as np
import tensorflow as tf
import xarray as xr

from .cka import cka
from .results import model_name

ORDERS = ("local", "global")


def head_subsets(features, distance, block="block00"):
    """Features for growing subsets of a block's heads, in both orders of their mean distance.

    `"block00/attention/heads/local3"` are the outputs of the 3 heads with the smallest distance,
    `".../global3"` of the 3 with the largest; both orders end with all heads (Raghu et al. 2021,
    section 5, figure 5). A batch holds the outputs of at most heads x (heads + 1) heads.

    Args:
        features: callable from images to taps, with `"{block}/attention/heads"` of shape (example,
            token, head, channel).
        distance: DataArray of dims (layer, head) from `attention_distance`.
        block: name of the block.

    Returns:
        Callable from images to a dict of tensors of shape (example, token, subset, channel), the
        subsets from local to global and each from 1 head to all.

    Raises:
        ValueError: if `distance` or `features` do not have the block, or differ in its heads.
    """
    ranked = _ranked_heads(distance, block)
    tap = f"{block}/attention/heads"

    def subsets(images):
        heads = _heads(features(images), tap, len(ranked["local"]))
        return {
            f"{tap}/{order}{size}": tf.gather(heads, ranked[order][:size], axis=2)
            for order in ORDERS
            for size in range(1, len(ranked[order]) + 1)
        }

    subsets.name = model_name(features)
    return subsets


def subset_distances(distance, block="block00"):
    """Mean attention distance of each subset of heads.

    Args:
        distance: DataArray of dims (layer, head) from `attention_distance`, in pixels.
        block: name of the block.

    Returns:
        DataArray of shape (order, subset), in pixels: `order` is `"local"` (smallest distances
        first) or `"global"` (largest first), `subset` the number of heads.

    Raises:
        ValueError: if `distance` does not have the block.
    """
    of_heads = _block_distances(distance, block)
    ranked = _ranked_heads(distance, block)
    count = np.arange(1, len(of_heads) + 1)
    return xr.DataArray(
        np.stack([np.cumsum(of_heads[ranked[order]]) / count for order in ORDERS]),
        dims=("order", "subset"),
        coords={"order": list(ORDERS), "subset": count},
        name="distance",
        attrs={"long_name": "mean attention distance of the heads", "units": "pixels"},
    )


def head_similarity(features_vit, features_other, images, distance, block="block00"):
    """CKA between subsets of a ViT block's heads and the layers of another model (figure 5).

    The minibatch CKA of `cka` between the outputs of the heads of each subset, at all tokens, and
    each layer, with its standard error, beside the mean attention distance of the subset.

    Args:
        features_vit: callable from images to taps, with `"{block}/attention/heads"`.
        features_other: callable from images to `{layer: tensor}`, such as a ResNet's lower layers.
        images: array of shape (example, height, width, channel), or batched `tf.data.Dataset`.
        distance: DataArray of dims (layer, head) from `attention_distance` of the ViT.
        block: name of the block.

    Returns:
        Dataset with `cka` and `stderr` of shape (order, subset, layer), and `distance` of shape
        (order, subset) in pixels. `order` and `subset` are those of `subset_distances`.

    Raises:
        ValueError: as `head_subsets` and `cka`.
    """
    distances = subset_distances(distance, block)
    similarity = cka(head_subsets(features_vit, distance, block), images, features_other)
    dims = ("order", "subset", "layer")
    variables = {
        name: (dims, values.values.reshape(*distances.shape, -1), values.attrs)
        for name, values in similarity.data_vars.items()
    }
    return xr.Dataset(
        variables | {"distance": distances},
        coords={"layer": similarity["layer_y"].values},
        attrs=similarity.attrs | {"block": block},
    )


def _block_distances(distance, block):
    """Distances of the heads of a block: float64 array of shape (head,)."""
    layers = [str(layer) for layer in distance["layer"].values]
    layer = f"{block}/attention/weights"
    if layer not in layers:
        raise ValueError(f"Expected distances of a layer {layer!r}. Received: {layers}")
    return distance.transpose("layer", "head").values[layers.index(layer)].astype(np.float64)


def _ranked_heads(distance, block):
    """The heads of a block by distance, in each order: dict of lists of integers."""
    nearest = np.argsort(_block_distances(distance, block), kind="stable").tolist()
    return {"local": nearest, "global": nearest[::-1]}


def _heads(taps, tap, count):
    """The tap with the outputs of `count` heads."""
    if tap not in taps:
        raise ValueError(f"Expected a tap {tap!r}. Received: {', '.join(list(taps)[:8])}")
    heads = tf.convert_to_tensor(taps[tap])
    if heads.shape.rank != 4 or heads.shape[2] != count:
        raise ValueError(
            f"Expected heads of shape (example, token, head, channel) with {count} heads, as in "
            f"the distances. Received: {tap!r} of shape {tuple(heads.shape)}"
        )
    return heads
