"""How time and memory of a pass grow with images, activations, tokens and replicas."""

import itertools
import time

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


def one_pass(images_seen, taps, tokens, replicas):
    """Seconds of CKA, tracing included, and peak memory in GiB, of a ViT-Ti/16 in this process.

    The faster of two passes counts.
    """
    import tensorflow as tf

    import vit_tf
    from vit_tf import analysis

    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(cpu, logical)
    size = 16 * round((tokens - 1) ** 0.5)
    data = tf.data.Dataset.from_tensor_slices(images(images_seen, size)).batch(BATCH)
    with vit_tf.distribute.strategy("mirrored" if replicas > 1 else "none").scope():
        model = fill(vit_tf.ViT.from_variant("Ti/16", image_shape=(size, size, 3)))
        named = itertools.product(_SITES, range(12))
        chosen = [f"block{block:02d}/{site}" for site, block in itertools.islice(named, taps)]
        features = vit_tf.submodel(model, *chosen)
        passes = []
        for _ in range(2):
            start = time.perf_counter()
            analysis.cka(features, data)
            passes.append(time.perf_counter() - start)
    return min(passes), peak_memory()


def measure(progress):
    """Dict from what grows to a list of (size, seconds, peak in GiB)."""
    found = {}
    for what, sizes in SIZES.items():
        for size in sizes:
            point = BASE | {what: size}
            arguments = (point["images"], point["taps"], point["tokens"], point["replicas"])
            seconds, peak = apart(one_pass, *arguments)
            progress(f"{size} {what}: {seconds:.1f} s, {peak:.2f} GiB")
            found.setdefault(what, []).append((size, seconds, peak))
    return found


def plot(found, path):
    """A column for each quantity: seconds above, memory below, with proportional growth."""
    import matplotlib.pyplot as plt
    import numpy as np
    from matplotlib.ticker import LogLocator, ScalarFormatter

    size = (3 * len(found), 5.2)
    figure, axes = plt.subplots(2, len(found), figsize=size, layout="constrained", sharey="row")
    figure.suptitle(
        f"CKA of a ViT-Ti/16: {BASE['images']} images in batches of {BATCH}, {BASE['taps']} "
        f"activations, {BASE['tokens']} tokens, {BASE['replicas']} replica, one of them growing"
    )
    for column, (what, points) in zip(axes.T, found.items(), strict=True):
        sizes, *measured = (np.array(values) for values in zip(*points, strict=True))
        for ax, values, words in zip(
            column, measured, ("seconds", "peak memory (GiB)"), strict=True
        ):
            ax.loglog(sizes, values, "o-", label="measured")
            ax.loglog(sizes, values[0] * sizes / sizes[0], ":", color="grey", label="proportional")
            ax.set(xlabel=f"number of {what}")
            ax.set_xticks(sizes, [str(n) for n in sizes])
            ax.minorticks_off()
            ax.yaxis.set_major_locator(LogLocator(2))
            ax.yaxis.set_major_formatter(ScalarFormatter())
            if ax in axes[:, 0]:
                ax.set_ylabel(words)
    axes[0, 0].legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)
