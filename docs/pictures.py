"""Draws the pictures of the documentation, and updates the index and the gallery.

Run it in the root of a checkout: `python docs/pictures.py`, or with the names of some pictures.
A picture without a function here is the one that the code of its page saves.
CIFAR-10 is expected as TFDS has it, in `~/tensorflow_datasets` or `TFDS_DATA_DIR`. Most models come
with the package; the others are kept in `runs/docs/` and are not trained twice. The pictures lie
in `docs/pictures/`.
"""

import argparse
import os
import re
from contextlib import chdir
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MPLBACKEND", "Agg")

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import xarray as xr
from navigation import update_lists
from picture_models import (
    NUM_TRAINED,
    TRAIN,
    blocks,
    photographs,
    shapes,
    shapes_vit,
    sums,
    test_images,
    train_images,
    trained,
    weights,
)
from PIL import Image
from sklearn.linear_model import LogisticRegression

import vit_tf
from vit_tf import analysis
from vit_tf.checkpoints.released import BUNDLED

PICTURES = Path(__file__).resolve().parent / "pictures"
LARGE = 55_000  # bytes
# A picture of few colours shows steps in a photograph.
WITH_PHOTOGRAPHS, LARGE_PHOTOGRAPH = ("attention", "photo_attention", "photo_pca"), 400_000
plt.rcParams.update({"savefig.dpi": 76, "savefig.bbox": "tight"})


TITLES = {"ViT-CLS": "vit", "ViT-GAP": "gap", "BiT": "bit"}
WEIGHTS = [f"block{block:02}/attention/weights" for block in (0, 2, 5)]
SKIPS = ("*/skip", "*/branch")
OUTPUTS = ("embedding", "*mlp/sum")


@cache
def mean(name="vit"):
    return analysis.mean_attention(weights(name), test_images())


def vit(*patterns):
    """Layers of the ViT of CIFAR-10."""
    return vit_tf.submodel(trained("vit"), *patterns)


def untrained(*patterns):
    return vit_tf.submodel(vit_tf.reinitialize(trained("vit")), *patterns)


def probe_data():
    """Training images, test images and the number of classes."""
    return train_images()[0], test_images(), 10


def by_title(measure):
    """A result for each model of CIFAR-10, from a function of its name."""
    return {title: measure(name) for title, name in TITLES.items()}


def of_two(measure, *options):
    """A result for the ViT with a CLS token and one for the ResNet."""
    two = {"ViT-CLS": "vit", "BiT": "bit"}
    return {title: measure(trained(name), test_images(), *options) for title, name in two.items()}


def of_shapes(measure, *patterns):
    """A result for the ViT of the shapes and one for the same untrained."""
    models = {"trained": shapes_vit(), "untrained": vit_tf.reinitialize(shapes_vit())}
    return {label: measure(vit_tf.submodel(x, *patterns)) for label, x in models.items()}


def shape_bias():
    """Draws the shape bias of linear classifiers, with a texture for each class and without.

    They classify the shapes by features of models of CIFAR-10.
    """
    conflicts = vit_tf.data.load_cue_conflict(504, image_size=32)
    results = {}
    for data_set, words in (("textured-shapes", "textures"), ("shapes", "random colours")):
        take = {"image_size": 32, "splits": ("train",), "take": 800, "batch_size": 800}
        (train,) = vit_tf.data.load(data_set, **take)
        ((images, labels),) = train.as_numpy_iterator()
        for title, name in (("ViT-CLS", "vit"), ("BiT", "bit")):
            pooled = vit_tf.submodel(trained(name), "pooled")
            x = np.concatenate([pooled(batch)["pooled"] for batch in np.split(images, 8)])
            probe = LogisticRegression(max_iter=1000).fit(x, labels)
            classifier = LinearClassifier(pooled, probe, train.class_names)
            results[f"{title}: {words}"] = analysis.shape_bias(classifier, conflicts)
    return results


def erased_concepts():
    """The effects of erasing the class from five layers of two models, and the colour from one."""
    options = {"draws": 4, "detail": 5}
    return {
        f"{title}: {concept}": analysis.concept_erasure(
            trained(name), test_images(), concept, **options
        )
        for title, name, concept in (
            ("ViT-CLS", "vit", "class"),
            ("ViT-CLS", "vit", "colour"),
            ("BiT", "bit", "class"),
        )
    }


