"""What PyTorch modules compute, by hooks written by hand and by this package: their differences.

`python tests/helpers/torch_parity.py` prints the table of docs/guides/pytorch.md.
"""

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
from without_torchvision import import_or_skip

SIZES = {"embed_dim": 24, "depth": 2, "num_heads": 3, "patch_size": 4, "img_size": 20}
HIDDEN = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "patch_size": 4}
HIDDEN |= {"image_size": 20, "num_labels": 5}


@dataclass(frozen=True)
class Case:
    """A tiny model with random weights: how it is made, and where its blocks and attention are."""

    library: str
    make: object  # a function of the library to a module
    blocks: str  # the path of a block, by number
    num_blocks: int
    attention: str = ""  # the path in a block of what attends over all tokens
    norm: str = ""
    side: int = 20  # of its images


def timm_model(name, **fields):
    return lambda timm: timm.create_model(name, num_classes=5, **fields)


def hugging_face(kind, config, **fields):
    return lambda t: getattr(t, kind)(getattr(t, config)(**HIDDEN, **fields))


def torchvision_vit(torchvision):
    return torchvision.models.VisionTransformer(20, 4, 2, 3, 24, 48, num_classes=5)


def torchvision_resnet(torchvision):
    return torchvision.models.resnet18(num_classes=5)


MLP = {"intermediate_size": 40}
CASES = {
    "timm ViT": Case(
        "timm", timm_model("vit_base_patch16_224", **SIZES), "blocks.{}", 2, "attn", "norm"
    ),
    "timm DeiT": Case(
        *("timm", timm_model("deit_base_patch16_224", **SIZES), "blocks.{}", 2, "attn", "norm")
    ),
    "timm EVA-02": Case(
        *("timm", timm_model("eva02_small_patch14_224", **SIZES), "blocks.{}", 2, "attn")
    ),
    "timm Swin": Case(
        "timm",
        timm_model(
            "swin_tiny_patch4_window7_224",
            img_size=32,
            window_size=4,
            depths=(2, 2),
            embed_dim=24,
            num_heads=(2, 2),
        ),
        "layers.{}.blocks.{}",
        4,
        norm="norm",
        side=32,
    ),
    "timm ConvNeXt": Case(
        "timm",
        timm_model("convnext_atto", depths=(1, 1, 2, 1), dims=(8, 8, 16, 16)),
        "stages.{}.blocks.{}",
        5,
        side=64,
    ),
    "timm ResNet": Case("timm", timm_model("resnet18"), "layer{}.{}", 8, side=64),
    "transformers ViT": Case(
        "transformers",
        hugging_face("ViTForImageClassification", "ViTConfig", **MLP),
        "vit.encoder.layer.{}",
        2,
        "attention.attention",
        "vit.layernorm",
    ),
    "transformers DINOv2": Case(
        "transformers",
        hugging_face("Dinov2ForImageClassification", "Dinov2Config"),
        "dinov2.encoder.layer.{}",
        2,
        "attention.attention",
        "dinov2.layernorm",
    ),
    "transformers BEiT": Case(
        "transformers",
        hugging_face(
            "BeitForImageClassification", "BeitConfig", **MLP, use_relative_position_bias=True
        ),
        "beit.encoder.layer.{}",
        2,
        "attention.attention",
    ),
    "transformers CLIP": Case(
        "transformers",
        hugging_face("CLIPForImageClassification", "CLIPConfig", vision_config=HIDDEN | MLP),
        "vision_model.encoder.layers.{}",
        2,
        "self_attn",
    ),
    "torchvision ViT": Case(
        "torchvision",
        torchvision_vit,
        "encoder.layers.encoder_layer_{}",
        2,
        "self_attention",
        "encoder.ln",
    ),
    "torchvision ResNet": Case("torchvision", torchvision_resnet, "layer{}.{}", 8, side=64),
}
STAGES = {4: [(0, 0), (0, 1), (1, 0), (1, 1)], 5: [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0)]}
STAGES |= {8: [(stage, unit) for stage in (1, 2, 3, 4) for unit in (0, 1)]}


def make(name):
    """A model of the table, of random weights."""
    case = CASES[name]
    # timm and transformers are imported as elsewhere in the tests, torchvision where it is there.
    known = case.library == "torchvision"
    library = importlib.import_module("torchvision") if known else import_or_skip(case.library)
    if known:
        importlib.import_module("torchvision.models")
    torch.manual_seed(0)
    model = case.make(library)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            gain = key.endswith("weight") and parameter.ndim == 1
            parameter.copy_(0.2 * torch.randn(parameter.shape) + gain)
    return model


def block_paths(name):
    """The paths of the blocks of a model of the table."""
    case = CASES[name]
    numbers = STAGES.get(case.num_blocks, [(i,) for i in range(case.num_blocks)])
    return [case.blocks.format(*number) for number in numbers]


