"""Several statistics of a ViT-S/16 in one pass, compared with the bare forward pass."""

from dataclasses import replace

import numpy as np

from benchmarks import vits
from benchmarks.cka import TAPS
from benchmarks.forward import CONFIG
from benchmarks.harness import Benchmark, Ratio
from benchmarks.weights import images

COUNT = 512  # in batches of 128


def forward():
    """The bare forward pass, by the same engine."""
    from vit_tf import analysis

    model, data = vits.ours(**CONFIG), images(COUNT)

    def run():
        analysis.engine.collect(lambda batch: model(batch), data)

    return run


def ours():
    import vit_tf
    from vit_tf import analysis

    features = vit_tf.submodel(vits.ours(**CONFIG), "*/weights", "*/skip", "*/branch")
    data = images(COUNT)
    requests = {
        "distance": (analysis.attention_distance.statistic(features), features),
        "skips": (analysis.skip_ratio.statistic(features), features),
        "maps": (analysis.mean_attention.statistic(features), features),
    }

    def run():
        totals = analysis.engine.one_pass(requests, data)
        for name, (statistic, _) in requests.items():
            statistic.finish(totals[name])

    return run


CLASSES = 10
BATCH = 128


def blocks():
    """All statistics, with CKA of the blocks' outputs."""
    return _everything(_ends("mlp/sum"))


def activations():
    """All statistics, with CKA of the 84 activations of the other comparisons."""
    return _everything(_ends(*TAPS))


def _everything(compared):
    import tensorflow as tf

    import vit_tf
    from vit_tf import analysis

    model = vits.ours(**CONFIG)
    weights, blocks = _ends("attention/weights"), _ends("mlp/sum")
    sides = _ends(*(f"{site}/{end}" for site in ("attention", "mlp") for end in ("skip", "branch")))
    features = vit_tf.submodel(model, *weights, *blocks, *sides, *compared)
    grid = model.token_grid
    data = _noted(tf, grid)
    train = data.map(lambda batch, notes: (batch, notes["label"]))
    attending, at_blocks = (
        analysis.engine.choose(features, weights),
        analysis.engine.choose(features, blocks),
    )
    beside, of_all = (
        analysis.engine.choose(features, sides),
        analysis.engine.choose(features, compared),
    )
    requests = {
        "distance": (analysis.attention_distance.statistic(features), attending),
        "maps": (analysis.mean_attention.statistic(features), attending),
        "patterns": (analysis.attention_patterns.statistic(features), attending),
        "skips": (analysis.skip_ratio.statistic(features), beside),
        "saliency": (_reading(analysis.attention_saliency.statistic(features), "mask"), attending),
        "neighbours": (_reading(analysis.engine.pooled_statistic("cls", grid), "label"), at_blocks),
        "clusters": (
            _reading(analysis.engine.pooled_statistic("spatial", grid), "label"),
            at_blocks,
        ),
        "probes": (
            _reading(analysis.ridge_probe.statistic(at_blocks, train, CLASSES), "label"),
            at_blocks,
        ),
        "cka": (analysis.cka.statistic(of_all), of_all),
    }

    def run():
        analysis.engine.one_pass(requests, data)

    return run


def _ends(*ends):
    """The taps of all blocks with these ends, in depth order."""
    return [f"block{index:02d}/{end}" for index in range(CONFIG["num_layers"]) for end in ends]


def _noted(tf, grid):
    """Batches of images and notes: a label and a mask of the token grid for each."""
    rng = np.random.default_rng(1)
    notes = {
        "label": rng.integers(0, CLASSES, COUNT).astype("int32"),
        "mask": rng.random((COUNT, grid.rows, grid.columns)) < 0.3,
    }
    data = tf.data.Dataset.from_tensor_slices((images(COUNT), notes))
    return data.batch(BATCH, drop_remainder=True)


def _reading(statistic, note):
    """The statistic with one of the notes for its labels."""

    def step(batch, notes, taps):
        return statistic.step(batch, notes[note], taps)

    return replace(statistic, step=step)


BENCHMARKS = {
    "one_pass": Benchmark(
        f"attention distances, skip ratios and mean attention of ViT-S/16 together, {COUNT} images",
        {"vit_tf": ours, "forward pass": forward},
        (Ratio(("forward pass",), 1.15),),
    ),
    "every_statistic": Benchmark(
        f"attention, skips, saliency, features, probes, CKA of ViT-S/16 together, {COUNT} images",
        {"vit_tf": blocks, "with CKA of all activations": activations, "forward pass": forward},
        (
            Ratio(("forward pass",), 1.25),
            Ratio(("forward pass",), float("inf"), of="with CKA of all activations"),
        ),
        rounds=5,
    ),
}
