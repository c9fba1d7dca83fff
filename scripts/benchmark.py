"""Measures time and peak memory of the analyses beside the bare forward pass.

Examples:
    python scripts/benchmark.py
    python scripts/benchmark.py --variant Ti/16 --batch-size 32 --batches 4
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def measure(task, variant, batch_size, batches):
    """Seconds per pass and peak memory of one task, in this process."""
    import numpy as np
    import tensorflow as tf

    import vit_tf
    from vit_tf import analysis

    vit = vit_tf.ViT.from_variant(variant)
    images = np.random.default_rng(0).normal(size=(batch_size, *vit.image_shape))
    data = tf.data.Dataset.from_tensors(images.astype("float32")).repeat(batches)
    if task == "forward":
        run = lambda: analysis.collect(lambda batch: vit(batch), data)  # noqa: E731
    else:
        # The logits of a fresh head are zero for all images, a constant layer.
        features = vit_tf.submodel(vit, *(tap for tap in vit.taps if tap != "logits"))
        run = lambda: analysis.cka(features, data)  # noqa: E731
    start = time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    return {"seconds": seconds, "peak_gib": peak, "taps": len(vit.taps)}


def measure_apart(task, arguments):
    """`measure` in a process of its own, so that peaks do not add up."""
    command = [sys.executable, __file__, "--task", task]
    command += ["--variant", arguments.variant, "--batch-size", str(arguments.batch_size)]
    command += ["--batches", str(arguments.batches)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--variant", default="S/16", help="ViT variant (default: S/16)")
    parser.add_argument("--batch-size", type=int, default=64, help="images (default: 64)")
    parser.add_argument("--batches", type=int, default=2, help="batches in a pass (default: 2)")
    parser.add_argument("--task", choices=("forward", "cka"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        fields = arguments.task, arguments.variant, arguments.batch_size, arguments.batches
        print(json.dumps(measure(*fields)))
        return
    forward, cka = (measure_apart(task, arguments) for task in ("forward", "cka"))
    print(f"ViT-{arguments.variant}, {arguments.batches} batches of {arguments.batch_size} images")
    print(f"{'':24}{'seconds':>10}{'peak GiB':>10}")
    for name, row in (("forward pass", forward), (f"CKA of {cka['taps'] - 1} taps", cka)):
        print(f"{name:24}{row['seconds']:10.1f}{row['peak_gib']:10.2f}")
    print(
        f"{'ratio':24}{cka['seconds'] / forward['seconds']:10.2f}"
        f"{cka['peak_gib'] / forward['peak_gib']:10.2f}"
    )


if __name__ == "__main__":
    main()