def pictures(name, count=3):
    side = CASES[name].side
    return np.random.default_rng(0).uniform(-1, 1, (count, side, side, 3)).astype(np.float32)


def run_unfused(case, model, pixels, blocks, weights):
    """The scores of a model with attention computed in steps, as its library offers it."""
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    if case.library != "transformers":
        return model(pixels)
    if not hasattr(model, "beit"):  # which does so when it is asked for the weights
        model.set_attn_implementation("eager")
    output = model(pixels, output_attentions=True)
    weights |= dict(zip(blocks, output.attentions, strict=True))
    return output.logits


def channels_last(name, path, value):
    """An array of a submodule with the channels last, by the module that it is of."""
    is_map = value.ndim == 4 and not CASES[name].blocks.startswith("layers.")
    return np.moveaxis(value, 1, -1) if is_map else value


def by_hand(name, model, images):
    """Values of blocks, attention weights and gradients, by hooks and autograd."""
    case, values, handles = CASES[name], {}, []
    blocks = block_paths(name)

    def keep(path):
        def hook(_, inputs, output):
            values[path] = output[0] if isinstance(output, tuple) else output

        return hook

    paths = [*blocks, *([case.norm] if case.norm else [])]
    for path in paths:
        handles.append(model.get_submodule(path).register_forward_hook(keep(path)))
    model.eval()
    pixels = torch.from_numpy(np.moveaxis(images, -1, 1).copy()).requires_grad_(True)
    weights = {}
    for block in blocks if case.attention else []:
        handles += watch_weights(case, model, block, weights)
    scores = run_unfused(case, model, pixels, blocks, weights)
    names = list(values)
    gradients = torch.autograd.grad(scores[:, 1].sum(), [pixels, *(values[n] for n in blocks)])
    for handle in handles:
        handle.remove()
    as_arrays = {n: channels_last(name, n, values[n].detach().numpy()) for n in names}
    results = {n: as_arrays[n] for n in paths}
    results |= {f"{block}/attention/weights": w.detach().numpy() for block, w in weights.items()}
    results["logits"] = scores.detach().numpy()
    of_images, *of_blocks = gradients
    results["gradient of images"] = of_images.permute(0, 2, 3, 1).numpy()
    for block, gradient in zip(blocks, of_blocks, strict=True):
        results[f"gradient of {block}"] = channels_last(name, block, gradient.numpy())
    return results


def watch_weights(case, model, block, weights):
    """Hooks that keep the attention weights of a block, each library's own way."""
    attention = model.get_submodule(f"{block}.{case.attention}")
    if case.library == "timm":

        def dropped(_, inputs, output):
            weights[block] = output

        return [attention.attn_drop.register_forward_hook(dropped)]
    if case.library == "torchvision":
        hooks = []

        def asked(module, inputs, output):
            hooks[0].remove()  # it is called again
            weights[block] = module(*inputs, average_attn_weights=False)[1]

        hooks.append(attention.register_forward_hook(asked))
        return hooks
    return []


def measured(name, model, images):
    """The same values by this package."""
    import tensorflow as tf

    from vit_tf import analysis

    case = CASES[name]
    paths = [*block_paths(name), *([case.norm] if case.norm else [])]
    weights = [f"{block}/attention/weights" for block in block_paths(name) if case.attention]
    layers = [*paths, *weights, "logits"]
    features = analysis.features_of(model, layers=layers)
    with tf.GradientTape() as tape:
        pixels = tf.constant(images)
        tape.watch(pixels)
        values = features(pixels)
        total = tf.reduce_sum(values["logits"][:, 1])
    sources = {"images": pixels} | {n: values[n] for n in block_paths(name)}
    gradients = tape.gradient(total, sources)
    results = {n: value.numpy() for n, value in values.items()}
    return results | {f"gradient of {n}": x.numpy() for n, x in gradients.items()}


def errors(name):
    """Largest differences relative to the largest value, by quantity."""
    model, images = make(name), pictures(name)
    ours = measured(name, model, images)  # before attention is unfused for the others
    theirs = by_hand(name, model, images)
    found = {}
    for key, expected in theirs.items():
        assert ours[key].shape == expected.shape, (key, ours[key].shape, expected.shape)
        kind = next(
            (k for k in ("gradient", "weights", "logits") if k in key), "layers"
        )  # of the table's columns
        error = float(np.abs(ours[key] - expected).max() / np.abs(expected).max())
        found[kind] = max(found.get(kind, 0.0), error)
    return found


if __name__ == "__main__":
    columns = ("layers", "weights", "logits", "gradient")
    for case in CASES:
        result = errors(case)
        cells = [f"{result[c]:.0e}" if c in result else "" for c in columns]
        print("| " + " | ".join([case, *cells]) + " |", flush=True)
