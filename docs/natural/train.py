"""Trains the models of docs/natural-images.md on CIFAR-10: several seeds of each, by one recipe.

Needs the JAX backend of Keras and a GPU. ViTs and Mixers of one architecture are trained side by
side, as one program over a leading axis of runs; a convolution with one kernel for each run is
slow, so ResNets are trained one after another. Products are computed in bfloat16, weights kept in
float32. The data and their augmentation stay on the GPU, and one call trains one epoch.

All arms have the same number of updates, batch size, optimizer, and augmentation. An arm on
a fraction of the data repeats it more often, so that the arms on all data are its control.

Each run becomes a folder ARM-SEED as `vit-tf train` writes it: model.keras, log.csv,
configuration.json and result.json. Saved weights are rounded to half precision, which files
compress well, and the test accuracy is that of the rounded weights.

Example, of a file with arrays as `keras.datasets.cifar10.load_data()` returns them:
    import keras, numpy as np
    (images, labels), (test_images, test_labels) = keras.datasets.cifar10.load_data()
    np.savez("cifar10.npz", images=images, labels=labels.ravel(), test_images=test_images,
             test_labels=test_labels.ravel())

    KERAS_BACKEND=jax python docs/natural/train.py cifar10.npz --out runs-seeds
"""

import argparse
import csv
import json
import re
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import keras
import numpy as np

import vit_tf
from vit_tf.training.optimizers import HEAD, ROOT

Tensors: TypeAlias = list[jax.Array]
Compiled: TypeAlias = Callable[..., Any]

IMAGE_SHAPE, NUM_CLASSES, NUM_VALIDATION = (32, 32, 3), 10, 1000
VIT = {"patch_size": 4, "num_layers": 6, "num_heads": 4, "hidden_dim": 128, "mlp_dim": 512}
BIT = {"units": (2, 3, 3), "width_factor": 0.5, "stem": "small"}
MIXER = {"patch_size": 4, "num_layers": 6, "hidden_dim": 96}
MIXER |= {"tokens_mlp_dim": 64, "channels_mlp_dim": 384}
SMALL = {"num_layers": 4, "hidden_dim": 64, "mlp_dim": 256}


@dataclass(frozen=True)
class Arm:
    """Runs that differ in their seed alone, on a fraction of the training data."""

    model: type[keras.Model]
    options: dict[str, Any]
    seeds: int = 3
    fraction: float = 1.0


ARMS = {
    "vit-cls": Arm(vit_tf.ViT, VIT, seeds=5),
    "vit-30": Arm(vit_tf.ViT, VIT, fraction=0.3),
    "vit-10": Arm(vit_tf.ViT, VIT, fraction=0.1),
    "vit-3": Arm(vit_tf.ViT, VIT, fraction=0.03),
    "bit": Arm(vit_tf.BiT, BIT),
    "vit-gap": Arm(vit_tf.ViT, VIT | {"pooling": "gap"}),
    "vit-noskip": Arm(vit_tf.ViT, VIT | {"without_skips": ("block03",)}),
    "bit-3": Arm(vit_tf.BiT, BIT, fraction=0.03),
    "bit-10": Arm(vit_tf.BiT, BIT, fraction=0.1),
    "bit-30": Arm(vit_tf.BiT, BIT, fraction=0.3),
    "mixer": Arm(vit_tf.Mixer, MIXER),
    "vit-small": Arm(vit_tf.ViT, VIT | SMALL),
}


@dataclass(frozen=True)
class Recipe:
    """What all arms have in common; the learning rate is the largest, and falls as a cosine."""

    epochs: int
    batch_size: int = 128
    learning_rate: float = 3e-3
    warmup_epochs: float = 1.0
    weight_decay: float = 0.05
    shift: int = 4
    mixup: float = 0.2
    cutmix: float = 1.0


@dataclass(frozen=True)
class Data:
    """Training, validation and test images, uint8 of shape (example, 32, 32, 3), and labels."""

    images: jax.Array
    labels: jax.Array
    validation_images: jax.Array
    validation_labels: jax.Array
    test_images: jax.Array
    test_labels: jax.Array

    @classmethod
    def read(cls, path: Path) -> "Data":
        """The arrays of an npz file; a random thousand training images are for validation."""
        arrays = np.load(path)
        order = np.random.default_rng(0).permutation(len(arrays["labels"]))
        images = arrays["images"][order], arrays["labels"][order].astype("int32")
        parts = [x[NUM_VALIDATION:] for x in images] + [x[:NUM_VALIDATION] for x in images]
        parts += [arrays["test_images"], arrays["test_labels"].astype("int32")]
        return cls(*map(jnp.asarray, parts))


