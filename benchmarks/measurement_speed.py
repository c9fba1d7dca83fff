"""Measurements: CKA, several statistics in one pass, ablations, receptive fields, similarities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

import vit_tf
from benchmarks import implementations
from benchmarks.harness import Benchmark, Ratio, Run, Seconds, without_answer
from benchmarks.implementations import images
from benchmarks.model_speed import VIT_S
from vit_tf import analysis

if TYPE_CHECKING:
    import tensorflow as tf
    import torch

    from vit_tf.analysis.engine.stream import Statistic
    from vit_tf.features.features import Features, Taps

CKA_COUNT = 128
TAPS = ("attention/norm", "attention/heads", "attention/branch", "mlp/norm", "mlp/hidden")
TAPS += ("mlp/branch", "mlp/sum")
HF_MODULES = ("layernorm_before", "attention.attention", "attention.output.dense")
HF_MODULES += ("layernorm_after", "intermediate", "output.dense", "")


def _hf_layers() -> list[str]:
    """Names of Hugging Face's modules that return the activations."""
    names = [f"vit.encoder.layer.{i}.{part}" for i in range(12) for part in HF_MODULES]
    return [name.rstrip(".") for name in names]


def cka(batches: int = 1) -> Run:
    """All from one call, tracing included."""
    features = vit_tf.submodel(implementations.vit(**VIT_S), *_ends(*TAPS))
    data = images(CKA_COUNT * batches)  # in batches of 128
    # The others cut off what is negative, which the unbiased estimator may be.
    return lambda: analysis.cka(features, data)["cka"].values.clip(0, 1)


def cka_forward(batches: int = 1) -> Run:
    """The bare forward pass, traced before."""
    import tensorflow as tf

    model, batch = implementations.vit(**VIT_S), tf.constant(images(CKA_COUNT))
    compiled = tf.function(lambda x: model(x, training=False), autograph=False)

    def run() -> None:
        for _ in range(batches):
            compiled(batch).numpy()

    return run


def cka_products(batches: int = 1) -> Run:
    """The Gram matrices of all activations, at the rate of one large product of each run."""
    import time

    import tensorflow as tf

    side, tokens, width = 4096, 197, VIT_S["hidden_dim"]
    channels = tokens * (width * 6 + VIT_S["mlp_dim"]) * VIT_S["num_layers"]
    share = batches * CKA_COUNT**2 * channels / side**3
    square = tf.random.stateless_normal((side, side), (0, 0))
    multiply = tf.function(lambda x: tf.matmul(x, x, transpose_b=True))
    multiply(square)

    def run() -> Seconds:
        start = time.perf_counter()
        multiply(square).numpy()
        return Seconds((time.perf_counter() - start) * share)

    return run


def _hf_loader() -> torch.utils.data.DataLoader:
    import torch

    pixels = torch.tensor(images(CKA_COUNT).transpose(0, 3, 1, 2).copy())
    data = torch.utils.data.TensorDataset(pixels)
    return torch.utils.data.DataLoader(data, batch_size=CKA_COUNT)


def pytorch_cka() -> Run:
    from cka import compute_cka

    model, loader, layers = implementations.hugging_face(**VIT_S), _hf_loader(), _hf_layers()

    def run() -> np.ndarray:
        return compute_cka(model, model, loader, layers=layers, progress=False)[0].numpy()

    return run


def torch_cka() -> Run:
    import torch
    from torch_cka import CKA

    class Comparison(CKA):
        """Takes the first output of a module that has several."""

        def _log_layer(
            self,
            model: str,
            name: str,
            layer: torch.nn.Module,
            inp: torch.Tensor,
            out: torch.Tensor | tuple[torch.Tensor, ...],
        ) -> None:
            out = out[0] if isinstance(out, tuple) else out
            super()._log_layer(model, name, layer, inp, out)

    model, loader, layers = implementations.hugging_face(**VIT_S), _hf_loader(), _hf_layers()
    comparison = Comparison(model, model, "one", "other", layers, layers)

    @torch.inference_mode()
    def run() -> np.ndarray:
        comparison.compare(loader)
        return comparison.export()["CKA"].numpy()

    return run


