"""CKA of the activations of a ViT: of 84 of a ViT-S/16, over batches, memory, a ViT-B/16."""

from functools import partial

from benchmarks import vits
from benchmarks.forward import CONFIG
from benchmarks.harness import Benchmark, Ratio, Seconds
from benchmarks.weights import images

COUNT = 128
TAPS = ("attention/norm", "attention/heads", "attention/branch", "mlp/norm", "mlp/hidden")
TAPS += ("mlp/branch", "mlp/sum")
MODULES = ("layernorm_before", "attention.attention", "attention.output.dense", "layernorm_after")
MODULES += ("intermediate", "output.dense", "")


def _layers():
    """Names of Hugging Face's modules that return the activations."""
    names = [f"vit.encoder.layer.{i}.{part}" for i in range(12) for part in MODULES]
    return [name.rstrip(".") for name in names]


def ours(batches=1):
    """All from one call, tracing included."""
    import vit_tf
    from vit_tf import analysis

    taps = [f"block{i:02d}/{tap}" for i in range(12) for tap in TAPS]
    features = vit_tf.submodel(vits.ours(**CONFIG), *taps)
    seen = images(COUNT * batches)  # in batches of 128
    # The others cut off what is negative, which the unbiased estimator may be.
    return lambda: analysis.cka(features, seen)["cka"].values.clip(0, 1)


def forward(batches=1):
    """The bare forward pass, traced before."""
    import tensorflow as tf

    model, batch = vits.ours(**CONFIG), tf.constant(images(COUNT))
    compiled = tf.function(lambda x: model(x, training=False), autograph=False)

    def run():
        for _ in range(batches):
            compiled(batch).numpy()

    return run


def products(batches=1):
    """The Gram matrices of all activations by products as fast as the machine's large ones.

    How long they take follows from the rate of one large product, which is measured each time.
    """
    import time

    import tensorflow as tf

    side = 4096
    tokens, width = 197, CONFIG["hidden_dim"]
    channels = tokens * (width * 6 + CONFIG["mlp_dim"]) * CONFIG["num_layers"]
    share = batches * COUNT**2 * channels / side**3
    square = tf.random.stateless_normal((side, side), (0, 0))
    multiply = tf.function(lambda x: tf.matmul(x, x, transpose_b=True))
    multiply(square)

    def run():
        start = time.perf_counter()
        multiply(square).numpy()
        return Seconds((time.perf_counter() - start) * share)

    return run


def _loader():
    import torch

    pixels = torch.tensor(images(COUNT).transpose(0, 3, 1, 2).copy())
    data = torch.utils.data.TensorDataset(pixels)
    return torch.utils.data.DataLoader(data, batch_size=COUNT)


def pytorch_cka():
    from cka import compute_cka

    model, loader, layers = vits.hugging_face(**CONFIG), _loader(), _layers()

    def run():
        return compute_cka(model, model, loader, layers=layers, progress=False)[0].numpy()

    return run


def torch_cka():
    import torch
    from torch_cka import CKA

    class Comparison(CKA):
        """Takes the first output of a module that has several."""

        def _log_layer(self, model, name, layer, inp, out):
            out = out[0] if isinstance(out, tuple) else out
            super()._log_layer(model, name, layer, inp, out)

    model, loader, layers = vits.hugging_face(**CONFIG), _loader(), _layers()
    comparison = Comparison(model, model, "one", "other", layers, layers)

    @torch.inference_mode()
    def run():
        comparison.compare(loader)
        return comparison.export()["CKA"].numpy()

    return run


def cka_of(tap_names):
    """CKA of these activations of every block."""
    import vit_tf
    from vit_tf import analysis

    taps = [f"block{i:02d}/{tap}" for i in range(12) for tap in tap_names]
    features = vit_tf.submodel(vits.ours(**CONFIG), *taps)
    batch = images(COUNT)

    def run():
        analysis.cka(features, batch)

    return run


VIT_B = {
    "image_shape": (224, 224, 3),
    "patch_size": 16,
    "num_layers": 12,
    "num_heads": 12,
    "hidden_dim": 768,
    "mlp_dim": 3072,
}
PAPER_BATCH = 1024


def paper_scale():
    import tensorflow as tf

    import vit_tf
    from vit_tf import analysis

    features = vit_tf.submodel(vits.ours(**VIT_B), "*")
    batch = tf.data.Dataset.from_tensors(images(PAPER_BATCH))

    def run():
        analysis.cka(features, batch)

    return run


STREAM_BATCHES = 4

BENCHMARKS = {
    "cka": Benchmark(
        f"CKA of all 84 activations of ViT-S/16, 224 px, {COUNT} images",
        {
            "vit_tf": ours,
            "forward pass": forward,
            "products": products,
            "pytorch-cka": pytorch_cka,
            "torch_cka": torch_cka,
        },
        (
            Ratio(("pytorch-cka",), 0.7),
            Ratio(("pytorch-cka",), 0.25, "peak"),
            Ratio(("torch_cka",), 0.08),
            Ratio(("forward pass", "products"), 1.25),
        ),
        once=("torch_cka",),
    ),
    "cka_stream": Benchmark(
        f"CKA of all 84 activations of ViT-S/16, 224 px, {STREAM_BATCHES} x {COUNT} images",
        {
            "vit_tf": partial(ours, STREAM_BATCHES),
            "forward pass": partial(forward, STREAM_BATCHES),
            "products": partial(products, STREAM_BATCHES),
        },
        (Ratio(("forward pass", "products"), 1.25),),
        rounds=4,
    ),
    "cka_taps": Benchmark(
        f"CKA of 84 activations of ViT-S/16 compared with 12 of them, {COUNT} images",
        {
            "84 activations": lambda: cka_of(TAPS),
            "12 activations": lambda: cka_of(TAPS[-1:]),
        },
        (Ratio(("12 activations",), 1.1, "peak", of="84 activations"),),
        rounds=1,
    ),
    "cka_paper": Benchmark(
        f"CKA of all 135 activations of ViT-B/16, one batch of {PAPER_BATCH:,} images",
        {"vit_tf": paper_scale},
        (Ratio((), 16.0, "peak"), Ratio((), float("inf"))),
        once=("vit_tf",),
    ),
}
