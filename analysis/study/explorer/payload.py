"""What the page of single images draws: the results, rounded, as a dict that JSON can hold."""

import base64
import io

import numpy as np

MOST_PIXELS = 112  # a side of a map of pixels on the page
MOST_BYTES = 2_000_000  # of attention at eight bits a weight; more of it is kept in four
PREDICTIONS = 5  # classes that the model predicts for an image
SPAN = (2, 98)  # percentiles of a principal component that colours run between
BEST = 3  # classes with the highest scores in a layer: top-1 to top-3
LEVELS = {4: 15, 8: 255, 16: 65_535}


def make_payload(subject, results, photos, class_names):
    """What the script of the page draws."""
    grid = subject.model.grid
    explained_classes = subject.explained_classes if "scores" in results else [[] for _ in photos]
    shared = {
        "grid": None if grid is None else {**vars(grid)},
        "prefix_names": list(subject.prefix_names),
        "pooled": list(subject.pooled_tokens),
        "pooled_name": subject.pooled_name,
        "size": list(subject.images.shape[1:3]),
        "layers": {
            name: _layers(results[name_of_result])
            for name, name_of_result in LAYERS.items()
            if name_of_result in results
        },
        "examples": [
            {
                "picture": _as_data_url(photo),
                "classes": [class_name(class_names, number) for number in explained],
            }
            for photo, explained in zip(photos, explained_classes, strict=True)
        ],
    }
    for name, pack_one in PACKERS.items():
        if name in results:
            of_all, of_each = pack_one(results[name], subject, class_names)
            shared |= of_all
            for example, arrays in zip(shared["examples"], of_each, strict=True):
                example |= arrays
    return shared


def _layers(result):
    """The names of the layers of a result, or of a dict by layer."""
    return list(result) if isinstance(result, dict) else [str(x) for x in result["layer"].values]


def class_name(names, position):
    """What a class is called."""
    return names[position] if names else f"class {position}"


def _scores(result, subject, class_names):
    """The most probable classes of each image, and those explained that are not among them."""
    each = []
    for shares, explained in zip(
        probabilities(result.values), subject.explained_classes, strict=True
    ):
        best = np.argsort(-shares, kind="stable")[:PREDICTIONS].tolist()
        listed = [*best, *(number for number in explained if number not in best)]
        each.append(
            [
                {
                    "name": class_name(class_names, number),
                    "share": float(f"{shares[number]:.4g}"),
                    "explained": explained.index(number) if number in explained else -1,
                }
                for number in (listed if subject.classes is not None else best)
            ]
        )
    return {}, [{"predictions": classes} for classes in each]


def _attention(result, subject, _):
    weights = result["attention"].values
    bits = attention_bits(result)
    each = [
        {
            "attention": pack(weights[index], bits, 3, low=0),
            "distance": pack(result["distance"].values[index], 32),
            "mass": pack(result["mass"].values[index], 16),
        }
        for index in range(len(weights))
    ]
    return {"heads": weights.shape[2]}, each


def attention_bits(result):
    """Bits of a weight of the attention on the page."""
    return 8 if result["attention"].size <= MOST_BYTES else 4


def _rollout(result, *_):
    return {}, [{"rollout": pack(image_values, 16, 1)} for image_values in result.values]


def _relevance(result, subject, _):
    pooled, prefix = list(subject.pooled_tokens), subject.model.grid.prefix
    each = [subject.explained(result, example) for example in range(len(result))]
    read = [image_values[:, pooled].mean(axis=1)[:, prefix:] for image_values in each]
    return {}, [{"relevance": pack(image_values, 32)} for image_values in read]


def _gradients(result, subject, _):
    each = [subject.explained(result, example) for example in range(len(result))]
    sizes = [shrunk(np.abs(image_values).sum(axis=-1)) for image_values in each]
    shared = {"gradient_size": list(sizes[0].shape[-2:])}
    return shared, [{"gradients": pack(image_values, 8, 1)} for image_values in sizes]


def _similarity(result, *_):
    by_example = result.transpose("example", "layer", "token", "other_example", "other_token")
    return {}, [{"similarity": pack(image_values, 8, 3)} for image_values in by_example.values]


