"""A tiny checkpoint of every family and layout, written to a file in its own format."""

import checkpoint_layouts as layouts
import numpy as np
from archive_files import torch_or_skip, write_safetensors
from checkpoint_layouts import HEADS, SIZE

from vit_tf.checkpoints.loading import weights_by_name

SHAPE = (SIZE, SIZE, 3)
# Every family and layout: what is written, and what does not follow from it.
FILES = {
    "vit": (layouts.google_vit, {}),
    "vit-pre_logits": (lambda: layouts.google_vit(pre_logits=7), {}),
    "big_vision": (lambda: layouts.google_vit("big_vision"), {}),
    "big_vision-gap": (lambda: layouts.google_vit("big_vision", cls=False), {}),
    "big_vision-stacked": (lambda: layouts.google_vit("stacked"), {}),
    "hybrid": (lambda: layouts.google_vit(units=(2, 1)), {}),
    "hybrid-root": (lambda: layouts.google_vit(units=()), {}),
    "bit": (layouts.google_bit, {"image_shape": SHAPE}),
    "mixer": (layouts.google_mixer, {}),
    "timm": (layouts.timm_vit, {"num_heads": HEADS}),
    "dino": (lambda: layouts.timm_vit(head=None), {"num_heads": HEADS}),
    "mae": (layouts.mae, {"num_heads": HEADS}),
    "moco": (layouts.moco, {"num_heads": HEADS}),
    "clip": (layouts.clip, {"num_heads": HEADS}),
    "beit": (layouts.beit, {}),
    "beit-shared": (lambda: layouts.beit("cls", shared=True), {}),
}
HEADLESS = ("dino", "mae", "moco")
IN_TORCH = ("dino", "moco", "clip")


def arrays(model):
    """dict from the path of each weight inside its model to its value."""
    return {name: weight.numpy() for name, weight in weights_by_name(model).items()}


def pictures(shape, seed=1):
    """Two random images of a shape (height, width, channel)."""
    return np.random.default_rng(seed).normal(size=(2, *shape)).astype(np.float32)


def errors_of(model, expected, images):
    """The largest difference of each tap, relative to its largest number."""
    actual = {tap: np.asarray(x) for tap, x in model.intermediates(images).items()}
    assert {tap: actual[tap].shape for tap in expected} == {t: x.shape for t, x in expected.items()}
    return {t: float(np.abs(actual[t] - x).max() / np.abs(x).max()) for t, x in expected.items()}


def assert_matches(model, expected, images, count=None, most=1e-5):
    """Asserts that so many taps are those expected, up to a share of their largest number."""
    errors = errors_of(model, expected, images)
    assert count is None or len(errors) == count
    assert max(errors.values()) < most, errors


def write(tensors, folder):
    """A file of tensors, in the format that their names belong to."""
    if any("/" in name for name in tensors):
        path = folder / "model.npz"
        np.savez(path, **tensors)
    else:
        path = folder / "model.safetensors"
        write_safetensors(path, tensors)
    return path


def write_torch(tensors, path):
    torch = torch_or_skip()
    state = {name: torch.from_numpy(np.asarray(array)) for name, array in tensors.items()}
    torch.save({"state_dict": state, "epoch": 300}, path)
    return path