def cka_of(tap_names: Sequence[str]) -> Run:
    """CKA of these activations of every block."""
    features = vit_tf.submodel(implementations.vit(**VIT_S), *_ends(*tap_names))
    return without_answer(analysis.cka, features, images(CKA_COUNT))


VIT_B = VIT_S | {"num_heads": 12, "hidden_dim": 768, "mlp_dim": 3072}
PAPER_BATCH = 1024


def paper_scale() -> Run:
    import tensorflow as tf

    features = vit_tf.submodel(implementations.vit(**VIT_B), "*")
    return without_answer(analysis.cka, features, tf.data.Dataset.from_tensors(images(PAPER_BATCH)))


STREAM_BATCHES = 4
PASS_COUNT = 512  # in batches of 128


def bare_forward() -> Run:
    """The bare forward pass, by the same engine."""
    model = implementations.vit(**VIT_S)
    return without_answer(analysis.engine.collect, lambda batch: model(batch), images(PASS_COUNT))


def three_statistics() -> Run:
    features = vit_tf.submodel(implementations.vit(**VIT_S), "*/weights", "*/skip", "*/branch")
    data = images(PASS_COUNT)
    requests = {
        "distance": (analysis.attention_distance.statistic(features), features),
        "skips": (analysis.skip_ratio.statistic(features), features),
        "maps": (analysis.mean_attention.statistic(features), features),
    }

    def run() -> None:
        totals = analysis.engine.one_pass(requests, data)
        for name, (statistic, _) in requests.items():
            statistic.finish(totals[name])

    return run


CLASSES = 10
BATCH = 128


def every_statistic(compared: Sequence[str]) -> Run:
    """All statistics, with CKA of these activations."""
    import tensorflow as tf

    engine, model = analysis.engine, implementations.vit(**VIT_S)
    weights, blocks = _ends("attention/weights"), _ends("mlp/sum")
    sides = _ends(*(f"{site}/{end}" for site in ("attention", "mlp") for end in ("skip", "branch")))
    features = vit_tf.submodel(model, *weights, *blocks, *sides, *compared)
    grid = model.token_grid
    data = _annotated(tf, grid)
    train = data.map(lambda batch, notes: (batch, notes["label"]))
    groups = (weights, blocks, sides, compared)
    attention, outputs, sides, compared = (engine.choose(features, names) for names in groups)
    statistics = {
        "distance": (analysis.attention_distance.statistic(features), attention),
        "maps": (analysis.mean_attention.statistic(features), attention),
        "patterns": (analysis.attention_patterns.statistic(features), attention),
        "skips": (analysis.skip_ratio.statistic(features), sides),
        "saliency": (analysis.attention_saliency.statistic(features), attention, "mask"),
        "neighbours": (engine.pooled_statistic("cls", grid), outputs, "label"),
        "clusters": (engine.pooled_statistic("spatial", grid), outputs, "label"),
        "probes": (analysis.ridge_probe.statistic(outputs, train, CLASSES), outputs, "label"),
        "cka": (analysis.cka.statistic(compared), compared),
    }
    requests = {
        name: (_reading(statistic, *note), taps)
        for name, (statistic, taps, *note) in statistics.items()
    }
    return without_answer(engine.one_pass, requests, data)


def _ends(*ends: str) -> list[str]:
    """The taps of all blocks with these ends, in depth order."""
    return [f"block{index:02d}/{end}" for index in range(VIT_S["num_layers"]) for end in ends]


