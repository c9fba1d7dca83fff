"""How time and memory of a pass grow with images, activations, tokens and replicas."""

import itertools
import time

from benchmarks.contest import apart, peak_memory
from benchmarks.weights import fill, images

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
    """Seconds of CKA, tracing included, and peak memory in GiB, of a ViT-Ti/16 in this process."""
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
        start = time.perf_counter()
        analysis.cka(features, data)
    return time.perf_counter() - start, peak_memory()


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
    """A panel for each of what grows: seconds on the left, memory on the right."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(found), figsize=(14, 3.4), layout="constrained")
    figure.suptitle(
        f"CKA of a ViT-Ti/16: {BASE['images']} images in batches of {BATCH}, {BASE['taps']} "
        f"activations, {BASE['tokens']} tokens, {BASE['replicas']} replica, one of them growing"
    )
    for ax, (what, points) in zip(axes, found.items(), strict=True):
        sizes, seconds, peaks = zip(*points, strict=True)
        ax.plot(sizes, seconds, "o-", color="C0", label="time")
        ax.set(xlabel=f"number of {what}", ylabel="seconds", xticks=sizes)
        ax.set_ylim(0, 1.15 * max(seconds))
        ax.set_xlim(0, None)
        right = ax.twinx()
        right.plot(sizes, peaks, "s--", color="C1", label="memory")
        right.set(ylabel="peak memory (GiB)")
        right.set_ylim(0, 1.15 * max(peaks))
        ax.legend(handles=[*ax.get_lines(), *right.get_lines()], loc="lower right")
    figure.savefig(path, dpi=150)