def _lens(result, subject, class_names):
    shares = probabilities(result.values)
    each = []
    for values, explained in zip(shares, subject.explained_classes, strict=True):
        best = np.argsort(-values, axis=-1, kind="stable")[:, :BEST]
        top = [
            [(class_name(class_names, int(c)), float(f"{layer[c]:.4g}")) for c in order]
            for layer, order in zip(values, best, strict=True)
        ]
        each.append({"lens": pack(values[:, explained], 32), "top": top})
    return {}, each


def _components(result, *_):
    """Red, green and blue from 0 to 1 of every patch, on one scale for all images of a layer."""
    each = [{} for _ in range(next(iter(result.values())).sizes["example"])]
    for index, scores in enumerate(result.values()):
        low, high = np.percentile(scores.values, SPAN, axis=(0, 1, 2))
        shares = (scores.values - low) / np.where(high > low, high - low, 1)
        for example, values in zip(each, np.moveaxis(shares.clip(0, 1), -1, 1), strict=True):
            example[f"components{index}"] = pack(np.moveaxis(shrunk(values), 0, -1), 8, low=0)
    explained = [float(f"{values['explained'].values.sum():.3g}") for values in result.values()]
    return {"explained": explained}, each


def _token_norms(result, *_):
    each = [{"prefix_norms": []} for _ in range(next(iter(result.values())).sizes["example"])]
    for index, norms in enumerate(result.values()):
        for at, (example, values) in enumerate(zip(each, norms["norm"].values, strict=True)):
            example[f"token_norms{index}"] = pack(shrunk(values), 16)
            prefix = norms["prefix_norm"].values[at] if "prefix_norm" in norms else ()
            example["prefix_norms"].append([float(f"{size:.4g}") for size in prefix])
    sizes = [list(shrunk(norms["norm"].values).shape[-2:]) for norms in result.values()]
    return {"token_sizes": sizes}, each


def _patch_lens(result, subject, class_names):
    """The most probable class of every patch, and the probabilities of those explained."""
    shares = probabilities(result.values)
    best = shares.argmax(axis=-1)
    classes, numbers = np.unique(best, return_inverse=True)
    each = [
        {
            "patch_top": top.tolist(),
            "patch_share": pack(values.max(axis=-1), 8, low=0),
            "patch_classes": pack(np.moveaxis(values[..., explained], -1, 0), 16, 1, low=0),
        }
        for top, values, explained in zip(
            numbers.reshape(best.shape), shares, subject.explained_classes, strict=True
        )
    ]
    return {"patch_names": [class_name(class_names, int(number)) for number in classes]}, each


def _removals(result, subject, _):
    """Changes of the probabilities of the classes explained, in points: (class, layer, removed)."""
    intact = probabilities(subject.scores.values)[:, None, None]
    missing = np.isnan(result.values).any(axis=-1)
    without = probabilities(np.where(missing[..., None], 0, result.values))
    change = np.where(missing[..., None], np.nan, 100 * (without - intact))
    shared = {"removed": [str(tap) for tap in result["removed"].values]}
    own = [
        values[..., classes]
        for values, classes in zip(change, subject.explained_classes, strict=True)
    ]
    return shared, [{"removals": pack(np.moveaxis(values, -1, 0), 32)} for values in own]


def _norms(result, subject, _):
    both = [result[name].values for name in ("skip", "branch")]
    grid = subject.model.grid
    if grid is None or np.isnan(both[0]).any() or both[0].shape[-1] != grid.num_tokens:
        both = [np.nanmean(x, axis=-1, keepdims=True) for x in both]
    each = [{"skip": pack(s, 32), "branch": pack(b, 32)} for s, b in zip(*both, strict=True)]
    return {"norm_tokens": both[0].shape[-1]}, each


