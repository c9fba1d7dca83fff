"""Draws the pictures of the documentation: small models are measured and drawn.

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
from picture_models import (
    SEEN,
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
from skimage import data

import vit_tf
from vit_tf import analysis

PICTURES = Path(__file__).resolve().parent / "pictures"
LARGE = 55_000  # bytes
plt.rcParams.update({"savefig.dpi": 76, "savefig.bbox": "tight"})


@cache
def mean(name="vit"):
    return analysis.mean_attention(weights(name), test_images())


def cka():
    return analysis.plots.plot_cka(analysis.cka(sums("vit"), test_images()))


def cka_two_models():
    return analysis.plots.plot_cka(analysis.cka(sums("vit"), test_images(), sums("bit")))


def cka_beside():
    results = {name: analysis.cka(sums(of), test_images()) for name, of in TITLES.items()}
    return analysis.plots.plot_cka(results)


def measures():
    images = photographs(batch_size=480)  # more than the channels of two layers
    return analysis.plots.plot_similarities(
        analysis.similarities(sums("vit"), images, tokens="cls")
    )


def counterparts():
    fresh = vit_tf.submodel(vit_tf.reinitialize(trained("vit")), "embedding", "*/sum")
    others = {"average pooling": sums("gap"), "before the training": fresh}
    results = {
        label: analysis.best_matching_layer(analysis.cka(sums("vit"), test_images(), other))
        for label, other in others.items()
    }
    return analysis.plots.plot_best_matching_layer(results)


def matches():
    return analysis.plots.plot_layer_match_accuracy(
        analysis.cka(blocks("vit"), test_images(), blocks("gap"))
    )


def head_similarity():
    vit = vit_tf.submodel(trained("vit"), "block00/attention/weights", "block00/attention/heads")
    bit = vit_tf.submodel(trained("bit"), "root", "stage1/*/sum")
    return analysis.plots.plot_head_similarity(analysis.head_similarity(vit, bit, test_images()))


def last_layer_cka():
    models = {title: vit_tf.submodel(trained(of), "norm") for title, of in TITLES.items()}
    return analysis.plots.plot_last_layer_cka(analysis.last_layer_cka(models, test_images()))


def depth_cka():
    features = vit_tf.submodel(trained("vit"), "*norm")
    return analysis.plots.plot_cka(analysis.depth_cka(features, test_images()))


def residual_cka():
    features = vit_tf.submodel(trained("vit"), "*/attention/skip", "*/attention/branch")
    return analysis.plots.plot_cka(analysis.residual_cka(features, test_images()))


def localization():
    features = vit_tf.submodel(trained("vit"), "block05/mlp/sum")
    return analysis.plots.plot_localization(analysis.localization(features, test_images()))


def formation():
    train, test = photographs("train", TRAIN, batch_size=80), test_images()
    keras.utils.set_random_seed(0)
    model = vit_tf.reinitialize(trained("vit"))
    features = vit_tf.submodel(model, "embedding", "*mlp/sum")
    recorder = analysis.FormationRecorder(features, test, every=1, probes=(train, test, 10))
    vit_tf.Recipe(epochs=6).compile(model, steps_per_epoch=TRAIN // 80)
    model.fit(train, epochs=6, verbose=0, callbacks=[recorder])
    return analysis.plots.plot_formation(recorder.result)


def attention_distance():
    distance = analysis.attention_distance(weights("vit"), test_images())
    return analysis.plots.plot_attention_distance(distance)


def distance_by_depth():
    results = {
        title: analysis.mean_distance(mean(of), units="unit")
        for title, of in TITLES.items()
        if of != "bit"
    }
    return analysis.plots.plot_mean_distance(results)


LAYERS = ["block00/attention/weights", "block02/attention/weights", "block05/attention/weights"]


def attention_maps():
    return analysis.plots.plot_attention_maps(analysis.attention_maps(mean()), layers=LAYERS)


def aligned_attention():
    aligned = analysis.aligned_attention(mean())
    return analysis.plots.plot_aligned_attention(aligned, layers=LAYERS)


def attention_offset():
    offset = analysis.attention_offset(analysis.aligned_attention(mean()))
    return analysis.plots.plot_attention_offset(offset)


def head_classes():
    """Heads that are made for it, since minutes of training make all heads global."""
    grid = vit_tf.TokenGrid(8, 8, prefix=0, stride=4)
    places = np.stack(np.divmod(np.arange(64), 8), axis=1)
    rows, columns = np.moveaxis(places[None] - places[:, None], -1, 0)  # from query to key
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

    known = analysis.mean_attention(features, np.zeros((4, 32, 32, 3), "float32"), grid)
    return analysis.plots.plot_head_classes(analysis.head_classes(known))


def attention_patterns():
    patterns = analysis.attention_patterns(weights("vit"), test_images())
    return analysis.plots.plot_attention_patterns(patterns)


def rollout():
    features = vit_tf.submodel(trained("vit"), "*/weights", "*/skip", "*/sum")
    return analysis.plots.plot_attention_rollout(
        analysis.attention_rollout(features, test_images())
    )


def saliency():
    results = {
        label: analysis.attention_saliency(
            vit_tf.submodel(model, "*/weights"), (shapes()["image"], shapes()["mask"])
        )
        for label, model in both(shapes_vit()).items()
    }
    return analysis.plots.plot_attention_saliency(results, baselines=["untrained"])


def both(model):
    """A model, and the same untrained."""
    return {"trained": model, "untrained": vit_tf.reinitialize(model)}


def receptive_field():
    images = next(iter(test_images().unbatch().batch(64)))[0]
    fields = {
        "ViT": analysis.receptive_field(blocks("vit"), images),
        "BiT": analysis.receptive_field(blocks("bit"), images),
    }
    chosen = []
    for name, field in fields.items():
        some = field.isel(layer=[0, len(field["layer"]) // 2, -1])
        layers = [f"{name}: {layer}" for layer in some["layer"].values]
        chosen.append(some.assign_coords(layer=layers))
    return analysis.plots.plot_receptive_field(xr.concat(chosen, "layer"))


def skip_ratio():
    features = vit_tf.submodel(trained("vit"), "*/skip", "*/branch")
    return analysis.plots.plot_skip_ratio(analysis.skip_ratio(features, test_images()))


def skip_ratio_lines():
    results = {
        title: analysis.skip_ratio(
            vit_tf.submodel(trained(of), "*/skip", "*/branch"), test_images()
        )
        for title, of in TITLES.items()
    }
    return analysis.plots.plot_skip_ratio_lines(results)


def head_ablation():
    features = vit_tf.submodel(trained("vit"), "*/heads", "logits")
    return analysis.plots.plot_head_ablation(analysis.head_ablation(features, test_images()))


def activation_patching():
    features = vit_tf.submodel(trained("vit"), "block*/mlp/sum", "logits")
    images, labels = next(test_images().as_numpy_iterator())
    pairs = images[labels == labels[0]][:4], images[labels != labels[0]][:4]
    return analysis.plots.plot_activation_patching(
        analysis.activation_patching(features, tuple(x[: min(map(len, pairs))] for x in pairs))
    )


def patch_filters():
    return analysis.plots.plot_patch_filters(
        analysis.patch_filters(trained("vit").patch_kernel, 14)
    )


def position_similarity():
    vit = trained("vit")
    similarity = analysis.position_similarity(vit.position_embedding, vit.token_grid)
    return analysis.plots.plot_position_similarity(similarity)


def ridge_probe():
    train, held_out = train_images()
    axes = None
    for title, of in TITLES.items():
        score = analysis.fit_ridge_probe(sums(of), train, 10, l2=(0.1, 10.0, 1000.0))
        chosen = analysis.select_l2(score(held_out), score(test_images()))
        axes = analysis.plots.plot_ridge_probe(chosen, axes, label=title)
    return axes


def probe_map():
    train, test = train_images()[0], test_images()
    accuracy = analysis.ridge_probe(blocks("vit"), train, test, 10, l2=(10.0,), tokens="each")
    layers = ["block00/mlp/sum", "block02/mlp/sum", "block05/mlp/sum"]
    return analysis.plots.plot_probe_map(accuracy.sel(l2=10.0), layers=layers)


def probe_variants():
    train, test = train_images()[0], test_images()
    results = {
        f"ViT-CLS: {tokens}": analysis.ridge_probe(
            blocks("vit"), train, test, 10, l2=(10.0,), tokens=tokens
        ).sel(l2=10.0)
        for tokens in ("cls", "spatial", "all")
    }
    return analysis.plots.plot_probe_variants(results)


def linear_probe():
    train, test = train_images()[0], test_images()
    return analysis.plots.plot_linear_probe(analysis.linear_probe(blocks("vit"), train, test, 10))


def knn():
    train, test = train_images()[0], test_images()
    features = {
        "trained": blocks("vit"),
        "untrained": vit_tf.submodel(vit_tf.reinitialize(trained("vit")), "*mlp/sum"),
        "noise": analysis.engine.gaussian_like(blocks("vit")),
    }
    results = {label: analysis.knn_accuracy(of, train, test, 10) for label, of in features.items()}
    return analysis.plots.plot_knn_accuracy(results, baselines=["untrained", "noise"])


def clustering():
    results = {
        title: analysis.clustering(
            blocks(of), test_images(), tokens="spatial" if of != "vit" else "cls"
        )
        for title, of in TITLES.items()
    }
    return analysis.plots.plot_clustering(results)


def object_clustering():
    masks = shapes()["parts"]
    parts = np.stack([masks == 1, masks == 2], axis=1)
    labels = np.stack([2 * shapes()["label"], 2 * shapes()["label"] + 1], axis=1)
    results = {
        label: analysis.object_clustering(
            vit_tf.submodel(model, "embedding", "*mlp/sum"), (shapes()["image"], parts, labels)
        )
        for label, model in both(shapes_vit()).items()
    }
    return analysis.plots.plot_clustering(results, baselines=["untrained"])


def retrieval():
    images, labels = shapes()["image"], shapes()["label"]
    truth = [
        {
            "easy": np.flatnonzero(labels[16:] == label),
            "hard": np.empty(0, int),
            "junk": np.empty(0, int),
        }
        for label in labels[:16]
    ]
    results = {}
    for name, model in both(shapes_vit()).items():
        features = vit_tf.submodel(model, "*mlp/sum")
        queries = (images[:16], np.arange(16))
        results[name] = analysis.retrieval(features, queries, images[16:], truth)
    return analysis.plots.plot_retrieval(results, baselines=["untrained"])


def label_propagation():
    videos = vit_tf.data.load_shape_videos(8, num_frames=8, image_size=64)
    pairs = list(zip(videos["image"], videos["index"], strict=True))
    results = {
        label: analysis.label_propagation(vit_tf.submodel(model, "embedding", "*mlp/sum"), pairs)
        for label, model in both(shapes_vit()).items()
    }
    return analysis.plots.plot_label_propagation(results, baselines=["untrained"])


def keypoints():
    pairs = vit_tf.data.load_shape_pairs(64, image_size=64)
    results = {
        label: analysis.keypoint_correspondence(
            vit_tf.submodel(model, "embedding", "*mlp/sum"), pairs
        )
        for label, model in both(shapes_vit()).items()
    }
    return analysis.plots.plot_keypoint_correspondence(results, baselines=["untrained"])


def dense_features():
    """Three principal components of dense features, as colours, beside the image."""
    image = shapes()["image"][:4]
    features = vit_tf.submodel(shapes_vit(), "block01/mlp/sum")
    dense = analysis.dense_features(features, image)["block01/mlp/sum"]
    flat = dense.reshape(-1, dense.shape[-1]) - dense.mean(axis=(0, 1, 2))
    components = flat @ np.linalg.svd(flat, full_matrices=False)[2][:3].T
    low, high = np.quantile(components, (0.02, 0.98), axis=0)
    colours = ((components - low) / (high - low)).clip(0, 1).reshape(*dense.shape[:3], 3)
    _, axes = plt.subplots(2, 4, figsize=(6, 3.2), layout="constrained")
    for column, axis in enumerate(axes.T):
        axis[0].imshow(image[column] / 2 + 0.5)
        axis[1].imshow(colours[column])
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
    axes[0, 0].set_ylabel("image")
    axes[1, 0].set_ylabel("dense features")
    return axes[0, 0]


@cache
def cat():
    """A photograph of a cat, 220 pixels a side, and what the models receive of it."""
    photograph = data.cat()[40:260, 60:280]
    small = Image.fromarray(photograph).resize((32, 32), Image.Resampling.BICUBIC)
    return photograph, np.asarray(small, "float32")[None] / 127.5 - 1


def overlay(axis, values):
    """The cat under values on the grid, whose opacity grows with them."""
    axis.imshow(cat()[0])
    shares = values / values.max()
    axis.imshow(shares, "autumn", alpha=0.85 * shares, extent=(0, 220, 220, 0), vmin=0)
    axis.set(xticks=[], yticks=[])


@cache
def cls_attention():
    """Attention of the CLS token to the patches of the cat, of shape (layer, head, row, column)."""
    return analysis.attention_maps(analysis.mean_attention(weights("vit"), cat()[1])).values


def photo_attention():
    _, axes = plt.subplots(2, 2, figsize=(4.2, 4.2), layout="constrained")
    for head, axis in enumerate(axes.flat):
        overlay(axis, cls_attention()[0, head])
        axis.set_title(f"block00, head {head}")
    return axes[0, 0]


def photo_pca():
    layers = ["embedding", "block00/mlp/sum", "block05/mlp/sum"]
    tokens = vit_tf.submodel(trained("vit"), layers)(cat()[1])
    _, axes = plt.subplots(2, 2, figsize=(5, 5), layout="constrained")
    axes[0, 0].imshow(cat()[0])
    for axis, layer in zip(axes.flat[1:], layers, strict=True):
        patches = np.asarray(tokens[layer])[0, 1:]
        patches = patches - patches.mean(axis=0)
        components = patches @ np.linalg.svd(patches, full_matrices=False)[2][:3].T
        low, high = np.quantile(components, (0.02, 0.98), axis=0)
        axis.imshow(((components - low) / (high - low)).clip(0, 1).reshape(8, 8, 3))
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


def home():
    """Attention on a photograph, and CKA within a ViT and a ResNet."""
    figure, axes = plt.subplots(1, 4, figsize=(15, 4.1), layout="constrained")
    axes[0].imshow(cat()[0])
    axes[0].set(xticks=[], yticks=[], title="a photograph")
    overlay(axes[1], cls_attention()[0, 1])
    axes[1].set_title("attention of a head of the ViT")
    for axis, (name, of) in zip(axes[2:], {"ViT": "vit", "ResNet": "bit"}.items(), strict=True):
        similarity = analysis.cka(sums(of), test_images())["cka"]
        drawn = axis.imshow(similarity, "magma", vmin=0, vmax=1, origin="lower")
        axis.set(
            xticks=[], yticks=[], xlabel="layer", ylabel="layer", title=f"CKA within the {name}"
        )
    figure.colorbar(drawn, ax=axes[3], label="CKA")
    return axes[0]


def compute():
    labels = np.concatenate([batch for _, batch in test_images()])
    flops, accuracy = [], []
    for of in TITLES.values():
        logits = trained(of).predict(test_images(), verbose=0)
        accuracy.append((logits.argmax(axis=1) == labels).mean())
        flops.append(3 * vit_tf.count_flops(trained(of)) * SEEN[of])
    table = xr.Dataset(
        {"training_flops": ("run", flops), "test_accuracy": ("run", accuracy)},
        coords={"run": list(TITLES), "family": ("run", ["ViT", "ViT", "BiT"])},
    )
    return analysis.plots.plot_compute(table)


TITLES = {"ViT-CLS": "vit", "ViT-GAP": "gap", "BiT": "bit"}
DRAWN = (
    cka, cka_two_models, cka_beside, measures, counterparts, matches, head_similarity,
    last_layer_cka, depth_cka, residual_cka, localization, formation, attention_distance,
    distance_by_depth,
    attention_maps, aligned_attention, attention_offset, head_classes, attention_patterns,
    rollout, saliency, receptive_field, skip_ratio, skip_ratio_lines, head_ablation,
    activation_patching, patch_filters,
    position_similarity, ridge_probe, probe_map, probe_variants, linear_probe, knn, clustering,
    object_clustering, retrieval, label_propagation, keypoints, dense_features, compute,
    photo_attention, photo_pca, photo_lens, home,
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
            draw().figure.savefig(file)
        else:
            with chdir(folder):
                exec(draw, {"__name__": "page"})
        plt.close("all")
        picture = Image.open(file).convert("RGB")
        size, drawn = file.stat().st_size, picture
    for colours in (256, 64, 32):
        if size > LARGE:
            picture = drawn.quantize(colours, dither=Image.Dither.NONE)
        picture.save(PICTURES / file.name, optimize=True)
        size = (PICTURES / file.name).stat().st_size


def main():
    known = of_pages() | {draw.__name__: draw for draw in DRAWN}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="pictures (default: all)")
    names = parser.parse_args().names or list(known)
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"Expected names among {', '.join(known)}. Received: {', '.join(unknown)}")
    PICTURES.mkdir(exist_ok=True)
    for name in names:
        print(name, flush=True)
        save(name, known[name])


if __name__ == "__main__":
    main()
