"""What Walmer et al. 2023 find about attention, as statistics: results in, an `Estimate` out.

As in `findings`, all lines are natural ones, and none was chosen after a measurement. "Half" is by
depth; the paper's models have 12 layers. Where it tells models apart by their supervision, the
finding is that of the supervised ones.
"""

import numpy as np

from .estimates import Sample, bootstrap, difference, lower, upper
from .plots.style import expect_array, expect_variable, layer_names

MAPS = ("query", "layer", "layer_other")
LOCAL = ("strict", "soft", "axial", "offset")


def patterns_repeat(patterns, query):
    """Repetition of attention patterns, upper half minus lower; against 0 (section 4.1, figure 2).

    Repetition is high where different heads attend to the same few tokens of an image. That of a
    layer is its mean with the layers of its half, itself among them.

    Args:
        patterns: Dataset repetition(query, layer, layer_other).
        query: `"cls"` or `"spatial"`.
    """
    repetition = _of_query(expect_variable(patterns, "repetition", MAPS), query)
    places = np.arange(len(repetition))
    halves = [repetition[np.ix_(half, half)] for half in (upper(places), lower(places))]
    if any(np.isnan(half).all(axis=1).any() for half in halves):
        raise ValueError(
            "Expected two heads, or two layers in each half, to compare. "
            f"Received: {len(places)} layers of one head"
        )
    means = [np.nanmean(half, axis=1) for half in halves]
    return bootstrap(lambda x, y: x.mean() - y.mean(), *means, over="layers")


def patterns_vary(patterns, average):
    """Peakedness of CLS' mean attention over its mean peakedness, of the upper half.

        mean over heads of peak(mean map) / mean over heads of mean(peak of an image's map)

    where peak = 1 - entropy / log(tokens). Against 1/2, midway between attention to the same
    tokens in every image (1) and to others in each (0; appendix C.1, figures 11 to 13).

    Args:
        patterns: Dataset peak(query, layer, head).
        average: the mean attention of CLS, of dims (layer, head, row, column), each of sum 1.
    """
    peaks = _of_query(expect_variable(patterns, "peak", ("query", "layer", "head")), "cls")
    maps = expect_array(average, ("layer", "head", "row", "column")).values
    flat = maps.reshape(*maps.shape[:2], -1)
    logs = np.log(np.where(flat > 0, flat, 1))
    mean_peaks = 1 + (flat * logs).sum(axis=-1) / np.log(flat.shape[-1])
    pairs = np.stack([upper(mean_peaks).ravel(), upper(peaks).ravel()], axis=1)
    return bootstrap(_ratio_of_means, pairs, over="heads")


def offset_heads(aligned, kinds):
    """How one-sided the most one-sided local head is; against 1/2 (section 4.2, figure 3).

        1/2 sum over offsets d of |share(d) - share(-d)|

    is 0 for a head that looks evenly around the query and 1 for one that looks to one side only;
    1/2 is midway. Attention that does not know of places has 0, however sharp. A head is local if
    its spread is at most half that of even attention; others count as 0, since one that looks at
    a fixed corner of the image is one-sided as well. A single such head is no finding: the
    bootstrap asks whether heads drawn from the model's own nearly always have one.

    Args:
        aligned: attention by offset, of dims (layer, head, row_offset, column_offset).
        kinds: Dataset relative_spread(layer, head).
    """
    dims = ("layer", "head", "row_offset", "column_offset")
    share = expect_array(aligned, dims).values
    share = share / share.sum(axis=(2, 3), keepdims=True)
    sided = abs(share - share[:, :, ::-1, ::-1]).sum(axis=(2, 3)) / 2
    spread = expect_variable(kinds, "relative_spread", ("layer", "head")).values
    return bootstrap(np.max, np.where(spread <= 0.5, sided, 0).ravel(), over="heads")


def offset_heads_early(kinds):
    """Share of offset heads, lower half minus upper; against 0 (appendix C.1, figure 18).

    Args:
        kinds: Dataset of strings kind(layer, head).
    """
    offset = expect_variable(kinds, "kind", ("layer", "head")).values == "offset"
    halves = [half(offset).astype(float).ravel() for half in (lower, upper)]
    return bootstrap(lambda x, y: x.mean() - y.mean(), *halves, over="heads")


def local_kinds(kinds):
    """Number of kinds of local heads; against 3/2, midway between one kind and two.

    Of strict, soft, axial and offset ones (section 4.2, figure 3).

    Args:
        kinds: as in `offset_heads_early`.
    """
    found = expect_variable(kinds, "kind", ("layer", "head")).values.ravel()
    each = np.stack([found == kind for kind in LOCAL], axis=1)
    return bootstrap(lambda x: x.any(axis=0).sum(), each, over="heads")