def copies_without_components():
    """The ViT and copies without leading or trailing components of its last CLS token."""
    layer = "block05/mlp/sum"
    model = trained("vit")
    cls = analysis.extract_features(model, test_images(), layers=layer)[layer][:, 0]
    mean = cls.mean(axis=0)
    components = np.linalg.svd(cls - mean, full_matrices=False)[2]
    parts = {f"first {count}": components[:count] for count in (1, 2, 4, 8, 16)}
    parts |= {f"last {count}": components[-count:] for count in (32, 64, 96, 112, 120)}
    copies = {"all": model}
    for name, removed in parts.items():
        edit = {layer: lambda x, v=removed: x - (x - mean) @ v.T @ v}
        copies[f"without the {name}"] = vit_tf.edits.intervene(model, edit, layer, "logits")
    return copies


class LinearClassifier:
    """The scores of a fitted linear classifier of pooled features."""

    def __init__(self, pooled, probe, class_names):
        self.pooled, self.class_names = pooled, class_names
        self.weights = probe.coef_.T.astype("float32")
        self.intercept = probe.intercept_.astype("float32")

    def __call__(self, images):
        return {"logits": self.pooled(images)["pooled"] @ self.weights + self.intercept}


def matching_layers():
    others = {"average pooling": sums("gap")}
    others["before the training"] = untrained("embedding", "*/sum")
    similarity = {k: analysis.cka(sums("vit"), test_images(), x) for k, x in others.items()}
    return {label: analysis.best_matching_layer(x) for label, x in similarity.items()}


def patched_runs():
    images, labels = next(test_images().as_numpy_iterator())
    pairs = images[labels == labels[0]][:4], images[labels != labels[0]][:4]
    pairs = tuple(x[: min(map(len, pairs))] for x in pairs)
    return analysis.activation_patching(vit("block*/mlp/sum", "logits"), pairs)


def positions():
    return trained("vit").position_embedding, trained("vit").token_grid


def retrieved():
    images, labels = shapes()["image"], shapes()["label"]
    none = np.empty(0, int)
    easy = [np.flatnonzero(labels[16:] == label) for label in labels[:16]]
    truth = [{"easy": numbers, "hard": none, "junk": none} for numbers in easy]
    queries = images[:16], np.arange(16)
    return of_shapes(lambda x: analysis.retrieval(x, queries, images[16:], truth), "*mlp/sum")


def object_parts():
    masks, kinds = shapes()["parts"], 2 * shapes()["label"]
    parts = np.stack([masks == 1, masks == 2], axis=1)
    objects = shapes()["image"], parts, np.stack([kinds, kinds + 1], axis=1)
    return of_shapes(lambda x: analysis.object_clustering(x, objects), *OUTPUTS)


def propagated():
    videos = vit_tf.data.load_shape_videos(8, num_frames=8, image_size=64)
    pairs = list(zip(videos["image"], videos["index"], strict=True))
    return of_shapes(lambda x: analysis.label_propagation(x, pairs), *OUTPUTS)


def found_keypoints():
    pairs = vit_tf.data.load_shape_pairs(64, image_size=64)
    return of_shapes(lambda x: analysis.keypoint_correspondence(x, pairs), *OUTPUTS)


def attended_objects():
    objects = shapes()["image"], shapes()["mask"]
    return of_shapes(lambda x: analysis.attention_saliency(x, objects), "*/weights")


def neighbours():
    features = {"trained": blocks("vit"), "untrained": untrained("*mlp/sum")}
    features["noise"] = analysis.engine.gaussian_like(blocks("vit"))
    return {label: analysis.knn_accuracy(x, *probe_data()) for label, x in features.items()}


def clusters(name):
    tokens = "cls" if name == "vit" else "spatial"
    return analysis.clustering(blocks(name), test_images(), tokens=tokens)


def mean_distances():
    names = {title: name for title, name in TITLES.items() if name != "bit"}
    return {
        title: analysis.mean_distance(mean(name), units="unit") for title, name in names.items()
    }


