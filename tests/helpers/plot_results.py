"""A small synthetic result of every measurement, under the measurement's name."""

import numpy as np
import xarray as xr

GRID = {"rows": 3, "columns": 4, "prefix": 1, "stride": 8}
BLOCKS = [f"block{block:02}" for block in range(4)]
SUMS = [f"{block}/{site}/sum" for block in BLOCKS for site in ("attention", "mlp")]
WEIGHTS = [f"{block}/attention/weights" for block in BLOCKS]


def array(values, dims, units="1", **coords):
    """A DataArray with the attributes that every measurement gives."""
    attrs = {"model": "ViT-Ti/16", "units": units, **GRID}
    return xr.DataArray(values, coords, dims, attrs=attrs)


def dataset(coords, **variables):
    """A Dataset of (dims, values) with the same attributes."""
    names = {"model": "ViT-Ti/16", "model_x": "ViT-Ti/16", "model_y": "ViT-Ti/16"}
    return xr.Dataset(variables, coords, attrs=names | GRID)


def effects(rng, dims, shape, **coords):
    """The three changes of an intervention, and their standard errors."""
    variables = {}
    for name in ("accuracy_change", "loss_change", "output_change"):
        variables[name] = dims, rng.normal(0, 0.1, shape)
        variables[f"{name}_stderr"] = dims, rng.uniform(0.01, 0.03, shape)
    return dataset(coords, **variables)


def cka_dataset(rng, x=SUMS, y=SUMS):
    depth = np.abs(np.linspace(0, 1, len(x))[:, None] - np.linspace(0, 1, len(y)))
    values = np.exp(-2 * depth) * rng.uniform(0.9, 1, depth.shape)
    dims = ("layer_x", "layer_y")
    return dataset({"layer_x": x, "layer_y": y}, cka=(dims, values), stderr=(dims, 0.02 * values))