def layers_mix(kinds):
    """Share of layers with both local and global heads; against 1/2, most (section 4.3, fig. 4).

    Args:
        kinds: as in `offset_heads_early`.
    """
    found = expect_variable(kinds, "kind", ("layer", "head")).values
    mixed = np.isin(found, LOCAL).any(axis=1) & (found == "global").any(axis=1)
    return bootstrap(np.mean, mixed.astype(float), over="layers")


def distance_dips(distance):
    """Attention distance of layers 3 to 6 of 12 minus that of the first two; against 0.

    Section 4.3, figure 4; of other depths the layers whose middle lies in the same share of it.

    Args:
        distance: attention distance of dims (layer, head).
    """
    first, third, _ = _phases(expect_array(distance, ("layer", "head")).values)
    return _mean_gap(third.ravel(), first.ravel(), over="heads")


def distance_rises(distance):
    """Attention distance of the upper half minus that of layers 3 to 6 of 12; against 0.

    Section 4.3, figure 4; layers as in `distance_dips`.

    Args:
        distance: as in `distance_dips`.
    """
    _, third, late = _phases(expect_array(distance, ("layer", "head")).values)
    return _mean_gap(late.ravel(), third.ravel(), over="heads")


def saliency_early(saliency, untrained):
    """Largest IoU of CLS' attention and object, lower half, minus that of an untrained model.

    Against 0 (section 4.4, figure 5). The largest of all heads of an untrained model is what the
    choice of the best head gives attention that knows nothing of objects.

    Args:
        saliency, untrained: Dataset best_iou(query, layer), of the best head of each layer.
    """
    best, chance = _best_iou(saliency), _best_iou(untrained)
    return bootstrap(lambda x, y: x.max() - y.max(), lower(best), chance, over="layers")


def saliency_plateaus(saliency, untrained):
    """Rise of the largest IoU in the lower half minus its further rise in the upper half.

    Against 0, a steady rise (section 4.4, figure 5). The first rise is from the largest IoU of an
    untrained model; the second is 0 where no later head is better.

    Args:
        saliency, untrained: as in `saliency_early`.
    """

    def rises(early, late, chance):
        return early.max() - chance.max() - max(late.max() - early.max(), 0)

    best = _best_iou(saliency)
    return bootstrap(rises, lower(best), upper(best), _best_iou(untrained), over="layers")


def saliency_drops(saliency):
    """Mean best IoU of the upper half minus that of layers 3 to 6 of 12; against 0.

    Section 4.4, figure 5; layers as in `distance_dips`.

    Args:
        saliency: as in `saliency_early`.
    """
    _, plateau, late = _phases(_best_iou(saliency))
    return _mean_gap(late, plateau, over="layers")


def skips_diverge(similarity):
    """CKA of each attention branch and its skip, upper half minus lower; against 0.

    Appendix D.4, figure 23.

    Args:
        similarity: Dataset cka(layer_x, layer_y), of "site/branch" along x and "site/skip" along
            y, and its stderr where known.
    """
    cka = expect_variable(similarity, "cka", ("layer_x", "layer_y"))
    stderr = similarity.get("stderr", cka * np.nan).transpose("layer_x", "layer_y")
    skips = {name.rpartition("/")[0]: i for i, name in enumerate(layer_names(cka, "layer_y"))}
    branches = [name.rpartition("/")[0] for name in layer_names(cka, "layer_x")]
    pairs = np.array([(i, skips[site]) for i, site in enumerate(branches) if site in skips])
    if len(pairs) < 2:
        raise ValueError(f"Expected two sites with skip and branch. Received: {len(pairs)}")
    rows, columns = pairs.T
    values, errors = cka.values[rows, columns], stderr.values[rows, columns]
    samples = [Sample(half(values), half(errors)) for half in (upper, lower)]
    return difference(*samples, over="attention sublayers")


def _of_query(result, query):
    """Values of one query."""
    names = [str(name) for name in result["query"].values]
    if query not in names:
        raise ValueError(f"Expected attention of query {query!r}. Received: {', '.join(names)}")
    return result.values[names.index(query)]


def _phases(values):
    """Layers along the first axis: the first two of 12, the next four, and the upper half."""
    middles, count = 2 * np.arange(len(values)) + 1, len(values)  # in half layers
    first, early = 3 * middles < count, middles < count
    if count < 4:
        raise ValueError(f"Expected at least 4 layers. Received: {count}")
    return values[first], values[early & ~first], values[~early]


def _mean_gap(one, other, over):
    return bootstrap(lambda x, y: x.mean() - y.mean(), one, other, over=over)


def _ratio_of_means(pairs):
    above, below = pairs.mean(axis=0)
    return above / below if below > 0 else np.nan


def _best_iou(saliency):
    return _of_query(expect_variable(saliency, "best_iou", ("query", "layer")), "cls")