def formation():
    train, test = photographs("train", TRAIN, batch_size=80), test_images()
    keras.utils.set_random_seed(0)
    model = vit_tf.reinitialize(trained("vit"))
    features = vit_tf.submodel(model, "embedding", "*mlp/sum")
    recorder = analysis.FormationRecorder(features, test, every=1, probes=(train, test, 10))
    vit_tf.Recipe(epochs=6).compile(model, steps_per_epoch=TRAIN // 80)
    model.fit(train, epochs=6, verbose=0, callbacks=[recorder])
    return recorder.result


def head_classes():
    """Heads constructed to show every kind."""
    grid = vit_tf.TokenGrid(8, 8, prefix=0, stride=4)
    positions = np.stack(np.divmod(np.arange(64), 8), axis=1)
    rows, columns = np.moveaxis(positions[None] - positions[:, None], -1, 0)  # from query to key
    scores = {
        "own token": -9.0 * np.hypot(rows, columns),
        "around": -0.5 * (rows**2 + columns**2),
        "to the left": -9.0 * np.hypot(rows, columns + 1),
        "row": -9.0 * abs(rows),
        "everywhere": np.zeros((64, 64)),
    }
    shares = np.stack([np.exp(score) for score in scores.values()])
    weights = shares / shares.sum(axis=-1, keepdims=True)

    def features(images):
        constructed = tf.constant(weights, tf.float32)
        return {"constructed/weights": tf.repeat(constructed[None], tf.shape(images)[0], axis=0)}

    images = np.zeros((4, 32, 32, 3), "float32")
    return analysis.head_classes(analysis.mean_attention(features, images, grid))


def receptive_field():
    images = next(iter(test_images().unbatch().batch(64)))[0]
    fields = []
    for title, name in (("ViT", "vit"), ("BiT", "bit")):
        field = analysis.receptive_field(blocks(name), images)
        field = field.isel(layer=[0, len(field["layer"]) // 2, -1])
        layers = [f"{title}: {layer}" for layer in field["layer"].values]
        fields.append(field.assign_coords(layer=layers))
    return xr.concat(fields, "layer")


def compute():
    labels = np.concatenate([batch for _, batch in test_images()])
    flops, accuracy = [], []
    for name in TITLES.values():
        logits = trained(name).predict(test_images(), verbose=0)
        accuracy.append((logits.argmax(axis=1) == labels).mean())
        flops.append(3 * vit_tf.count_flops(trained(name)) * NUM_TRAINED[name])
    return xr.Dataset(
        {"training_flops": ("run", flops), "test_accuracy": ("run", accuracy)},
        coords={"run": list(TITLES), "family": ("run", ["ViT", "ViT", "BiT"])},
    )


# Results by the name of their picture, which `analysis.plot` draws; some with its options.
RESULTS = {
    "cka": lambda: analysis.cka(sums("vit"), test_images()),
    "cka_two_models": lambda: analysis.cka(sums("vit"), test_images(), sums("bit")),
    "cka_sensitivity": lambda: analysis.cka_sensitivity(trained("bit"), test_images()),
    "cka_beside": lambda: by_title(lambda name: analysis.cka(sums(name), test_images())),
    # More images in a batch than the channels of two layers.
    "measures": lambda: analysis.similarities(
        sums("vit"), photographs(batch_size=480), tokens="cls"
    ),
    "grounded_similarity": lambda: analysis.grounded_similarity(
        copies_without_components(), photographs(batch_size=480)
    ),
    "counterparts": matching_layers,
    "head_similarity": lambda: analysis.head_similarity(
        vit("block00/attention/weights", "block00/attention/heads"),
        vit_tf.submodel(trained("bit"), "root", "stage1/*/sum"),
        test_images(),
    ),
    "last_layer_cka": lambda: analysis.last_layer_cka(
        by_title(lambda name: vit_tf.submodel(trained(name), "norm")), test_images()
    ),
    "depth_cka": lambda: analysis.depth_cka(vit("*norm"), test_images()),
    "residual_cka": lambda: analysis.residual_cka(
        vit("*/attention/skip", "*/attention/branch"), test_images()
    ),
    "localization": lambda: analysis.localization(vit("block05/mlp/sum"), test_images()),
    "formation": formation,
    "intrinsic_dimension": lambda: of_two(analysis.intrinsic_dimension),
    "frequency_amplitude": lambda: of_two(analysis.frequency_amplitude),
    "outlier_tokens": lambda: analysis.outlier_tokens(trained("vit"), test_images()),
    "shape_bias": shape_bias,
    "stitching": lambda: analysis.stitching(
        trained("bit"), trained("vit"), train_images()[1], test_images()
    ),
    "concept_erasure": erased_concepts,
    "robustness": lambda: of_two(analysis.robustness),
    "equivariance_error": lambda: of_two(analysis.equivariance_error),
    "head_classes": head_classes,
    "receptive_field": receptive_field,
    "compute": compute,
    "attention_distance": lambda: analysis.attention_distance(weights("vit"), test_images()),
    "distance_by_depth": mean_distances,
    "attention_maps": lambda: analysis.attention_maps(mean()).sel(layer=WEIGHTS),
    "aligned_attention": lambda: analysis.aligned_attention(mean()).sel(layer=WEIGHTS),
    "attention_offset": lambda: analysis.attention_offset(analysis.aligned_attention(mean())),
    "attention_patterns": lambda: analysis.attention_patterns(weights("vit"), test_images()),
    "rollout": lambda: analysis.attention_rollout(
        vit("*/weights", "*/skip", "*/sum"), test_images()
    ),
    "saliency": attended_objects,
    "skip_ratio": lambda: analysis.skip_ratio(vit(*SKIPS), test_images()),
    "skip_ratio_lines": lambda: by_title(
        lambda name: analysis.skip_ratio(vit_tf.submodel(trained(name), *SKIPS), test_images())
    ),
    "head_ablation": lambda: analysis.head_ablation(vit("*/heads", "logits"), test_images()),
    "activation_patching": patched_runs,
    "patch_filters": lambda: analysis.patch_filters(trained("vit").patch_kernel, 14),
    "position_similarity": lambda: analysis.position_similarity(*positions()),
    "linear_probe": lambda: analysis.linear_probe(blocks("vit"), *probe_data()),
    "knn": neighbours,
    "clustering": lambda: by_title(clusters),
    "object_clustering": object_parts,
    "retrieval": retrieved,
    "label_propagation": propagated,
    "keypoints": found_keypoints,
}
OF_SHAPES = ("saliency", "object_clustering", "retrieval", "label_propagation", "keypoints")
OPTIONS = {"knn": {"baselines": ["untrained", "noise"]}}
OPTIONS |= {name: {"baselines": ["untrained"]} for name in OF_SHAPES}


def matches():
    similarity = analysis.cka(blocks("vit"), test_images(), blocks("gap"))
    return analysis.plots.plot_layer_match_accuracy(similarity)


def ridge_probe():
    train, held_out = train_images()
    results = {}
    for title, name in TITLES.items():
        score = analysis.fit_ridge_probe(sums(name), train, 10, l2=(0.1, 10.0, 1000.0))
        results[title] = analysis.select_l2(score(held_out), score(test_images()))
    return analysis.plots.plot_ridge_probe(results)


def probed(tokens):
    probe = analysis.ridge_probe(blocks("vit"), *probe_data(), l2=(10.0,), tokens=tokens)
    return probe.sel(l2=10.0)


def probe_map():
    layers = ["block00/mlp/sum", "block02/mlp/sum", "block05/mlp/sum"]
    return analysis.plots.plot_probe_map(probed("each"), layers=layers)


def probe_variants():
    results = {f"ViT-CLS: {tokens}": probed(tokens) for tokens in ("cls", "spatial", "all")}
    return analysis.plots.plot_probe_variants(results)


def as_colours(features):
    """Three principal components of features (..., channel), as colours."""
    rows = features.reshape(-1, features.shape[-1])
    rows = rows - rows.mean(axis=0)
    components = rows @ np.linalg.svd(rows, full_matrices=False)[2][:3].T
    low, high = np.quantile(components, (0.02, 0.98), axis=0)
    return ((components - low) / (high - low)).clip(0, 1).reshape(*features.shape[:-1], 3)


def dense_features():
    """Three principal components of dense features, as colours, below the image."""
    image = shapes()["image"][:4]
    features = vit_tf.submodel(shapes_vit(), "block01/mlp/sum")
    colours = as_colours(analysis.dense_features(features, image)["block01/mlp/sum"])
    _, axes = plt.subplots(2, 4, figsize=(6, 3.2), layout="constrained")
    for column, axis in enumerate(axes.T):
        axis[0].imshow(image[column] / 2 + 0.5)
        axis[1].imshow(colours[column])
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
    axes[0, 0].set_ylabel("image")
    axes[1, 0].set_ylabel("dense features")
    return axes[0, 0]


HEADS = ((2, 1), (3, 2), (3, 3), (4, 1))  # (block, head) that attend to parts of the cat


@cache
def cat():
    """A photograph of a cat, 300 pixels a side, and what the models receive of it."""
    photograph = Image.open(BUNDLED / "cat.jpg")
    small = photograph.resize((32, 32), Image.Resampling.BICUBIC)
    return np.asarray(photograph), np.asarray(small, "float32")[None] / 127.5 - 1


def overlay(axis, values):
    """The cat under values on the grid, whose opacity grows with them."""
    axis.imshow(cat()[0])
    shares = values / values.max()
    axis.imshow(shares, "magma", alpha=0.1 + 0.65 * shares, extent=(0, 300, 300, 0), vmin=0)
    axis.set(xticks=[], yticks=[])


@cache
def cls_attention():
    """Attention of the CLS token to the patches of the cat, of shape (layer, head, row, column)."""
    return analysis.attention_maps(analysis.mean_attention(weights("vit"), cat()[1])).values


def photo_attention():
    _, axes = plt.subplots(2, 2, figsize=(5, 5.2), layout="constrained")
    for (block, head), axis in zip(HEADS, axes.flat, strict=True):
        overlay(axis, cls_attention()[block, head])
        axis.set_title(f"block {block}, head {head}")
    return axes[0, 0]


def photo_pca():
    layers = ["embedding", "block00/mlp/sum", "block05/mlp/sum"]
    tokens = vit_tf.submodel(trained("vit"), layers)(cat()[1])
    _, axes = plt.subplots(2, 2, figsize=(5, 5), layout="constrained")
    axes[0, 0].imshow(cat()[0])
    for axis, layer in zip(axes.flat[1:], layers, strict=True):
        axis.imshow(as_colours(np.asarray(tokens[layer])[0, 1:]).reshape(8, 8, 3))
        axis.set_title(layer)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
    return axes[0, 0]


def photo_lens():
    lens = analysis.logit_lens(trained("vit"), cat()[1])[0]
    names, best = trained("vit").class_names, np.argsort(lens.values[-1])[:-6:-1]
    _, axis = plt.subplots(figsize=(6, 4.5), layout="constrained")
    for index in best:
        axis.plot(lens.values[:, index], marker="o", label=names[index])
    ticks = [layer.partition("/")[0] for layer in lens["layer"].values]
    axis.set_xticks(range(len(ticks)), ticks, rotation=45)
    axis.set(ylabel="class score", title="Logit lens of the photograph of a cat")
    axis.legend(frameon=False)
    return axis


DRAWN = (
    matches, ridge_probe, probe_map, probe_variants, dense_features, photo_attention, photo_pca,
    photo_lens,
)  # fmt: skip


def of_pages():
    """dict from a picture that a page shows and its own code saves as `NAME.png` to that code."""
    codes = {}
    for page in sorted(PICTURES.parent.rglob("*.md")):
        text = page.read_text("utf-8")
        for name in re.findall(r"pictures/(\w+)\.png\)", text):
            if f'.savefig("{name}.png"' in text:
                codes[name] = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S))
    return codes


def save(name, draw):
    """The picture of a function, or of a page's code, as a PNG, of few colours if it is large."""
    with TemporaryDirectory() as folder:
        file = Path(folder, f"{name}.png")
        if callable(draw):
            drawn = draw()
            ax = drawn if name not in RESULTS else analysis.plot(drawn, **OPTIONS.get(name, {}))
            ax.figure.savefig(file)
        else:
            with chdir(folder):
                exec(draw, {"__name__": "page"})
        plt.close("all")
        picture = Image.open(file).convert("RGB")
        size, drawn = file.stat().st_size, picture
    for colours in (256, 64, 32):
        if size > (LARGE_PHOTOGRAPH if name in WITH_PHOTOGRAPHS else LARGE):
            picture = drawn.quantize(colours, dither=Image.Dither.NONE)
        picture.save(PICTURES / file.name, optimize=True)
        size = (PICTURES / file.name).stat().st_size


def main():
    drawings = of_pages() | RESULTS | {draw.__name__: draw for draw in DRAWN}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="pictures (default: all)")
    names = parser.parse_args().names or list(drawings)
    if unknown := sorted(set(names) - set(drawings)):
        parser.error(f"Expected names among {', '.join(drawings)}. Received: {', '.join(unknown)}")
    PICTURES.mkdir(exist_ok=True)
    for name in names:
        print(name, flush=True)
        save(name, drawings[name])
    update_lists()


if __name__ == "__main__":
    main()
