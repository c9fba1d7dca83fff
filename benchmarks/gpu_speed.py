"""Times ViTs on one GPU: this package on JAX next to timm and transformers on PyTorch.

A forward pass of `--forward` images and a training step of `--train` images (forward and backward
pass, AdamW) at 224 px, with random weights of equal shapes. All compute products in bfloat16 with
weights in float32. Each implementation has a process of its own, so that compilations run side by
side; then one process at a time is timed, in rounds over all of them. Times are of single calls,
from the call until the device has finished: medians and quartiles over all rounds.

Example:
    KERAS_BACKEND=jax XLA_PYTHON_CLIENT_PREALLOCATE=false python benchmarks/gpu_speed.py
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import jax

Call: TypeAlias = Callable[[], None]  # returns when the device has finished
IMPLEMENTATIONS = ("vit_tf", "timm", "timm compiled", "transformers", "transformers compiled")
CALLS = 5  # of each function in each round


class Size(NamedTuple):
    """A ViT of 12 layers and patches of 16 pixels."""

    heads: int
    width: int


SIZES = {"Ti": Size(3, 192), "S": Size(6, 384), "B": Size(12, 768)}


def in_jax(size: str, num_forward: int, num_train: int) -> tuple[Call, Call]:
    """A forward pass and a training step of this package."""
    import jax
    import keras

    import vit_tf

    model = vit_tf.ViT.from_variant(f"{size}/16", num_classes=1000, dtype="mixed_bfloat16")
    optimizer = keras.optimizers.AdamW(1e-4)
    optimizer.build(model.trainable_variables)
    images, labels = (jax.device_put(x) for x in random_batch(max(num_forward, num_train)))

    @jax.jit
    def forward(weights: list[jax.Array], images: jax.Array) -> jax.Array:
        return model.stateless_call(weights, [], images, training=False)[0]

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(
        weights: list[jax.Array], state: list[jax.Array], images: jax.Array, labels: jax.Array
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        def loss_of(weights: list[jax.Array]) -> jax.Array:
            logits, _ = model.stateless_call(weights, [], images, training=True)
            losses = jax.nn.log_softmax(logits.astype("float32"))
            return -jax.numpy.mean(jax.numpy.take_along_axis(losses, labels[:, None], 1))

        gradients = jax.grad(loss_of)(weights)
        return optimizer.stateless_apply(state, gradients, weights)

    weights = [variable.value for variable in model.trainable_variables]
    # Copies, as a training step overwrites its weights in place.
    trained = [weight.copy() for weight in weights], [v.value for v in optimizer.variables]

    def run_step() -> None:
        nonlocal trained
        trained = jax.block_until_ready(step(*trained, images[:num_train], labels[:num_train]))

    batch = images[:num_forward]
    return lambda: jax.block_until_ready(forward(weights, batch)), run_step


def in_torch(name: str, size: str, num_forward: int, num_train: int) -> tuple[Call, Call]:
    """A forward pass and a training step of another package."""
    import torch

    heads, width = SIZES[size]
    if name.startswith("timm"):
        from timm.models.vision_transformer import VisionTransformer

        model = VisionTransformer(num_heads=heads, embed_dim=width)
    else:
        from transformers import ViTConfig, ViTForImageClassification

        sizes = {"hidden_size": width, "num_attention_heads": heads, "intermediate_size": 4 * width}
        model = ViTForImageClassification(ViTConfig(**sizes, num_labels=1000))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    images, labels = (torch.as_tensor(x).to(device) for x in random_batch(num_forward + num_train))
    images, labels = images.movedim(-1, 1).contiguous(), labels.long()
    network = torch.compile(model) if name.endswith("compiled") else model

    def logits_of(images: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16):
            outputs = network(images)
        return outputs if torch.is_tensor(outputs) else outputs.logits

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def forward() -> None:
        model.eval()
        with torch.inference_mode():
            logits_of(images[:num_forward])
        wait()

    def step() -> None:
        model.train()
        logits = logits_of(images[:num_train])
        torch.nn.functional.cross_entropy(logits.float(), labels[:num_train]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait()

    return forward, step


def random_batch(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels."""
    generator = np.random.default_rng(0)
    images = generator.uniform(-1, 1, (count, 224, 224, 3)).astype("float32")
    return images, generator.integers(0, 1000, count).astype("int32")


def work(connection: Connection, name: str, size: str, num_forward: int, num_train: int) -> None:
    """Answers each message with the milliseconds of several calls of both functions."""
    numbers = size, num_forward, num_train
    functions = in_jax(*numbers) if name == "vit_tf" else in_torch(name, *numbers)
    for function in functions:
        for _ in range(3):
            function()
    connection.send("ready")
    while connection.recv():
        times = []
        for function in functions:
            function()
            starts = []
            for _ in range(CALLS):
                start = time.perf_counter()
                function()
                starts.append(1000 * (time.perf_counter() - start))
            times.append(starts)
        connection.send(times)


def main() -> None:
    """Prints a table, and the numbers as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["S", "B"])
    parser.add_argument("--names", nargs="+", choices=IMPLEMENTATIONS, default=IMPLEMENTATIONS)
    parser.add_argument("--forward", type=int, default=128)
    parser.add_argument("--train", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=6)
    words = "seconds after which implementations that are still compiled are left out"
    parser.add_argument("--wait", type=float, default=600, help=words)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    workers = {}
    for size in options.sizes:
        for name in options.names:
            here, there = context.Pipe()
            arguments = there, name, size, options.forward, options.train
            process = context.Process(target=work, args=arguments, daemon=True)
            process.start()
            there.close()
            workers[size, name] = here
    start = time.monotonic()
    for key, connection in list(workers.items()):
        # A process that failed has closed its end, which counts as a message that is no answer.
        left = max(start + options.wait - time.monotonic(), 0)
        try:
            ready = connection.poll(left) and connection.recv()
        except EOFError:
            ready = False
        print(f"{key}: {'ready' if ready else 'left out'} {time.monotonic() - start:.0f} s")
        if not ready:
            del workers[key]
    times: dict[tuple[str, str], list] = {key: [] for key in workers}
    for _ in range(options.rounds):
        for key, connection in workers.items():
            connection.send(True)
            times[key].append(connection.recv())
    # Of shape (round, function, call), for each implementation.
    for function, what in enumerate(("forward pass", "training step")):
        for (size, name), rounds in times.items():
            quartiles = np.quantile(np.array(rounds)[:, function], [0.5, 0.25, 0.75])
            words = "{:.2f} ({:.2f} to {:.2f}) ms".format(*quartiles)
            print(f"{what}, {size}/16, {name}: {words}", flush=True)
    print(json.dumps([[*key, np.round(rounds, 3).tolist()] for key, rounds in times.items()]))


if __name__ == "__main__":
    main()