def results(seed=0):
    """Dict from measurement to result: every kind of result that the package returns."""
    rng = np.random.default_rng(seed)
    u = rng.uniform
    heads, rows, columns, tokens = range(3), GRID["rows"], GRID["columns"], 13
    grid = {"row": range(rows), "column": range(columns)}
    pixels = {"row": range(24), "column": range(32)}
    kinds = np.array(["strict", "soft", "axial", "offset", "global", "none"])
    kind = kinds[np.arange(12).reshape(4, 3) % 6]
    signs = {"axial": "row", "offset": "up-left"}
    place = np.r_[np.nan, np.arange(12)]
    change = effects(rng, ("layer", "head"), (4, 3), layer=WEIGHTS, head=heads)
    distance = array(u(4, 16, (4, 3)), ("layer", "head"), "pixels", layer=WEIGHTS, head=heads)
    centred = np.exp(
        -(np.hypot(*np.mgrid[-12:12, -16:16]) ** 2) / (40 + 60 * np.arange(8)[:, None, None])
    )
    maps = {"layer": WEIGHTS, "head": heads}
    score = dataset({"layer": SUMS}, score=("layer", u(0.2, 0.7, 8)))
    clusters = dataset(
        {"layer": SUMS}, **{name: ("layer", u(0.1, 0.9, 8)) for name in ("purity", "nmi", "ari")}
    )
    clusters = clusters.assign_attrs(clusters=10)
    steps = {"epoch": range(5), "layer": SUMS}
    measures = {"measure": ["CKA", "RSA", "Procrustes"], "layer_x": SUMS, "layer_y": SUMS}
    return {
        "cka": cka_dataset(rng),
        "best_matching_layer": dataset(
            {"layer": SUMS}, cka=("layer", u(0.5, 1, 8)), stderr=("layer", u(0.01, 0.03, 8))
        ),
        "similarities": dataset(
            measures,
            similarity=(tuple(measures), u(0, 1, (3, 8, 8))),
            stderr=(tuple(measures), u(0, 0.02, (3, 8, 8))),
            disagreement=(("layer_x", "layer_y"), u(0, 1, (8, 8))),
        ),
        "last_layer_cka": dataset(
            {
                "model_x": ["ViT", "BiT", "DINO"],
                "model_y": ["ViT", "BiT", "DINO"],
                "part": ["cls", "spatial"],
            },
            cka=(("model_x", "model_y", "part"), u(0.1, 1, (3, 3, 2))),
        ),
        "head_similarity": dataset(
            {
                "order": ["local", "global"],
                "subset": range(1, 4),
                "layer": ["root", "stage1/unit01/sum"],
            },
            cka=(("order", "subset", "layer"), u(0.2, 0.8, (2, 3, 2))),
            stderr=(("order", "subset", "layer"), u(0.01, 0.03, (2, 3, 2))),
            distance=(("order", "subset"), np.sort(u(4, 16, (2, 3)))),
        ),
        "localization": array(
            u(0, 0.3, (2, 13, rows, columns)),
            ("layer", "token", "row", "column"),
            layer=SUMS[:2],
            token=range(13),
            token_row=("token", place // columns),
            token_column=("token", place % columns),
            **grid,
        ),
        "formation": dataset(
            steps,
            **{
                name: (tuple(steps), u(0.1, 1, (5, 8)))
                for name in ("cka_to_start", "cka_to_previous", "accuracy")
            },
        ),
        "attention_distance": distance,
        "mean_distance": distance.assign_attrs(
            units="sides of the grid", long_name="mean attention distance"
        )
        / 16,
        "mean_attention": dataset(
            {"layer": WEIGHTS, "head": heads},
            raw=(("layer", "head", "query", "key"), u(0, 0.2, (4, 3, tokens, tokens))),
            spatial=(("layer", "head", "query", "spatial_key"), u(0, 0.2, (4, 3, tokens, 12))),
        ),
        "attention_maps": array(
            u(0, 1, (4, 3, rows, columns)), ("layer", "head", "row", "column"), **maps, **grid
        ).assign_attrs(query="cls"),
        "aligned_attention": array(
            u(0, 1, (4, 3, 5, 7)),
            ("layer", "head", "row_offset", "column_offset"),
            **maps,
            row_offset=8 * np.arange(-2, 3),
            column_offset=8 * np.arange(-3, 4),
        ),
        "attention_offset": dataset(
            maps,
            row_offset=(("layer", "head"), rng.normal(0, 6, (4, 3))),
            column_offset=(("layer", "head"), rng.normal(0, 6, (4, 3))),
        ),
        "head_classes": dataset(
            maps,
            kind=(("layer", "head"), kind),
            direction=(("layer", "head"), np.vectorize(lambda k: signs.get(k, ""))(kind)),
        ),
        "attention_patterns": dataset(
            {"query": ["cls", "spatial"], "layer": WEIGHTS, "layer_other": WEIGHTS},
            repetition=(("query", "layer", "layer_other"), u(0.1, 0.5, (2, 4, 4))),
        ),
        "attention_saliency": dataset(
            {"query": ["cls", "spatial"], **maps},
            iou=(("query", "layer", "head"), u(0.1, 0.5, (2, 4, 3))),
        ),
        "attention_rollout": array(
            u(0, 1, (4, tokens, tokens)), ("layer", "query", "key"), layer=BLOCKS
        ),
        "rollout_of_images": array(
            u(0, 1, (2, tokens, tokens)), ("example", "query", "key"), example=range(2)
        ),
        "attention_rows": dataset(
            {"example": range(2), **maps, "query": range(tokens), "key": range(tokens)},
            attention=(
                ("example", "layer", "head", "query", "key"),
                u(0, 0.2, (2, 4, 3, tokens, tokens)),
            ),
        ),
        "gradient_attention": array(
            u(0, 1, (2, 2, tokens, tokens)),
            ("example", "class", "query", "key"),
            example=range(2),
            **{"class": [3, 7]},
        ),
        "receptive_field": array(centred, ("layer", "row", "column"), layer=SUMS, **pixels),
        "skip_ratio": dataset(
            {"layer": SUMS},
            norm_ratio=(("layer", "token"), np.exp(rng.normal(0, 1, (8, tokens)))),
            cosine=(("layer", "token"), u(-1, 1, (8, tokens))),
        ),
        "branch_norms": dataset(
            {"example": range(2), "layer": SUMS},
            **{
                name: (("example", "layer", "token"), u(2, 9, (2, 8, tokens)))
                for name in ("skip", "branch")
            },
        ),
        "patch_filters": array(
            u(-1, 1, (8, 8, 8, 3)),
            ("component", "row", "column", "channel"),
            explained_variance=("component", np.sort(u(0, 0.2, 8))[::-1]),
        ),
        "position_similarity": array(
            u(-1, 1, (rows, columns, rows, columns)),
            ("row", "column", "other_row", "other_column"),
            **grid,
        ),
        "position_attribution": array(
            u(0, 1, (2, 8, 12, 24, 32)),
            ("example", "layer", "place", "row", "column"),
            example=range(2),
            layer=SUMS,
            place=range(12),
        ),
        "input_gradients": array(
            rng.normal(size=(2, 2, 24, 32, 3)),
            ("example", "class", "row", "column", "channel"),
            example=range(2),
            **{"class": [3, 7]},
        ),
        "grad_cam": array(
            u(0, 1, (2, 2, 4, 24, 32)),
            ("example", "class", "layer", "row", "column"),
            example=range(2),
            **{"class": [3, 7]},
            layer=SUMS[1::2],
        ),
        "logit_lens": array(
            rng.normal(size=(2, 8, 10)),
            ("example", "layer", "class"),
            example=range(2),
            layer=SUMS,
            **{"class": range(10)},
        ),
        "lens_accuracy": dataset(
            {"layer": SUMS},
            accuracy=("layer", np.linspace(0.1, 0.8, 8)),
            agreement=("layer", np.linspace(0.1, 1, 8)),
            accuracy_stderr=("layer", u(0.01, 0.03, 8)),
            agreement_stderr=("layer", u(0.01, 0.03, 8)),
        ),
        "head_ablation": change,
        "skip_ablation": effects(
            rng, ("layer", "path"), (4, 2), layer=BLOCKS, path=["skip", "branch"]
        ),
        "token_ablation": effects(
            rng,
            ("tokens", "share"),
            (3, 4),
            tokens=["cls", "random", "attended"],
            share=[0.25, 0.5, 0.75, 1.0],
        ),
        "activation_patching": dataset(
            {"layer": SUMS, "token": range(tokens)},
            transfer=(("layer", "token"), rng.normal(0.3, 0.3, (8, tokens))),
            stderr=(("layer", "token"), u(0, 0.1, (8, tokens))),
        ),
        "token_similarity": array(
            u(0, 1, (2, 2, 12, 2, 12)),
            ("layer", "example", "token", "other_example", "other_token"),
            layer=SUMS[:2],
            example=range(2),
            token=range(12),
            other_example=range(2),
            other_token=range(12),
        ),
        "ridge_probe": array(
            u(0.2, 0.9, (8, 3)), ("layer", "l2"), layer=SUMS, l2=[0.1, 10.0, 1000.0]
        ),
        "linear_probe": array(
            u(0.2, 0.9, (8, 2, 2)),
            ("layer", "tokens", "batch_norm"),
            layer=SUMS,
            tokens=["cls", "spatial"],
            batch_norm=[False, True],
        ),
        "knn_accuracy": array(
            u(0.2, 0.9, (8, 2, 2)), ("layer", "k", "top"), layer=SUMS, k=[5, 20], top=[1, 5]
        ),
        "retrieval": dataset(
            {"layer": SUMS, "difficulty": ["easy", "hard"]},
            score=(("layer", "difficulty"), u(0.2, 0.9, (8, 2))),
        ),
        "clustering": clusters,
        "object_clustering": clusters.assign_attrs(objects=40),
        "label_propagation": score.assign(region=(("layer", "object"), u(0.2, 0.7, (8, 3)))),
        "keypoint_correspondence": dataset(
            {"average": ["image", "point"], "layer": SUMS, "threshold": [0.1, 0.05]},
            score=(("average", "layer", "threshold"), u(0.2, 0.7, (2, 8, 2))),
        ),
        "compute": xr.Dataset(
            {
                "training_flops": ("run", [2e15, 5e15, 9e15]),
                "test_accuracy": ("run", [0.4, 0.55, 0.6]),
            },
            coords={"run": ["ViT-CLS", "ViT-GAP", "BiT"], "family": ("run", ["ViT", "ViT", "BiT"])},
        ),
        "trainings": xr.Dataset(
            {
                "values": (("claim", "training"), [[0.2, 0.3, 0.4], [0.1, 0.3, 0.2]]),
                "value": ("claim", [0.3, 0.2]),
                "low": ("claim", [0.2, 0.1]),
                "high": ("claim", [0.4, 0.3]),
                "threshold": ("claim", [0.1, 0.25]),
                "direction": ("claim", ["above", "below"]),
                "verdict": ("claim", ["replicates", "inconclusive"]),
                "statement": ("claim", ["CKA between halves is larger", "heads are local"]),
            },
            coords={"claim": ["halves", "local"], "training": ["seed 0", "seed 1", "seed 2"]},
        ),
    }
