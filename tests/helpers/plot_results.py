"""A small synthetic result of every measurement, under the measurement's name."""

import numpy as np
import xarray as xr

GRID = {"rows": 3, "columns": 4, "prefix": 1, "stride": 8}
NAMES = {"model": "ViT-Ti/16", "model_x": "ViT-Ti/16", "model_y": "ViT-Ti/16"}
BLOCKS = [f"block{block:02}" for block in range(4)]
SUMS = [f"{block}/{site}/sum" for block in BLOCKS for site in ("attention", "mlp")]
WEIGHTS = [f"{block}/attention/weights" for block in BLOCKS]
PIXELS = {"row": range(24), "column": range(32)}
# The coordinates of each dim, unless a result has others.
COORDS = {
    **dict.fromkeys(("layer", "layer_x", "layer_y"), SUMS),
    "layer_other": WEIGHTS,
    **{"row": range(3), "column": range(4), "channel": range(3), "component": range(8)},
    **{
        "other_row": range(3),
        "other_column": range(4),
        "place": range(12),
        "spatial_key": range(12),
    },
    **dict.fromkeys(("token", "query", "key"), range(13)),
    **{"example": range(2), "head": range(3), "class": [3, 7], "epoch": range(5)},
    **{"row_offset": 8 * np.arange(-2, 3), "column_offset": 8 * np.arange(-3, 4)},
    **{"model_x": ["ViT", "BiT", "DINO"], "model_y": ["ViT", "BiT", "DINO"]},
    **{"part": ["cls", "spatial"], "path": ["skip", "branch"]},
    **{"order": ["local", "global"], "subset": range(1, 4), "share": [0.25, 0.5, 0.75, 1.0]},
    **{"tokens": ["cls", "random", "attended"], "measure": ["CKA", "RSA", "Procrustes"]},
    **{"l2": [0.1, 10.0, 1000.0], "batch_norm": [False, True], "k": [5, 20], "top": [1, 5]},
    **{"difficulty": ["easy", "hard"], "average": ["image", "point"], "threshold": [0.1, 0.05]},
    **{"object": range(3), "function": ["disagreement", "divergence"]},
}


ROLES = {
    "content": ["class", "position"],
    "tokens": ["outlier", "ordinary"],
    "replacement": ["zero", "mean", "resample"],
}


