"""How time and memory of a pass grow with images, activations, tokens and replicas."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from benchmarks.harness import apart, peak_memory
from benchmarks.implementations import fill, images

BASE = {"images": 256, "taps": 24, "tokens": 197, "replicas": 1}
SIZES = {
    "images": (128, 256, 512, 1024),
    "taps": (12, 24, 48, 96),
    "tokens": (50, 101, 197, 401),
    "replicas": (1, 2, 3, 4),
}
BATCH = 64
_SITES = ("attention/norm", "attention/heads", "attention/branch", "attention/sum", "mlp/norm")
_SITES += ("mlp/hidden", "mlp/branch", "mlp/sum")


Point: TypeAlias = tuple[int, float, float]  # size, seconds, peak memory in GiB


def one_pass(num_images: int, taps: int, tokens: int, replicas: int) -> tuple[float, float]:
    """Seconds of CKA of a ViT-Ti/16, the faster of two passes, and peak memory in GiB."""
    import tensorflow as tf

    import vit_tf
    from vit_tf import analysis

    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(cpu, logical)
    size = 16 * round((tokens - 1) ** 0.5)
    data = tf.data.Dataset.from_tensor_slices(images(num_images, size)).batch(BATCH)
    with vit_tf.distribute.strategy("mirrored" if replicas > 1 else "none").scope():
        model = fill(vit_tf.ViT.from_variant("Ti/16", image_shape=(size, size, 3)))
        sites = itertools.islice(itertools.product(_SITES, range(12)), taps)
        features = vit_tf.submodel(model, *(f"block{block:02d}/{site}" for site, block in sites))
        passes = []
        for _ in range(2):
            start = time.perf_counter()
            analysis.cka(features, data)
            passes.append(time.perf_counter() - start)
    return min(passes), peak_memory()


def measure(progress: Callable[[str], None]) -> dict[str, list[Point]]:
    """Dict from a quantity to a list of (size, seconds, peak in GiB)."""
    points = {quantity: [] for quantity in SIZES}
    for quantity, sizes in SIZES.items():
        for size in sizes:
            seconds, peak = apart(one_pass, *(BASE | {quantity: size}).values())
            progress(f"{size} {quantity}: {seconds:.1f} s, {peak:.2f} GiB")
            points[quantity].append((size, seconds, peak))
    return points


def plot(points_of: dict[str, list[Point]], path: Path) -> None:
    """A column for each quantity: seconds above, memory below, with proportional growth."""
    import matplotlib.pyplot as plt
    import numpy as np
    from matplotlib.ticker import LogLocator, ScalarFormatter

    count = len(points_of)
    layout = {"figsize": (3 * count, 5.2), "layout": "constrained", "sharey": "row"}
    figure, axes = plt.subplots(2, count, **layout)
    figure.suptitle(
        f"CKA of a ViT-Ti/16: {BASE['images']} images in batches of {BATCH}, {BASE['taps']} "
        f"activations, {BASE['tokens']} tokens, {BASE['replicas']} replica, one of them growing"
    )
    labels = ("seconds", "peak memory (GiB)")
    for column, (quantity, points) in zip(axes.T, points_of.items(), strict=True):
        sizes, *measured = (np.array(values) for values in zip(*points, strict=True))
        for ax, values, label in zip(column, measured, labels, strict=True):
            ax.loglog(sizes, values, "o-", label="measured")
            ax.loglog(sizes, values[0] * sizes / sizes[0], ":", color="grey", label="proportional")
            ax.set(xlabel=f"number of {quantity}")
            ax.set_xticks(sizes, [str(n) for n in sizes])
            ax.minorticks_off()
            ax.yaxis.set_major_locator(LogLocator(2))
            ax.yaxis.set_major_formatter(ScalarFormatter())
            if ax in axes[:, 0]:
                ax.set_ylabel(label)
    axes[0, 0].legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)