@dataclass
class Run:
    """One model: what its seed decides, and, once it is trained, its weights and its log."""

    name: str
    arm: Arm
    seed: int
    model: keras.Model
    log: list[dict[str, float]] = field(default_factory=list)
    weights: list[np.ndarray] = field(default_factory=list)

    def random_numbers(self, recipe: Recipe, num_images: int) -> tuple[np.ndarray, np.ndarray]:
        """Which images each batch holds, and how each is mixed.

        Returns:
            int32 of shape (epoch, step, example), which pass over the run's fraction of the images
            in a new order each time, and float32 of shape (epoch, step, 4): whether the batch is
            cut instead of blended, the first image's weight, and the centre of the patch.
        """
        generator = np.random.default_rng([self.seed, 1])
        steps = num_images // recipe.batch_size
        subset = generator.permutation(num_images)[: round(self.arm.fraction * num_images)]
        needed = recipe.epochs * steps * recipe.batch_size
        passes = [generator.permutation(subset) for _ in range(-(-needed // len(subset)))]
        order = np.concatenate(passes)[:needed].astype("int32")
        shape = recipe.epochs, steps
        is_cut = generator.random(shape) < 0.5
        alpha = np.where(is_cut, recipe.cutmix, recipe.mixup)
        mixing = [is_cut, generator.beta(alpha, alpha), *generator.random((2, *shape))]
        mixing = np.stack(mixing, axis=-1).astype("float32")
        return order.reshape(*shape, recipe.batch_size), mixing


def augment(
    images: jax.Array, labels: jax.Array, key: jax.Array, mixing: jax.Array, shift: int
) -> tuple[jax.Array, jax.Array]:
    """Shifts, flips, and mixes a batch: images in [-1, 1], and the probability of each class.

    Args:
        images: uint8 of shape (example, height, width, 3).
        labels: int32 of shape (example,).
        key: of the shifts and flips.
        mixing: four numbers, as `Run.random_numbers` returns for each step.
        shift: largest shift, in pixels, along each axis; uncovered pixels are black.
    """
    count, height, width, _ = images.shape
    for_shift, for_flip = jax.random.split(key)
    start = jax.random.randint(for_shift, (2, count, 1), -shift, shift + 1)
    rows, columns = (start[axis] + jnp.arange(size) for axis, size in enumerate((height, width)))
    flipped = jax.random.bernoulli(for_flip, 0.5, (count, 1))
    columns = jnp.where(flipped, columns[:, ::-1], columns)
    is_row, is_column = (rows >= 0) & (rows < height), (columns >= 0) & (columns < width)
    is_covered = is_row[:, :, None] & is_column[:, None]
    rows, columns = jnp.clip(rows, 0, height - 1), jnp.clip(columns, 0, width - 1)
    images = images[jnp.arange(count)[:, None, None], rows[:, :, None], columns[:, None]]
    images = jnp.where(is_covered[..., None], images / 127.5 - 1, -1.0)
    # MixUp (Zhang et al. 2018) blends the batch with its reverse; CutMix (Yun et al. 2019) pastes
    # a patch of it with a share 1 - weight of the area, less what lies outside of the image.
    is_cut, weight, *centre = mixing
    half = jnp.sqrt(1 - weight) / 2
    inside = [
        jnp.abs((jnp.arange(size) + 0.5) / size - middle) < half
        for size, middle in zip((height, width), centre, strict=True)
    ]
    patch = (inside[0][:, None] & inside[1]).astype("float32")
    other = jnp.where(is_cut > 0, patch, 1 - weight)[None, :, :, None]
    mixed = images * (1 - other) + images[::-1] * other
    share = jnp.mean(other)
    targets = jax.nn.one_hot(labels, NUM_CLASSES)
    return mixed, targets * (1 - share) + targets[::-1] * share


@dataclass(frozen=True)
class Muon:
    """The update of `vit_tf.Muon`, whose matrices of one shape are made orthogonal together."""

    paths: tuple[str, ...]
    weight_decay: float

    def is_matrix(self, path: str) -> bool:
        """Whether Muon, not AdamW, updates a variable."""
        others = f"{HEAD}|{ROOT}|embedding"
        return path.endswith("/kernel") and not re.search(others, path)

    def update(
        self, weights: Tensors, state: tuple[Tensors, Tensors], gradients: Tensors, rate, step
    ) -> tuple[Tensors, tuple[Tensors, Tensors]]:
        """New weights, and new first and second moments; `step` counts from 1."""
        matrices = [i for i, path in enumerate(self.paths) if self.is_matrix(path)]
        kernels = [i for i, path in enumerate(self.paths) if path.endswith("/kernel")]
        weights = list(weights)
        for i in kernels:
            weights[i] = weights[i] * (1 - rate * self.weight_decay)
        firsts, seconds = map(list, state)
        by_shape: dict[tuple[int, int], list[int]] = {}
        directions = {}
        for i in matrices:
            firsts[i] = 0.95 * firsts[i] + gradients[i]
            matrix = (gradients[i] + 0.95 * firsts[i]).reshape(-1, weights[i].shape[-1])
            directions[i] = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
            by_shape.setdefault(directions[i].shape, []).append(i)
        for shape, members in by_shape.items():
            orthogonal = orthogonalize(jnp.stack([directions[i] for i in members]))
            for i, direction in zip(members, orthogonal, strict=True):
                rows = int(np.prod(weights[i].shape[:-1]))
                direction = direction.T if rows > weights[i].shape[-1] else direction
                change = 0.2 * max(shape) ** 0.5 * direction.reshape(weights[i].shape)
                weights[i] = weights[i] - rate * change
        for i in set(range(len(weights))).difference(matrices):
            firsts[i] = 0.9 * firsts[i] + 0.1 * gradients[i]
            seconds[i] = 0.999 * seconds[i] + 0.001 * gradients[i] ** 2
            scale = rate * jnp.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            weights[i] = weights[i] - scale * firsts[i] / (jnp.sqrt(seconds[i]) + 1e-7)
        return weights, (firsts, seconds)


def orthogonalize(x: jax.Array) -> jax.Array:
    """Five Newton-Schulz steps on matrices (..., n, m), n <= m, with Keras' coefficients."""
    x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return x


class Program:
    """Compiled training and evaluation of an architecture, for a number of runs side by side."""

    def __init__(self, runs: list[Run], data: Data, recipe: Recipe):
        self.model, self.recipe, self.num_runs = runs[0].model, recipe, len(runs)
        self.steps = len(data.labels) // recipe.batch_size
        self.muon = Muon(
            tuple(variable.path for variable in self.model.trainable_variables),
            recipe.weight_decay,
        )
        example = self.initial_state(runs)
        order = jnp.zeros((self.num_runs, self.steps, recipe.batch_size), "int32")
        mixing = jnp.zeros((self.num_runs, self.steps, 4))
        seeds = jnp.zeros(self.num_runs, "int32")
        numbers = jnp.float32(0), jnp.float32(1)
        one_epoch = jax.jit(over_runs(self.epoch, self.num_runs, 4), donate_argnums=0)
        self.lowered = one_epoch.lower(example, order, mixing, seeds, *numbers, data_of(data))

    def compile(self) -> Compiled:
        """The function that trains all runs for an epoch."""
        return self.lowered.compile()

    def initial_state(self, runs: list[Run]) -> tuple[Tensors, tuple[Tensors, Tensors]]:
        """Weights and zero moments of runs, stacked along a first axis."""
        weights = [
            jnp.stack([jnp.asarray(variable.value) for variable in variables])
            for variables in zip(*(run.model.trainable_variables for run in runs), strict=True)
        ]
        moments = [[jnp.zeros_like(weight) for weight in weights] for _ in range(2)]
        return weights, (moments[0], moments[1])

    def rate(self, step, total):
        """The learning rate of `vit_tf`'s cosine with warm-up."""
        warmup = self.recipe.warmup_epochs * self.steps
        fall = (1 + jnp.cos(jnp.pi * jnp.clip((step - warmup) / (total - warmup), 0, 1))) / 2
        return self.recipe.learning_rate * jnp.where(step < warmup, step / warmup, fall)

    def logits(self, weights: Tensors, images: jax.Array, training: bool) -> jax.Array:
        """Logits of images in [-1, 1]."""
        return self.model.stateless_call(weights, [], images, training=training)[0]

    def epoch(self, state, order, mixing, seed, first_step, total_steps, data):
        """Trains one run for one epoch: its new state and the epoch's loss and accuracies."""
        images, labels, validation_images, validation_labels = data
        key = jax.random.key(seed)

        def step(carry, numbers):
            (weights, moments), number = carry
            indices, mix = numbers
            batch, targets = augment(
                images[indices],
                labels[indices],
                jax.random.fold_in(key, number.astype("int32")),
                mix,
                self.recipe.shift,
            )

            def loss_of(weights):
                logits = self.logits(weights, batch, True).astype("float32")
                return -jnp.mean(jnp.sum(targets * jax.nn.log_softmax(logits), 1)), logits

            (loss, logits), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights)
            rate = self.rate(number, total_steps)
            weights, moments = self.muon.update(weights, moments, gradients, rate, number + 1)
            correct = jnp.mean(jnp.argmax(logits, 1) == jnp.argmax(targets, 1))
            return ((weights, moments), number + 1), (loss, correct)

        (state, _), (losses, correct) = jax.lax.scan(step, (state, first_step), (order, mixing))
        logits = self.logits(state[0], validation_images / 127.5 - 1, False).astype("float32")
        scores = jax.nn.log_softmax(logits)
        validation_loss = -jnp.mean(jnp.take_along_axis(scores, validation_labels[:, None], 1))
        validation_accuracy = jnp.mean(jnp.argmax(logits, 1) == validation_labels)
        accuracies = jnp.mean(correct), jnp.mean(losses), validation_accuracy, validation_loss
        return state, jnp.stack(accuracies)


def data_of(data: Data) -> tuple[jax.Array, ...]:
    """What an epoch reads."""
    return data.images, data.labels, data.validation_images, data.validation_labels


def over_runs(function: Callable, num_runs: int, num_mapped: int) -> Callable:
    """A function of one run as one of several, whose first `num_mapped` arguments are stacked."""
    if num_runs > 1:
        return lambda *arguments: jax.vmap(
            function, in_axes=[0] * num_mapped + [None] * (len(arguments) - num_mapped)
        )(*arguments)

    def alone(*arguments):
        mapped = jax.tree.map(lambda x: x[0], arguments[:num_mapped])
        results = function(*mapped, *arguments[num_mapped:])
        return jax.tree.map(lambda x: x[None], results)

    return alone


def train(
    runs: list[Run], program: Program, compiled: Compiled, data: Data, deadline: float
) -> bool:
    """Trains runs side by side, and fills in their logs and weights; whether there was time."""
    recipe = program.recipe
    numbers = [run.random_numbers(recipe, len(data.labels)) for run in runs]
    order, mixing = (np.stack(arrays) for arrays in zip(*numbers, strict=True))
    seeds = jnp.array([run.seed for run in runs], "int32")
    state = program.initial_state(runs)
    total = jnp.float32(recipe.epochs * program.steps)
    start = time.monotonic()
    for epoch in range(recipe.epochs):
        step = jnp.float32(epoch * program.steps)
        state, metrics = compiled(
            state, order[:, epoch], mixing[:, epoch], seeds, step, total, data_of(data)
        )
        for run, (accuracy, loss, validation_accuracy, validation_loss) in zip(
            runs, np.asarray(metrics, "float64"), strict=True
        ):
            row = {"epoch": epoch + 1, "accuracy": accuracy, "loss": loss}
            row |= {"val_accuracy": validation_accuracy, "val_loss": validation_loss}
            run.log.append(row | {"learning_rate": float(program.rate(step, total))})
        seconds = (time.monotonic() - start) / (epoch + 1)
        if time.monotonic() + seconds * (recipe.epochs - epoch - 1) > deadline:
            print(f"no time for {runs[0].name}: {seconds:.2f} s an epoch", flush=True)
            return False
    for index, run in enumerate(runs):
        run.weights = [np.asarray(weight[index]) for weight in state[0]]
    print(f"{runs[0].name} to {runs[-1].name}: {seconds:.2f} s an epoch", flush=True)
    return True


def save(runs: list[Run], data: Data, recipe: Recipe, out: Path) -> None:
    """Writes the folders of runs of one architecture, with their test accuracies."""
    arm = runs[0].arm
    model = arm.model(IMAGE_SHAPE, num_classes=NUM_CLASSES, **arm.options)

    @jax.jit
    def predict(weights, images):
        with jax.default_matmul_precision("float32"):
            logits = model.stateless_call(weights, [], images / 127.5 - 1, training=False)[0]
        return jnp.argmax(logits, 1)

    for run in runs:
        for variable, weight in zip(model.trainable_variables, run.weights, strict=True):
            variable.assign(weight.astype("float16").astype("float32"))
        weights = [variable.value for variable in model.trainable_variables]
        batches = jnp.split(data.test_images, 10)
        predicted = jnp.concatenate([predict(weights, images) for images in batches])
        accuracy = float(jnp.mean(predicted == data.test_labels))
        folder = out / run.name
        folder.mkdir(parents=True, exist_ok=True)
        model.save(folder / "model.keras")
        with open(folder / "log.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, run.log[0])
            writer.writeheader()
            writer.writerows(run.log)
        facts = {"model": arm.model.__name__, "options": arm.options, "fraction": arm.fraction}
        facts |= {"seed": run.seed, "recipe": asdict(recipe), "compute": "bfloat16"}
        facts |= {"device": str(jax.devices()[0].device_kind)}
        (folder / "configuration.json").write_text(json.dumps(facts, indent=1))
        (folder / "result.json").write_text(json.dumps({"test_accuracy": accuracy}))
        print(f"{run.name}: test accuracy {accuracy:.4f}", flush=True)


def make_runs(name: str, arm: Arm) -> list[Run]:
    """The runs of an arm with random initial weights."""
    runs = []
    for number in range(arm.seeds):
        seed = 100 * list(ARMS).index(name) + number
        keras.utils.set_random_seed(seed)
        shape = {"image_shape": IMAGE_SHAPE, "num_classes": NUM_CLASSES}
        model = arm.model(**shape, **arm.options, dtype="mixed_bfloat16")
        runs.append(Run(f"{name}-{number}", arm, seed, model))
    return runs


def side_by_side(names: list[str]) -> list[list[str]]:
    """Names of arms in groups of one architecture, in the order of their first."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(repr((ARMS[name].model, ARMS[name].options)), []).append(name)
    return list(groups.values())


def main() -> None:
    """Trains and saves."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="npz file")
    parser.add_argument("--out", type=Path, default=Path("runs-seeds"))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seeds", type=int, help="at most so many runs of each arm")
    parser.add_argument("--take", type=int, help="so many training images, for a trial")
    words = "time until which all has to end: runs that would take longer are stopped"
    parser.add_argument("--seconds", type=float, default=np.inf, help=words)
    parser.add_argument("--time", action="store_true", help="times one epoch of each program")
    options = parser.parse_args()
    start = time.monotonic()
    data, recipe = Data.read(options.data), Recipe(options.epochs)
    if options.take:
        data = replace(data, images=data.images[: options.take], labels=data.labels[: options.take])
    with ThreadPoolExecutor() as pool:
        prepared: list[tuple[list[list[Run]], Program, Future]] = []
        for names in side_by_side(options.arms):
            runs = [run for name in names for run in make_runs(name, ARMS[name])[: options.seeds]]
            sequential = runs[0].arm.model is vit_tf.BiT
            chunks = [[run] for run in runs] if sequential else [runs]
            program = Program(chunks[0], data, recipe)
            # Programs are compiled while the next is traced.
            prepared.append((chunks, program, pool.submit(program.compile)))
            print(f"traced {names} after {time.monotonic() - start:.0f} s", flush=True)
        compiled = [future.result() for _, _, future in prepared]
    print(f"compiled after {time.monotonic() - start:.0f} s", flush=True)
    for (chunks, program, _), epoch in zip(prepared, compiled, strict=True):
        for runs in chunks[:1] if options.time else chunks:
            deadline = time.monotonic() if options.time else start + options.seconds
            if train(runs, program, epoch, data, deadline):
                save(runs, data, recipe, options.out)
    print(f"done after {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