class Samples:
    """Results of uniform random values, whose dims are words of a text, as in "layer head"."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def array(self, dims, low=0.0, high=1.0, units="1", **coords):
        """A DataArray with the attributes that every measurement gives."""
        coords = {dim: (COORDS | coords)[dim] for dim in dims.split()}
        values = self.rng.uniform(low, high, [len(names) for names in coords.values()])
        attrs = {"model": "ViT-Ti/16", "units": units, **GRID}
        return xr.DataArray(values, coords, tuple(coords), attrs=attrs)

    def dataset(self, dims, coords=None, **ranges):
        """A Dataset of variables of these dims, each from its lowest to its highest value."""
        arrays = {name: self.array(dims, *ends, **coords or {}) for name, ends in ranges.items()}
        return xr.Dataset({n: a.drop_attrs() for n, a in arrays.items()}, attrs=NAMES | GRID)

    def effects(self, dims, **coords):
        """The three changes of an intervention, and their standard errors."""
        changes = [f"{what}_change" for what in ("accuracy", "loss", "output")]
        errors = {f"{name}_stderr": (0.01, 0.03) for name in changes}
        return self.dataset(dims, coords, **dict.fromkeys(changes, (-0.2, 0.2)), **errors)


def cka_dataset(rng, x=SUMS, y=SUMS):
    depth = np.abs(np.linspace(0, 1, len(x))[:, None] - np.linspace(0, 1, len(y)))
    values = np.exp(-2 * depth) * rng.uniform(0.9, 1, depth.shape)
    dims = ("layer_x", "layer_y")
    variables = {"cka": (dims, values), "stderr": (dims, 0.02 * values)}
    return xr.Dataset(variables, {"layer_x": x, "layer_y": y}, NAMES | GRID)


def results(seed=0):
    """Dict from measurement to result: every kind of result that the package returns."""
    samples = Samples(seed)
    array, dataset = samples.array, samples.dataset
    weights = {"layer": WEIGHTS}
    distance = array("layer head", 4, 16, "pixels", **weights)
    spot = -(np.hypot(*np.mgrid[-12:12, -16:16]) ** 2)
    field = array("layer row column", **PIXELS)
    field = field.copy(data=np.exp(spot / (40 + 60 * np.arange(8)[:, None, None])))
    kinds = np.array(["strict", "soft", "axial", "offset", "global", "none"])
    kind = kinds[np.arange(12).reshape(4, 3) % 6]
    direction = np.select([kind == "axial", kind == "offset"], ["row", "up-left"], "")
    heads = dataset("layer head", weights, kind=(0, 1), direction=(0, 1))
    position = np.r_[np.nan, np.arange(12)]
    places = {"token_row": ("token", position // 4), "token_column": ("token", position % 4)}
    head_similarity = {"layer": ["root", "stage1/unit01/sum"]}
    subsets = array("order subset", 4, 16).drop_attrs()
    clusters = dataset("layer", purity=(0.1, 0.9), nmi=(0.1, 0.9), ari=(0.1, 0.9))
    clusters = clusters.assign_attrs(clusters=10)
    explained = np.sort(samples.rng.uniform(0, 0.2, 8))[::-1]
    tokens = {"token": range(12), "other_example": range(2), "other_token": range(12)}
    rising, errors = np.linspace(0.1, 0.8, 8), (0.01, 0.03)
    lens = dataset("layer", accuracy_stderr=errors, agreement_stderr=errors)
    pictures = samples.rng.integers(0, 256, (8, 2, 4, 6, 5, 3)).astype(np.uint8)
    pixels = ("pixel_row", "pixel_column", "colour")
    mistakes = dataset("rank", {"rank": range(4)}, probability=(0.5, 1)).assign(
        {name: ("rank", np.arange(4) + shift) for name, shift in (("predicted", 0), ("label", 1))}
    )
    nearest = {"layer": SUMS, "query": range(2), "rank": range(4)}
    return {
        "cka": cka_dataset(samples.rng),
        "cka_sensitivity": cka_dataset(samples.rng).assign(
            dataset(
                "part layer_x layer_y",
                {"part": ["images", "component", "pixels"]},
                without=(0, 1),
                change_stderr=(0, 0.02),
                share=(0, 0.9),
            )
        ),
        "best_matching_layer": dataset("layer", cka=(0.5, 1), stderr=errors),
        "similarities": dataset(
            "measure layer_x layer_y", similarity=(0, 1), stderr=(0, 0.02)
        ).assign(dataset("layer_x layer_y", disagreement=(0, 1))),
        "last_layer_cka": dataset("model_x model_y part", cka=(0.1, 1)),
        "grounded_similarity": dataset(
            "measure function",
            correlation=(0.1, 0.5),
            correlation_low=(-0.3, 0.1),
            correlation_high=(0.5, 0.9),
            p_value=(0.01, 0.1),
        ),
        "head_similarity": dataset(
            "order subset layer", head_similarity, cka=(0.2, 0.8), stderr=errors
        ).assign(distance=subsets.copy(data=np.sort(subsets.values))),
        "frequency_amplitude": dataset(
            "layer frequency",
            {"frequency": [0.0, 0.25, 0.5, 0.75, 1.0]},
            amplitude=(-3, 0),
            stderr=(0.01, 0.05),
        ),
        "outlier_tokens": dataset(
            "layer", share=(0, 0.1), stderr=(0, 0.01), norm_ratio=(2, 9)
        ).assign(
            dataset(
                "layer tokens",
                {"tokens": ["outlier", "ordinary", "prefix"]},
                attention=(0, 4),
                attention_stderr=(0, 0.1),
            )
        ),
        "outlier_roles": dataset(
            "layer content tokens",
            ROLES,
            probe_accuracy=(0.3, 0.9),
            probe_accuracy_stderr=errors,
            chance=(0.1, 0.2),
        ).assign(samples.effects("layer tokens replacement", **ROLES)),
        "shape_bias": dataset(
            "class",
            {"class": ["disc", "ring", "square"]},
            class_shape_bias=(0.4, 0.6),
            class_low=(0.2, 0.4),
            class_high=(0.6, 0.8),
        ).assign(shape_bias=0.5, low=0.45, high=0.55),
        "stitching": samples.effects("layer_x layer_y"),
        "robustness": dataset(
            "perturbation strength",
            {"perturbation": ["patch drop", "low-frequency noise"], "strength": [0.25, 0.5, 0.9]},
            accuracy=(0.1, 0.9),
            accuracy_change=(-0.5, 0),
            accuracy_change_stderr=(0.01, 0.02),
        )
        .assign(intact_accuracy=0.9)
        .assign_coords(grid=[2, 4])
        .assign(shuffled_accuracy=("grid", [0.8, 0.3]))
        .assign(shuffled_change_stderr=("grid", [0.01, 0.02])),
        "equivariance_error": dataset(
            "transform layer", {"transform": ["flip", "shift 8 8"]}, error=(0, 1), stderr=(0, 0.05)
        ),
        "intrinsic_dimension": dataset(
            "measure layer",
            {"measure": ["two_nn", "participation_ratio", "effective_rank"]},
            dimension=(2, 40),
            stderr=(0.1, 0.5),
        ),
        "localization": array("layer token row column", 0, 0.3, layer=SUMS[:2]).assign_coords(
            places
        ),
        "formation": dataset(
            "epoch layer",
            **dict.fromkeys(("cka_to_start", "cka_to_previous", "accuracy"), (0.1, 1)),
        ),
        "attention_distance": distance,
        "mean_distance": distance.assign_attrs(
            units="sides of the grid", long_name="mean attention distance"
        )
        / 16,
        "mean_attention": dataset("layer head query key", weights, raw=(0, 0.2)).assign(
            dataset("layer head query spatial_key", weights, spatial=(0, 0.2))
        ),
        "attention_maps": array("layer head row column", **weights).assign_attrs(query="cls"),
        "aligned_attention": array("layer head row_offset column_offset", **weights),
        "attention_offset": dataset(
            "layer head", weights, row_offset=(-12, 12), column_offset=(-12, 12)
        ),
        "head_classes": heads.assign(
            kind=heads.kind.copy(data=kind), direction=heads.direction.copy(data=direction)
        ),
        "attention_patterns": dataset(
            "query layer layer_other",
            weights | {"query": ["cls", "spatial"]},
            repetition=(0.1, 0.5),
        ),
        "attention_saliency": dataset(
            "query layer head", weights | {"query": ["cls", "spatial"]}, iou=(0.1, 0.5)
        ),
        "attention_rollout": array("layer query key", layer=BLOCKS),
        "rollout_of_images": array("example query key"),
        "attention": dataset("example layer head row column", weights, attention=(0, 0.2))
        .assign(picture=(("example", *pixels), pictures[0, :, 0]))
        .assign_attrs(query="cls"),
        "attention_rows": dataset("example layer head query key", weights, attention=(0, 0.2)),
        "gradient_attention": array("example class query key"),
        "receptive_field": field,
        "skip_ratio": dataset("layer token", norm_ratio=(0.2, 5), cosine=(-1, 1)),
        "branch_norms": dataset("example layer token", skip=(2, 9), branch=(2, 9)),
        "patch_filters": array(
            "component row column channel", -1, 1, row=range(8), column=range(8)
        ).assign_coords(explained_variance=("component", explained)),
        "position_similarity": array("row column other_row other_column", -1, 1),
        "position_attribution": array("example layer place row column", **PIXELS),
        "input_gradients": array("example class row column channel", -1, 1, **PIXELS),
        "integrated_gradients": array("example class row column channel", -1, 1, **PIXELS).rename(
            "integrated_gradients"
        ),
        "grad_cam": array("example class layer row column", layer=SUMS[1::2], **PIXELS),
        "logit_lens": array("example layer class", -2, 2, **{"class": range(10)}),
        "lens_accuracy": lens.assign(accuracy=("layer", rising), agreement=("layer", rising + 0.2)),
        "head_ablation": samples.effects("layer head", **weights),
        "skip_ablation": samples.effects("layer path", layer=BLOCKS),
        "concept_erasure": samples.effects("layer erased", erased=["concept", "random"]).assign(
            dataset(
                "layer",
                **{
                    f"{change}_change_{end}": ends
                    for change in ("accuracy", "loss", "output")
                    for end, ends in (("low", (-0.2, -0.1)), ("high", (0.1, 0.2)))
                },
            )
        ),
        "token_ablation": samples.effects("tokens share"),
        "activation_patching": dataset("layer token", transfer=(-0.3, 0.9), stderr=(0, 0.1)),
        "token_similarity": array(
            "layer example token other_example other_token", layer=SUMS[:2], **tokens
        ),
        "ridge_probe": array("layer l2", 0.2, 0.9),
        "linear_probe": array("layer tokens batch_norm", 0.2, 0.9, tokens=["cls", "spatial"]),
        "knn_accuracy": array("layer k top", 0.2, 0.9),
        "neighbours": dataset(
            "layer query rank", nearest, similarity=(0, 1), position=(0, 9)
        ).assign(
            picture=(("layer", "query", "rank", *pixels), pictures),
            query_picture=(("query", *pixels), pictures[0, :, 0]),
        ),
        "mistakes": mistakes.assign(picture=(("rank", *pixels), pictures[0, 0])).assign_attrs(
            mistakes=7, examples=30
        ),
        "predict": dataset("example rank", {"rank": range(4)}, probability=(0, 0.25)).assign(
            class_number=(("example", "rank"), np.arange(8).reshape(2, 4))
        ),
        "projection": array(
            "layer example component", -1, 1, example=range(12), component=range(2)
        ).assign_coords(label=("example", np.arange(12) % 3)),
        "retrieval": dataset("layer difficulty", score=(0.2, 0.9)),
        "clustering": clusters,
        "object_clustering": clusters.assign_attrs(objects=40),
        "label_propagation": dataset("layer", score=(0.2, 0.7)).assign(
            dataset("layer object", region=(0.2, 0.7))
        ),
        "keypoint_correspondence": dataset("average layer threshold", score=(0.2, 0.7)),
        "compute": xr.Dataset(
            {
                "training_flops": ("run", [2e15, 5e15, 9e15]),
                "test_accuracy": ("run", [0.4, 0.55, 0.6]),
            },
            {"run": ["ViT-CLS", "ViT-GAP", "BiT"], "family": ("run", ["ViT", "ViT", "BiT"])},
        ),
        "runs": xr.Dataset(
            {
                "values": (("claim", "training"), [[0.2, 0.3, 0.4], [0.1, 0.3, 0.2]]),
                "value": ("claim", [0.3, 0.2]),
                "low": ("claim", [0.2, 0.1]),
                "high": ("claim", [0.4, 0.3]),
                "sign": ("claim", [1, -1]),
                "outcome": ("claim", ["as in the paper", "undecided"]),
                "statement": ("claim", ["CKA between halves is larger", "heads are local"]),
            },
            coords={"claim": ["halves", "local"], "training": ["seed 0", "seed 1", "seed 2"]},
        ),
    }
