"""A pre-norm ViT in PyTorch float64, written apart from the models, for its gradients."""

import numpy as np
import torch
from oracles import weights_of
from torch.nn import functional


def torch_vit(model, images):
    """Logits and the attention weights of each block, as tensors that gradients can be taken of.

    Args:
        model: a `ViT` with a CLS token.
        images: float64 tensor of shape (example, height, width, channel).
    """
    weights = {name: torch.tensor(value) for name, value in weights_of(model).items()}
    config, size = model.get_config(), model.embedding.patch_size

    def dense(x, layer):
        return x @ weights[f"{layer}/kernel"] + weights[f"{layer}/bias"]

    def norm(x, layer):
        ends = weights[f"{layer}/gamma"], weights[f"{layer}/beta"]
        return functional.layer_norm(x, x.shape[-1:], *ends, eps=1e-6)

    count = len(images)
    kernel = weights["embedding/patches/kernel"].permute(3, 2, 0, 1)
    x = functional.conv2d(
        images.permute(0, 3, 1, 2), kernel, weights["embedding/patches/bias"], stride=size
    )
    x = x.flatten(2).transpose(1, 2)
    x = torch.cat([weights["embedding/prefix"].expand(count, -1, -1), x], 1)
    positions = next(w for w in weights.values() if w.shape == (1, *x.shape[1:]))
    x, attention = x + positions, []
    for i in range(config["num_layers"]):
        block = f"block{i:02d}"
        y = norm(x, f"{block}/attention_norm")
        split = (count, x.shape[1], config["num_heads"], -1)
        q, k, v = (
            dense(y, f"{block}/{n}").reshape(split).transpose(1, 2)
            for n in ("query", "key", "value")
        )
        a = torch.softmax(q @ k.transpose(2, 3) / np.sqrt(q.shape[-1]), dim=-1)
        attention.append(a)
        x = x + dense((a @ v).transpose(1, 2).reshape(x.shape), f"{block}/out")
        y = functional.gelu(dense(norm(x, f"{block}/mlp_norm"), f"{block}/expand"))
        x = x + dense(y, f"{block}/contract")
    return dense(norm(x, "norm")[:, 0], "head"), attention
