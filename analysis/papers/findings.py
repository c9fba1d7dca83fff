"""The findings of Raghu et al. 2021 as statistics: labelled results in, an `Estimate` out.

Every function says which line the statistic is held against; all lines are natural ones (no
difference, a ratio of 1, chance), none was chosen after a measurement. "Half" is by depth.
"""

import numpy as np

from ..plots.style import expect_array, expect_variable, layer_names
from ..study.estimates import Sample, bootstrap, difference, lower, normal, rank_correlation, upper


def uniform_structure(vit, resnet):
    """Mean CKA between lower and upper half, ViT minus ResNet; against 0 (section 4, figure 1).

    Args:
        vit, resnet: Dataset cka(layer_x, layer_y) of each model's layers among themselves.
    """
    return difference(*(_between(*_cka(result)) for result in (vit, resnet)), over="layers")


def early_correspondence(cross):
    """Share of the ViT that the ResNet's lower half maps to (section 4, figure 2).

        share = 2 mean over the lower ResNet layers of (best ViT layer + 1/2) / ViT layers

    which is s for layers that map evenly to the first s of the ViT. Against 1/2, the ResNet's own
    share: models that represent alike at like depth. The bootstrap leaves out the noise of CKA
    itself, which can move a best match between layers that are all but equal.

    Args:
        cross: Dataset cka(layer_x, layer_y), the ViT's layers along x, the ResNet's along y.
    """
    cka = expect_variable(cross, "cka", ("layer_x", "layer_y")).values
    depth = (cka.argmax(axis=0) + 0.5) / len(cka)
    return bootstrap(lambda x: 2 * x.mean(), lower(depth), over="ResNet layers")


def first_block_mixes(distance):
    """Spread of the first block's heads minus that of the last's; against 0 (section 5, figure 3).

    The spread is the standard deviation of the heads' distances, in units of the distance of a
    head that attends evenly. At 0 the first block is as mixed as the last.

    Args:
        distance: attention distance of dims (layer, head), with its grid in the attributes.
    """
    heads = _relative_distance(distance)
    return bootstrap(lambda x, y: x.std() - y.std(), heads[0], heads[-1], over="heads")


def last_block_global(distance):
    """Distance of the last block's most local head; against 1/2 (section 5, figure 3).

    In units of the distance of a head that attends evenly: 1/2 is midway between a head that
    looks only at its own place and one that looks everywhere alike.

    Args:
        distance: as in `first_block_mixes`.
    """
    return bootstrap(np.min, _relative_distance(distance)[-1], over="heads")


def local_heads_resemble(subsets):
    """Rank correlation of a head subset's distance and its CKA to low ResNet layers.

    Spearman's, over all subsets of all orders, with CKA averaged over the layers; against 0, no
    relation (section 5, figure 5). Subsets share heads, so that the
    bootstrap over them is narrower than one over independent models.

    Args:
        subsets: Dataset cka(order, subset, layer), of layers in the ResNet's lower half, and
            distance(order, subset).
    """
    cka = expect_variable(subsets, "cka", ("layer", "order", "subset")).values
    distance = expect_variable(subsets, "distance", ("order", "subset")).values
    pairs = np.stack([distance.ravel(), cka.mean(axis=0).ravel()], axis=1)
    pairs = pairs[np.isfinite(pairs).all(axis=1)]
    return bootstrap(rank_correlation, pairs, over="head subsets")


def early_fields(vit, resnet):
    """Extent of lower-half receptive fields, ViT minus ResNet; against 0 (section 5, figure 6).

    The extent is the standard deviation of a pixel's place, weighted by the field, in units of
    that of a field that covers the image evenly.

    Args:
        vit, resnet: receptive fields after the sums, of dims (layer, row, column).
    """
    fields = [lower(_extent(field)) for field in (vit, resnet)]
    return bootstrap(lambda x, y: x.mean() - y.mean(), *fields, over="layers")


def branch_fields(branch, total, patch):
    """Share of the centre patch in a field, attention branches minus sums (appendix C, C.4).

    Against 0: the branch depends as much on its own patch as what it is added to.

    Args:
        branch, total: receptive fields of dims (layer, row, column), of taps
            "site/attention/branch" and "site/attention/sum".
        patch: side of a patch in pixels.
    """
    shares = [_centre_shares(field, patch) for field in (branch, total)]
    sites = [site for site in shares[0] if site in shares[1]]
    if not sites:
        raise ValueError(
            "Expected fields of attention branches and of their sums. "
            f"Received: {layer_names(branch)[:3]} and {layer_names(total)[:3]}"
        )
    gaps = np.array([shares[0][site] - shares[1][site] for site in sites])
    return bootstrap(np.mean, gaps, over="attention sublayers")


