"""The published implementations, filled from Google's tensors: what parity is measured to.

Each function takes tensors in a public layout and images of shape (example, height, width,
channel), and returns dict from tap to array. It maps names straight from the layout to the
reference's own, strictly: a parameter without a tensor is an error.
"""

import numpy as np
import torch
import transformers
from checkpoint_layouts import HEADS, HIDDEN, LAYERS, PATCH, SIZE, WIDTH
from transformers.models.bit import modeling_bit

SIZES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": HIDDEN,
    "image_size": SIZE,
    "patch_size": PATCH,
}


def fill(model, state):
    """Loads every parameter, and lets buffers be."""
    state = {name: torch.tensor(np.asarray(array, np.float32)) for name, array in state.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    parameters = {name for name, _ in model.named_parameters()}
    assert not unexpected and not parameters.intersection(missing), (unexpected, missing)
    return model.eval()


def pixels(images):
    return torch.tensor(images.transpose(0, 3, 1, 2))


def run(model, layers, images, **options):
    """(outputs, taps) of a model: what goes into the first of its blocks, and comes out of each.

    Caught on the way, as lists of hidden states end with the last sum in one release and with its
    normalised form in another.
    """
    taps = {}

    def catch(tap):
        def hook(module, inputs, output):
            taps.setdefault("embedding", inputs[0].numpy())
            taps[tap] = (output[0] if isinstance(output, tuple) else output).numpy()

        return hook

    for i, layer in enumerate(layers):
        layer.register_forward_hook(catch(f"block{i:02d}/mlp/sum"))
    with torch.no_grad():
        return model(pixels(images), **options), taps


def _vit_state(google, outer=""):
    """Hugging Face's names of what a Google file has, classifier and pooler left out."""
    old = "Transformer/posembed_input/pos_embedding" in google
    attention = f"MultiHeadDotProductAttention_{int(old)}"
    norms, mlp = ((0, 2), "MlpBlock_3") if old else ((0, 1), "MlpBlock_0")
    positions = google["Transformer/posembed_input/pos_embedding" if old else "pos_embedding"]
    if not old:
        # Added before the class token, which has none.
        positions = np.concatenate([np.zeros((1, 1, WIDTH)), positions], axis=1)
    state = {
        "embeddings.cls_token": google["cls"],
        "embeddings.position_embeddings": positions,
        "embeddings.patch_embeddings.projection.weight": google["embedding/kernel"].transpose(
            3, 2, 0, 1
        ),
        "embeddings.patch_embeddings.projection.bias": google["embedding/bias"],
        "layernorm.weight": google["Transformer/encoder_norm/scale"],
        "layernorm.bias": google["Transformer/encoder_norm/bias"],
    }
    stacked = any(name.startswith("Transformer/encoderblock/") for name in google)
    for i in range(LAYERS):
        name = "Transformer/encoderblock" + ("" if stacked else f"_{i}")
        block = {
            n[len(name) + 1 :]: x[i] if stacked else x
            for n, x in google.items()
            if n.startswith(f"{name}/")
        }
        layer = f"encoder.layer.{i}"
        for which in ("query", "key", "value"):
            kernel = block[f"{attention}/{which}/kernel"].reshape(WIDTH, WIDTH)
            state[f"{layer}.attention.attention.{which}.weight"] = kernel.T
            bias = block[f"{attention}/{which}/bias"].reshape(WIDTH)
            state[f"{layer}.attention.attention.{which}.bias"] = bias
        out = block[f"{attention}/out/kernel"].reshape(WIDTH, WIDTH)
        state[f"{layer}.attention.output.dense.weight"] = out.T
        state[f"{layer}.attention.output.dense.bias"] = block[f"{attention}/out/bias"]
        for norm, theirs in zip(norms, ("before", "after"), strict=True):
            state[f"{layer}.layernorm_{theirs}.weight"] = block[f"LayerNorm_{norm}/scale"]
            state[f"{layer}.layernorm_{theirs}.bias"] = block[f"LayerNorm_{norm}/bias"]
        for n, theirs in enumerate(("intermediate", "output")):
            state[f"{layer}.{theirs}.dense.weight"] = block[f"{mlp}/Dense_{n}/kernel"].T
            state[f"{layer}.{theirs}.dense.bias"] = block[f"{mlp}/Dense_{n}/bias"]
    return {outer + name: array for name, array in state.items()}


def google_vit(tensors, images, **sizes):
    """`ViTForImageClassification` with flax's GELU, which Google's own models have."""
    config = transformers.ViTConfig(
        **SIZES | sizes,
        hidden_act="gelu_pytorch_tanh",
        layer_norm_eps=1e-6,
        num_labels=len(tensors["head/bias"]),
    )
    state = _vit_state(tensors, "vit.") | {
        "classifier.weight": tensors["head/kernel"].T,
        "classifier.bias": tensors["head/bias"],
    }
    model = fill(transformers.ViTForImageClassification(config), state)
    outputs, taps = run(model, model.vit.encoder.layer, images)
    return taps | {"logits": outputs.logits.numpy()}


def google_vit_with_representation(tensors, images):
    """`ViTModel`, whose pooler is the layer of tanh before a Google model's head."""
    config = transformers.ViTConfig(
        **SIZES,
        hidden_act="gelu_pytorch_tanh",
        layer_norm_eps=1e-6,
        pooler_output_size=len(tensors["pre_logits/bias"]),
    )
    state = _vit_state(tensors) | {
        "pooler.dense.weight": tensors["pre_logits/kernel"].T,
        "pooler.dense.bias": tensors["pre_logits/bias"],
    }
    model = fill(transformers.ViTModel(config), state)
    outputs, taps = run(model, model.encoder.layer, images)
    pooled = outputs.pooler_output.numpy()
    logits = pooled @ tensors["head/kernel"] + tensors["head/bias"]
    last = outputs.last_hidden_state.numpy()
    return taps | {"norm": last, "pre_logits": pooled, "logits": logits}


def google_hybrid(tensors, images):
    """`BitModel` with bottleneck layers, whose last map a `ViTForImageClassification` embeds.

    Its epsilons are timm's; the norms' are set to Google's. The kernels' cannot be, as it is
    added to a variance where Google adds to a deviation, but the kernels here are not small.
    """
    names = {"/".join(name.split("/")[:2]) for name in tensors}
    depths = [sum(name.startswith(f"block{s}/unit") for name in names) for s in (1, 2)]
    config = transformers.BitConfig(
        layer_type="bottleneck",
        global_padding="same",
        embedding_dynamic_padding=True,
        depths=depths,
        hidden_sizes=[4 * 64, 4 * 128],
    )
    state = {}

    def add(conv, norm, theirs_conv, theirs_norm):
        state[f"{theirs_conv}.weight"] = tensors[f"{conv}/kernel"].transpose(3, 2, 0, 1)
        state[f"{theirs_norm}.weight"] = tensors[f"{norm}/scale"].ravel()
        state[f"{theirs_norm}.bias"] = tensors[f"{norm}/bias"].ravel()

    add("conv_root", "gn_root", "0.convolution", "0.norm")
    for s, depth in enumerate(depths):
        for u in range(depth):
            block, layer = f"block{s + 1}/unit{u + 1}", f"1.stages.{s}.layers.{u}"
            for n in (1, 2, 3):
                add(f"{block}/conv{n}", f"{block}/gn{n}", f"{layer}.conv{n}", f"{layer}.norm{n}")
            if u == 0:
                down = f"{layer}.downsample"
                add(f"{block}/conv_proj", f"{block}/gn_proj", f"{down}.conv", f"{down}.norm")
    root, encoder = modeling_bit.BitEmbeddings(config), modeling_bit.BitEncoder(config)
    resnet = fill(torch.nn.Sequential(root, *([encoder] if any(depths) else [])), state)
    for module in resnet.modules():
        if isinstance(module, modeling_bit.BitGroupNormActivation):
            module.eps = 1e-6
        if isinstance(module, modeling_bit.WeightStandardizedConv2d):
            module.eps = 1e-12
    with torch.no_grad():
        x = root(pixels(images))
        taps = {"root": _rows_first(x)}
        for s, stage in enumerate(encoder.stages if any(depths) else ()):
            for u, unit in enumerate(stage.layers):
                x = unit(x)
                taps[f"stage{s + 1}/unit{u + 1:02d}/sum"] = _rows_first(x)
    features = _rows_first(x)
    side, channels = features.shape[2:]
    sizes = {"image_size": side, "num_channels": channels}
    patch = {"patch_size": len(tensors["embedding/kernel"])}
    return taps | google_vit(tensors, features, **sizes, **patch)


def _rows_first(features):
    return features.numpy().transpose(0, 2, 3, 1)


def google_bit(tensors, images):
    """`BitForImageClassification`; the taps of its units are what its layers return."""
    names = {"/".join(name.split("/")[1:3]) for name in tensors}
    depths = [sum(name.startswith(f"block{s}/unit") for name in names) for s in (1, 2)]
    conv = "standardized_conv2d/kernel"
    width = tensors[f"resnet/root_block/{conv}"].shape[-1]
    config = transformers.BitConfig(
        embedding_size=width,
        depths=depths,
        hidden_sizes=[4 * width * 2**s for s in (0, 1)],
        layer_type="preactivation",
        num_labels=len(tensors["resnet/head/conv2d/bias"]),
    )
    state = {
        "bit.embedder.convolution.weight": tensors[f"resnet/root_block/{conv}"],
        "bit.norm.weight": tensors["resnet/group_norm/gamma"],
        "bit.norm.bias": tensors["resnet/group_norm/beta"],
        "classifier.1.weight": tensors["resnet/head/conv2d/kernel"][0, 0].T,
        "classifier.1.bias": tensors["resnet/head/conv2d/bias"],
    }
    for s, depth in enumerate(depths):
        for u in range(depth):
            block = f"resnet/block{s + 1}/unit{u + 1:02d}"
            layer = f"bit.encoder.stages.{s}.layers.{u}"
            for n, part in enumerate("abc", 1):
                state[f"{layer}.conv{n}.weight"] = tensors[f"{block}/{part}/{conv}"]
                state[f"{layer}.norm{n}.weight"] = tensors[f"{block}/{part}/group_norm/gamma"]
                state[f"{layer}.norm{n}.bias"] = tensors[f"{block}/{part}/group_norm/beta"]
            if u == 0:
                state[f"{layer}.downsample.conv.weight"] = tensors[f"{block}/a/proj/{conv}"]
    state = {n: x.transpose(3, 2, 0, 1) if x.ndim == 4 else x for n, x in state.items()}
    model = fill(transformers.BitForImageClassification(config), state)
    units = [unit for stage in model.bit.encoder.stages for unit in stage.layers]
    outputs, taps = run(model, units, images)
    taps = [x.transpose(0, 2, 3, 1) for x in taps.values()]
    names = [f"stage{s + 1}/unit{u + 1:02d}/sum" for s, n in enumerate(depths) for u in range(n)]
    return dict(zip(("root", *names), taps, strict=True)) | {"logits": outputs.logits.numpy()}