def _fields(result, *_):
    fields = shrunk(result.values, MOST_PIXELS // (1 if result.sizes["place"] < 10 else 2))
    grid = [result.attrs["rows"], result.attrs["columns"]]
    shared = {"field_grid": grid, "field_size": list(fields.shape[-2:])}
    return shared, [{"fields": pack(image_values, 8, 2)} for image_values in fields]


def _cam(result, subject, _):
    maps = [shrunk(subject.explained(result, example)) for example in range(len(result))]
    return {"cam_size": list(maps[0].shape[-2:])}, [
        {"cam": pack(image_values, 8, 2)} for image_values in maps
    ]


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


def probabilities(scores):
    """Scores of shape (..., class) as probabilities, by a softmax unless they are such already."""
    scores = np.asarray(scores, np.float64)
    if (scores >= 0).all() and np.allclose(scores.sum(axis=-1), 1, atol=1e-4):
        return scores
    exponents = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponents / exponents.sum(axis=-1, keepdims=True)


def shrunk(maps, most=MOST_PIXELS):
    """Maps of shape (..., row, column) with at most so many pixels a side, means of squares."""
    *lead, height, width = maps.shape
    side = -(-max(height, width) // most)
    rows, columns = -(-height // side), -(-width // side)
    spare = [(0, 0)] * len(lead) + [(0, rows * side - height), (0, columns * side - width)]
    padded = np.pad(maps, spare, mode="edge")
    return padded.reshape(*lead, rows, side, columns, side).mean(axis=(-3, -1))


def _as_data_url(photo):
    """A photograph as PNG where it is small, otherwise as JPEG."""
    from PIL import Image

    file = io.BytesIO()
    kind = "PNG" if max(photo.shape) <= MOST_PIXELS else "JPEG"
    Image.fromarray(photo).save(file, kind, optimize=True, quality=90)
    text = base64.b64encode(file.getvalue()).decode("ascii")
    return f"data:image/{kind.lower()};base64,{text}"


def pack(values, bits=8, leading=0, low=None):
    """An array as a dict that JSON can hold.

        value = low + step * level

    with whole-number levels from 0 to 2^bits - 1, that span the values of each slice of the first
    `leading` axes: none is off by more than half a step. At four bits two levels share a byte, the
    first in its lower half, and value = low + (step * level)^2, so that small values differ: half a
    step bounds the error of the square root of value - low.

    Args:
        values: array of finite numbers; of any at 32 bits, which keep float32 as it is.
        bits: 4, 8, 16 or 32.
        leading: number of axes whose slices have a scale each.
        low: value of level 0; by default the smallest of each slice, rounded down to float32.

    Returns:
        dict of `shape`, `bits`, `leading`, and `data`, `low` and `step` as the base64 of their
        little-endian bytes; the last two are float32 arrays, absent at 32 bits.

    Raises:
        ValueError: for values that are not finite at less than 32 bits, or below `low`.
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
    lowest = _rounded_down(slices.min(axis=-1) if low is None else np.full(slices.shape[:-1], low))
    heights = slices - lowest[..., None]
    heights = np.sqrt(heights) if bits == 4 else heights
    step = (heights.max(axis=-1) / LEVELS[bits]).astype("<f4")
    scale = np.where(step > 0, step, 1).astype(np.float64)[..., None]
    levels = np.rint(heights / scale).clip(0, LEVELS[bits]).astype("<u2" if bits == 16 else "u1")
    if bits == 4:
        flat = np.pad(levels.ravel(), (0, levels.size % 2))
        levels = flat[::2] | flat[1::2] << 4
    return facts | {
        "data": _text(levels),
        "low": _text(lowest),
        "step": _text(step),
    }


def unpack(packed):
    """The float64 array that a page decodes from the result of `pack`."""
    shape, leading, bits = packed["shape"], packed["leading"], packed["bits"]
    data = base64.b64decode(packed["data"])
    if bits == 32:
        return np.frombuffer(data, "<f4").reshape(shape).astype(np.float64)
    levels = np.frombuffer(data, "<u2" if bits == 16 else "u1")
    if bits == 4:
        levels = np.stack([levels & 15, levels >> 4], axis=1).ravel()[: int(np.prod(shape))]
    low, step = (
        np.frombuffer(base64.b64decode(packed[name]), "<f4").reshape(*shape[:leading], 1)
        for name in ("low", "step")
    )
    heights = step * levels.astype(np.float64).reshape(*shape[:leading], -1)
    return (low + (heights**2 if bits == 4 else heights)).reshape(shape)


def _rounded_down(values):
    """The largest float32 numbers that are not above some float64 numbers."""
    nearest = np.asarray(values, "<f4")
    below = np.nextafter(nearest, np.float32(-np.inf))
    return np.where(nearest > values, below, nearest).astype("<f4")


def _text(values):
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