def _annotated(tf: ModuleType, grid: vit_tf.TokenGrid) -> tf.data.Dataset:
    """Batches of images and notes: a label and a mask of the token grid for each."""
    rng = np.random.default_rng(1)
    notes = {
        "label": rng.integers(0, CLASSES, PASS_COUNT).astype("int32"),
        "mask": rng.random((PASS_COUNT, grid.rows, grid.columns)) < 0.3,
    }
    data = tf.data.Dataset.from_tensor_slices((images(PASS_COUNT), notes))
    return data.batch(BATCH, drop_remainder=True)


def _reading(statistic: Statistic, note: str | None = None) -> Statistic:
    """The statistic with one of the notes, if any, for its labels."""
    if note is None:
        return statistic

    def step(batch: tf.Tensor, notes: dict[str, tf.Tensor], taps: Taps) -> Any:
        return statistic.step(batch, notes[note], taps)

    return replace(statistic, step=step)


RUNS = 1 + VIT_S["num_layers"] * VIT_S["num_heads"]  # one as it is, one without each head


def ablation_forward(count: int) -> Run:
    """As many forward passes of the images, by the same engine, in full batches."""
    model, data = implementations.vit(**VIT_S), images(count)

    def run() -> None:
        import tensorflow as tf

        passes = tf.data.Dataset.from_tensor_slices(data).repeat(RUNS).batch(BATCH)
        analysis.engine.collect(lambda batch: model(batch), passes)

    return run


def ablation(count: int) -> Run:
    features = vit_tf.submodel(implementations.vit(**VIT_S), "*/heads", "logits")
    return without_answer(
        analysis.head_ablation, features, (images(count), np.arange(count) % 1000)
    )


def ablation_of(count: int, rounds: int) -> Benchmark:
    """The `Benchmark` of all heads on so many images."""
    return Benchmark(
        f"ablation of each of {RUNS - 1} heads of ViT-S/16, {count} images",
        {"vit_tf": lambda: ablation(count), "forward passes": lambda: ablation_forward(count)},
        (Ratio(("forward passes",), 1.1),),
        rounds=rounds,
    )


FIELD_COUNT = 32
FIELD_TAPS = ("embedding", "block*/*/sum")


def fields() -> Run:
    features = vit_tf.submodel(implementations.vit(**VIT_B | {"patch_size": 32}), *FIELD_TAPS)
    batch = images(FIELD_COUNT)
    return lambda: analysis.receptive_field(features, batch).values


def fields_one_by_one() -> Run:
    """As one would write it: a tape, a forward pass up to the layer and a gradient for each."""
    import tensorflow as tf

    model = implementations.vit(**VIT_B | {"patch_size": 32})
    center = model.token_grid.center
    features = [vit_tf.submodel(model, tap) for tap in vit_tf.submodel(model, *FIELD_TAPS).taps]
    batch = tf.constant(images(FIELD_COUNT))

    def field(features: Features) -> tf.Tensor:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(batch)
            (activations,) = features(batch).values()
            total = tf.reduce_sum(activations[:, center])
        return tf.reduce_mean(tf.reduce_sum(tf.abs(tape.gradient(total, batch)), 3), 0)

    return lambda: np.stack([field(layer) for layer in features])


MEASURE_COUNT, BLOCKS, TOKENS, CHANNELS = 64, 12, 197, 768
# Of each block: six taps of the width of the model, and the hidden layer of its MLP.
WIDTHS = (1, 1, 1, 1, 4, 1, 1)
POOLED = 28  # channels, of which those of two layers are fewer than the images
MEASURES = ("cka", "rbf_cka", "token_cka", "procrustes", "svcca", "rsa_spearman", "mutual_knn")
MEASURES += ("linear_predictivity",)
TARGET = 3.0  # times that of CKA


