"""How many files and functions of the package a call passes through.

    python benchmarks/walks.py [NAME ...]

Each walk runs in a process of its own, and is counted by `sys.setprofile`: functions that are
called, in every thread, without the bodies of modules and classes. Fewer are easier to follow.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TypeAlias

import vit_tf
from vit_tf import analysis

if TYPE_CHECKING:
    import numpy as np

ROOTS = tuple(f"{Path(module.__file__).resolve().parent}{os.sep}" for module in (vit_tf, analysis))
ROOTS += (ROOTS[1].replace(f"analysis{os.sep}", f"scripts{os.sep}"),)
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
TRAIN = "--image-size 8 --take 40 --epochs 1 --batch-size 20 --patch-size 8 --num-layers 1"
TRAIN += " --num-heads 1 --hidden-dim 16 --mlp-dim 16 --strategy none --out run"
STUDY = "--figures 9 --take 60 --take-test 40 --epochs 1 --bit-epochs 1 --seeds 1 --strategy none"
TIMM = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"


Call: TypeAlias = Callable[[], object]  # the call whose files and functions are counted


def count(call: Call) -> tuple[list[str], int]:
    """Numbers of files and of functions of the package that a call passes through."""
    called = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        # A comprehension of a module is part of its body, as in Python 3.12, which calls none.
        body = frame.f_back if frame.f_code.co_name in COMPREHENSIONS else frame
        if event == "call" and body.f_code.co_flags & inspect.CO_OPTIMIZED:
            called.add(frame.f_code)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    # A copy, since threads that still run go on adding to it.
    codes = [x for x in called.copy() if os.path.realpath(x.co_filename).startswith(ROOTS)]
    names = {(code.co_filename, code.co_qualname) for code in codes if code.co_name[0] != "<"}
    return sorted({os.path.realpath(code.co_filename) for code in codes}), len(names)


def tiny_vit() -> vit_tf.ViT:
    """An untrained ViT of two blocks for images of 32 pixels."""
    return vit_tf.ViT((32, 32, 3), 8, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=16)


def random_images() -> np.ndarray:
    """24 seeded images of noise in [-1, 1]."""
    import numpy as np

    return np.random.default_rng(0).uniform(-1, 1, (24, 32, 32, 3)).astype("float32")


def cka() -> Call:
    """`analysis.cka(model, images)`."""
    model, images = tiny_vit(), random_images()
    return lambda: analysis.cka(model, images)


def timm_tensors(dim: int = 192, classes: int = 1000) -> dict[str, np.ndarray]:
    """Zeros in the names and shapes of timm's ViT-Ti/16."""
    import numpy as np

    sizes = {"cls_token": (1, 1, dim), "pos_embed": (1, 197, dim)}
    sizes |= {"patch_embed.proj.weight": (dim, 3, 16, 16), "patch_embed.proj.bias": (dim,)}
    layers = {"norm": None, "head": (classes, dim)}
    for block in range(12):
        dense = {"attn.qkv": (3 * dim, dim), "attn.proj": (dim, dim)}
        dense |= {"mlp.fc1": (4 * dim, dim), "mlp.fc2": (dim, 4 * dim)}
        dense |= dict.fromkeys(("norm1", "norm2"))
        layers |= {f"blocks.{block}.{name}": shape for name, shape in dense.items()}
    for name, shape in layers.items():
        sizes |= {f"{name}.weight": shape or (dim,), f"{name}.bias": (shape or (dim,))[:1]}
    return {name: np.zeros(shape, np.float32) for name, shape in sizes.items()}


def load_pretrained() -> Call:
    """`load_pretrained` of a name of timm's, whose file was downloaded before."""
    from safetensors.numpy import save_file

    os.environ["KERAS_HOME"] = os.getcwd()
    from vit_tf.checkpoints.released import CHECKPOINTS

    path = Path(CHECKPOINTS[f"timm/{TIMM}"].path)
    path.parent.mkdir(parents=True)
    save_file(timm_tensors(), path)
    return lambda: vit_tf.load_pretrained(f"timm/{TIMM}")


def make_report() -> Call:
    """Figure 9 of `analysis.make_report`, of one model."""
    model, images = tiny_vit(), random_images()
    return lambda: analysis.make_report(model, images, folder="report", figures=["9"])


def command(*arguments: str) -> Call:
    """A call of the command line."""
    from vit_tf.__main__ import main

    return lambda: main(list(arguments))


def study() -> Call:
    """`vit-tf study` of figure 9."""
    return command("study", *STUDY.split(), "--out", "study")


def train() -> Call:
    """`vit-tf train` of a tiny ViT on digits."""
    return command("train", *TRAIN.split())


def explore() -> Call:
    """`vit-tf explore` of a bundled model and one image."""
    from PIL import Image

    Image.fromarray(((random_images()[0] + 1) * 127).astype("uint8")).save("image.png")
    return command("explore", "vit-cls-cifar10", "image.png", "--samples", "2")


WALKS = {walk.__name__: walk for walk in (cka, load_pretrained, make_report, study, train, explore)}


def main(names: Sequence[str]) -> int:
    """Print the counts of the walks, each from a process of its own; the exit status."""
    if len(names) == 2 and names[0] == "--here":
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            files, functions = count(WALKS[names[1]]())
            os.chdir(os.path.dirname(folder))
        print(f"{names[1]:16} {len(files):4} files {functions:5} functions")
        return 0
    unknown = [name for name in names if name not in WALKS]
    if unknown:
        print(f"Expected walks among {', '.join(WALKS)}. Received: {', '.join(unknown)}")
        return 2
    for name in names or WALKS:
        line = [sys.executable, __file__, "--here", name]
        done = subprocess.run(line, capture_output=True, text=True)
        shown = [text for text in done.stdout.splitlines() if text.startswith(f"{name} ")]
        print(shown[-1] if shown else f"{name} failed:\n{done.stderr[-2000:]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