def cls_over_spatial(ratios, half):
    """Norm ratio of the CLS token over that of the spatial tokens, in the lower or upper half.

    The geometric mean over the layers; against 1, tokens that pass the skips alike (section 6,
    figure 7).

    Args:
        ratios: Dataset norm_ratio(layer, token) of a ViT with a CLS token.
        half: `estimates.lower` or `estimates.upper`.
    """
    ratio = expect_variable(ratios, "norm_ratio", ("layer", "token"))
    if ratios.attrs.get("prefix") != 1:
        prefix = ratios.attrs.get("prefix")
        raise ValueError(f"Expected ratios with one prefix token. Received: prefix={prefix}")
    logs = np.log(ratio.values[:, 0]) - np.log(np.nanmean(ratio.values[:, 1:], axis=1))
    return bootstrap(_exp_mean, half(logs), over="layers")


def skip_influence(vit, resnet):
    """Norm ratio of the ViT over that of the ResNet; against 1 (section 6, figure 7 right).

    Of each model the geometric mean over layers of the mean over tokens.

    Args:
        vit, resnet: Dataset norm_ratio(layer, token).
    """
    dims = ("layer", "token")
    logs = [
        np.log(np.nanmean(expect_variable(ratios, "norm_ratio", dims).values, axis=1))
        for ratios in (vit, resnet)
    ]
    return bootstrap(lambda x, y: np.exp(x.mean() - y.mean()), *logs, over="layers")


def skips_partition(intact, without, block):
    """Mean CKA between layers before and after a block, without its skips minus with them.

    Against 0, a block whose skips do not matter to the similarity (section 6, figure 8).

    Args:
        intact, without: Dataset cka(layer_x, layer_y) of each model among itself.
        block: name of the block whose skips were removed, "block03".
    """
    names = layer_names(intact["cka"], "layer_x")
    inside = [i for i, name in enumerate(names) if name.split("/")[0] == block] or [0]
    kept = [set(layer_names(without["cka"], dim)) for dim in ("layer_x", "layer_y")]
    before = [name for name in names[: inside[0]] if name in kept[0]]
    after = [name for name in names[inside[-1] + 1 :] if name in kept[1]]
    if not before or not after:
        raise ValueError(f"Expected layers before and after the block. Received: block={block!r}")
    samples = []
    for result in (without, intact):
        cka, stderr = _cka(result.sel(layer_x=before, layer_y=after))
        samples.append(Sample(cka.mean(axis=1), stderr.mean(axis=1)))
    return difference(*samples, over="layers")


def skips_cost_accuracy(intact, without):
    """Test accuracy with all skips minus without a block's; against 0 (section 6, figure 8).

    Args:
        intact, without: pairs of accuracy in [0, 1] and number of test examples.
    """
    variance = sum(accuracy * (1 - accuracy) / examples for accuracy, examples in (intact, without))
    how = "binomial, as if on different images, which is wide for the same ones"
    return normal(intact[0] - without[0], np.sqrt(variance), how)


def own_patch(similarity):
    """Share of last-layer tokens whose most similar patch is their own, less that of chance.

    Against 0, since one of as many patches is the most similar by chance (section 7, figure 9).

    Args:
        similarity: CKA of tokens and patches, of dims (layer, token, row, column), with each
            token's own place as coordinates `token_row` and `token_column`. Prefix tokens, and
            patches without a CKA, are left out.
    """
    maps, own = _last_maps(similarity)
    hits = (maps.argmax(axis=1) == own).astype(float)
    return bootstrap(lambda x: x.mean() - 1 / maps.shape[1], hits, over="tokens")


def better_localised(one, other):
    """Localisation of one model's last-layer tokens minus that of another's; against 0.

    The localisation of a token is its CKA with its own patch minus the mean of those with the
    others (section 7, figures 9 and 10).

    Args:
        one, other: as in `own_patch`.
    """
    margins = []
    for similarity in (one, other):
        maps, own = _last_maps(similarity)
        mine = maps[np.arange(len(maps)), own]
        margins.append(mine - (maps.sum(axis=1) - mine) / (maps.shape[1] - 1))
    return bootstrap(lambda x, y: x.mean() - y.mean(), *margins, over="tokens")