def compare(measures: Sequence[str], pooled: bool = False) -> Run:
    """Similarities of 84 layers, by these measures; of single vectors where `pooled`."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    size = (POOLED,) if pooled else (TOKENS, CHANNELS)
    mix = tf.constant(rng.normal(size=(64, int(np.prod(size)))), tf.float32)
    shifts = rng.normal(size=BLOCKS * len(WIDTHS))

    def features(rows: tf.Tensor) -> dict[str, tf.Tensor]:
        base = tf.reshape(tf.matmul(rows, mix), (-1, *size))
        taps = {}
        for number, shift in enumerate(shifts):
            width = 1 if pooled else WIDTHS[number % len(WIDTHS)]
            tap = tf.nn.relu(base + 8.0 * float(shift))
            taps[f"tap{number:02d}"] = tf.concat([tap] * width, axis=-1) if width > 1 else tap
        return taps

    rows = rng.normal(size=(MEASURE_COUNT, 64)).astype("float32")
    return without_answer(analysis.similarities, features, rows, measures=measures)


POOLED_PWCCA = f"pwcca, of {POOLED} channels"
RATIOS = [
    Ratio(("cka",), TARGET, figure, name)
    for name in (*MEASURES[1:], POOLED_PWCCA)
    for figure in ("seconds", "peak")
]


BENCHMARKS = {
    "cka": Benchmark(
        f"CKA of all 84 activations of ViT-S/16, 224 px, {CKA_COUNT} images",
        {
            "vit_tf": cka,
            "forward pass": cka_forward,
            "products": cka_products,
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
        f"CKA of all 84 activations of ViT-S/16, 224 px, {STREAM_BATCHES} x {CKA_COUNT} images",
        {
            "vit_tf": partial(cka, STREAM_BATCHES),
            "forward pass": partial(cka_forward, STREAM_BATCHES),
            "products": partial(cka_products, STREAM_BATCHES),
        },
        (Ratio(("forward pass", "products"), 1.25),),
        rounds=4,
    ),
    "cka_taps": Benchmark(
        f"CKA of 84 activations of ViT-S/16 compared with 12 of them, {CKA_COUNT} images",
        {
            "84 activations": lambda: cka_of(TAPS),
            "12 activations": lambda: cka_of(TAPS[-1:]),
        },
        (Ratio(("12 activations",), 1.1, "peak", "84 activations"),),
        rounds=1,
    ),
    "cka_paper": Benchmark(
        f"CKA of all 135 activations of ViT-B/16, one batch of {PAPER_BATCH:,} images",
        {"vit_tf": paper_scale},
        (Ratio((), 16.0, "peak"), Ratio((), float("inf"))),
        once=("vit_tf",),
    ),
    "one_pass": Benchmark(
        "attention distances, skip ratios and mean attention of ViT-S/16 together, "
        f"{PASS_COUNT} images",
        {"vit_tf": three_statistics, "forward pass": bare_forward},
        (Ratio(("forward pass",), 1.15),),
    ),
    "every_statistic": Benchmark(
        "attention, skips, saliency, features, probes, CKA of ViT-S/16 together, "
        f"{PASS_COUNT} images",
        {
            "vit_tf": lambda: every_statistic(_ends("mlp/sum")),
            "with CKA of all activations": lambda: every_statistic(_ends(*TAPS)),
            "forward pass": bare_forward,
        },
        (
            Ratio(("forward pass",), 1.25),
            Ratio(("forward pass",), float("inf"), name="with CKA of all activations"),
        ),
        rounds=5,
    ),
    "interventions": ablation_of(512, 1),
    "interventions_small": ablation_of(4, 1),
    "fields": Benchmark(
        f"receptive fields of 25 sublayers of ViT-B/32, {FIELD_COUNT} images",
        {"vit_tf": fields, "one by one": fields_one_by_one},
        (Ratio(("one by one",), 0.6),),
        rounds=5,
    ),
    "measures": Benchmark(
        f"84 activations of the shapes of ViT-B/16, {MEASURE_COUNT} images",
        {name: partial(compare, [name]) for name in MEASURES}
        | {POOLED_PWCCA: partial(compare, ["pwcca"], pooled=True)},
        (*RATIOS, *(Ratio((), float("inf"), figure, "cka") for figure in ("seconds", "peak"))),
        once=(*MEASURES, POOLED_PWCCA),
        rounds=1,
    ),
}