def better_tokens(one, other):
    """Mean accuracy of last-layer single-token probes, one model minus another; against 0.

    The error is binomial, as if all tokens failed on the same images (section 7, figure 11 left).

    Args:
        one, other: accuracy of dims (layer, token), with the attributes `prefix`, the number of
            leading tokens to leave out, and `examples`, the number of test images.
    """
    samples = []
    for result in (one, other):
        if "prefix" not in result.attrs:
            raise ValueError("Expected accuracies with the attribute prefix. Received: none")
        accuracy = expect_array(result, ("layer", "token")).values[-1]
        accuracy = accuracy[int(result.attrs["prefix"]) :]
        accuracy = accuracy[np.isfinite(accuracy)]
        examples = result.attrs.get("examples", np.nan)
        samples.append(Sample(accuracy, np.sqrt(accuracy * (1 - accuracy) / examples)))
    return difference(*samples, over="tokens")


def data_hunger(similarity):
    """CKA to the model trained on all data, lower blocks minus upper ones; against 0.

    At the smallest fraction; at 0 higher layers need no more data than lower (section 8, fig. 12).

    Args:
        similarity: Dataset cka(fraction, layer), and its stderr where known: each block of a
            model trained on a fraction of the data and the same block of one trained on all.
    """
    cka = expect_variable(similarity, "cka", ("fraction", "layer"))
    least = int(cka["fraction"].values.argmin())
    stderr = similarity.get("stderr", cka * np.nan).transpose("fraction", "layer")
    values, errors = cka.values[least], stderr.values[least]
    samples = [Sample(half(values), half(errors)) for half in (lower, upper)]
    return difference(*samples, over="blocks")


def _cka(result):
    """CKA and its standard errors, NaN where unknown, of shape (layer_x, layer_y)."""
    dims = ("layer_x", "layer_y")
    cka = expect_variable(result, "cka", dims)
    return cka.values, result.get("stderr", cka * np.nan).transpose(*dims).values


def _between(cka, stderr):
    """Mean CKA of each layer of the lower half with those of the upper half but itself."""
    count = len(cka)
    if count < 2:
        raise ValueError(f"Expected at least two layers. Received: {count}")
    halves = lower(np.arange(count)), upper(np.arange(count))
    pairs = [[j for j in halves[1] if j != i] for i in halves[0]]
    rows = [
        (cka[i, js].mean(), stderr[i, js].mean()) for i, js in zip(halves[0], pairs, strict=True)
    ]
    return Sample(*np.array(rows).T)


def _relative_distance(distance):
    """Distances of shape (layer, head) in units of that of a head that attends evenly."""
    heads = expect_array(distance, ("layer", "head"))
    missing = {"rows", "columns", "stride"} - set(distance.attrs)
    if missing:
        raise ValueError(
            f"Expected the grid in the attributes. Received: none of {sorted(missing)}"
        )
    shape = distance.attrs["rows"], distance.attrs["columns"]
    places = np.indices(shape).reshape(2, -1)
    even = np.hypot(*(places[:, :, None] - places[:, None, :])).mean() * distance.attrs["stride"]
    return heads.values / even


def _extent(field):
    """Standard deviation of place in each field, in units of that of an even field."""
    fields = expect_array(field, ("layer", "row", "column")).values
    weights = fields / fields.sum(axis=(1, 2), keepdims=True)
    variance, even = 0.0, 0.0
    for axis in (1, 2):
        place = np.arange(fields.shape[axis])
        margin = weights.sum(axis=3 - axis)
        offset = place - (margin @ place)[:, None]
        variance = variance + (margin * offset**2).sum(axis=1)
        even += place.var()
    return np.sqrt(variance / even)


def _centre_shares(field, patch):
    """Share of the centre patch in each field of an attention sublayer: dict from site to it."""
    fields = expect_array(field, ("layer", "row", "column"))
    row, column = (size // patch // 2 * patch for size in fields.shape[1:])
    centre = fields.values[:, row : row + patch, column : column + patch].sum(axis=(1, 2))
    shares = centre / fields.values.sum(axis=(1, 2))
    sites = [name.rpartition("/")[0] for name in layer_names(fields)]
    named = zip(sites, shares, strict=True)
    return {site: share for site, share in named if site.endswith("attention")}


def _last_maps(similarity):
    """Similarities of the last layer's tokens, of shape (token, patch), and their own patches."""
    last = expect_array(similarity, ("layer", "token", "row", "column")).isel(layer=-1)
    maps = last.values.reshape(last.sizes["token"], -1)
    own = (last["token_row"] * last.sizes["column"] + last["token_column"]).values
    known = np.flatnonzero(np.isfinite(maps).all(axis=0))
    kept = np.isin(own, known)
    if not kept.any() or len(known) < 2:
        raise ValueError(
            "Expected tokens with a place among two patches or more. "
            f"Received: {len(own)} tokens and {len(known)} patches with a CKA"
        )
    return maps[np.ix_(kept, known)], np.searchsorted(known, own[kept])


def _exp_mean(logs):
    return np.exp(logs.mean())
