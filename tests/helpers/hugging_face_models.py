"""Tiny models of transformers with random weights, and the folders that it writes of them."""

import torch
import transformers

SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "patch_size": 4}
PLAIN = SIZES | {"intermediate_size": 40, "image_size": [16, 24], "layer_norm_eps": 1e-3}
DINO = SIZES | {"mlp_ratio": 2, "image_size": 20, "layer_norm_eps": 1e-5}
AIM = PLAIN | {"image_size": 20, "use_head": False, "rms_norm_eps": 1e-4}
CLASSES = {"num_labels": 5}
ROTARY = PLAIN | {"image_size": 20, "num_register_tokens": 4, "layer_norm_eps": 1e-5}


def make(name):
    """A model of the table, of random weights and in evaluation."""
    kind, config, options = MODELS[name]
    torch.manual_seed(0)
    fields = {**options}
    layers = fields.pop("model", {})
    model = getattr(transformers, kind)(getattr(transformers, config)(**fields), **layers)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            scale = key.endswith("weight") and parameter.ndim == 1
            parameter.copy_(0.3 * torch.randn(parameter.shape) + scale)
    return model.eval()


MODELS = {
    "vit": ("ViTForImageClassification", "ViTConfig", PLAIN | CLASSES),
    "vit-pooler": ("ViTModel", "ViTConfig", PLAIN | {"pooler_output_size": 7}),
    "vit-bare": (
        *("ViTModel", "ViTConfig"),
        PLAIN | {"hidden_act": "gelu_new", "model": {"add_pooling_layer": False}},
    ),
    "deit": ("DeiTForImageClassification", "DeiTConfig", PLAIN | CLASSES),
    "deit-teacher": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", PLAIN | CLASSES),
    "deit-pooler": ("DeiTModel", "DeiTConfig", PLAIN),
    "ijepa": ("IJepaForImageClassification", "IJepaConfig", PLAIN | CLASSES),
    "ijepa-bare": ("IJepaModel", "IJepaConfig", PLAIN | {"image_size": 20}),
    "aimv2": ("Aimv2VisionModel", "Aimv2VisionConfig", AIM),
    "dinov2": ("Dinov2Model", "Dinov2Config", DINO),
    "dinov2-swiglu": ("Dinov2Model", "Dinov2Config", DINO | {"use_swiglu_ffn": True}),
    "dinov2-linear": ("Dinov2ForImageClassification", "Dinov2Config", DINO | CLASSES),
    "registers-linear": (
        *("Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig"),
        DINO | CLASSES,
    ),
    "registers": ("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", DINO),
    "registers-swiglu": (
        *("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig"),
        DINO | {"use_swiglu_ffn": True, "num_register_tokens": 2},
    ),
    "dinov3": ("DINOv3ViTModel", "DINOv3ViTConfig", ROTARY),
    "dinov3-gated": (
        *("DINOv3ViTModel", "DINOv3ViTConfig"),
        ROTARY
        | {"use_gated_mlp": True, "hidden_act": "silu", "num_register_tokens": 0}
        | {"query_bias": False, "value_bias": False, "mlp_bias": False, "proj_bias": False},
    ),
    "dinov3-biased": ("DINOv3ViTModel", "DINOv3ViTConfig", ROTARY | {"key_bias": True}),
}


def write(model, folder, processor=None, **options):
    """The folder that `save_pretrained` writes, with a processor's file where there is one."""
    model.save_pretrained(folder, **options)
    if processor is not None:
        processor.save_pretrained(folder)
    return folder


def processor(name):
    """The image processor that goes with a model of the table."""
    kind, _, fields = MODELS[name]
    if kind.startswith("Dino"):
        size = fields["image_size"]
        return transformers.BitImageProcessor(
            size={"shortest_edge": size + 2}, crop_size={"height": size, "width": size}
        )
    size = fields["image_size"]
    pair = (size, size) if isinstance(size, int) else size
    size = dict(zip(("height", "width"), pair, strict=True))
    return transformers.ViTImageProcessor(size=size, image_mean=[0.4] * 3, image_std=[0.2] * 3)


def taps(model, images, **options):
    """dict from tap to what transformers makes of images (example, height, width, channel)."""
    found = {}
    base = getattr(model, model.base_model_prefix, model)

    def catch(tap):
        def hook(module, inputs, output):
            found[tap] = (output[0] if isinstance(output, tuple) else output).numpy()

        return hook

    hooks = [base.embeddings.register_forward_hook(catch("embedding"))]
    layers = base.encoder if hasattr(base, "encoder") else base
    layers = layers.layers if hasattr(layers, "layers") else layers.layer
    for i, layer in enumerate(layers):
        hooks.append(layer.register_forward_hook(catch(f"block{i:02d}/mlp/sum")))
    last = next(getattr(base, n) for n in ("layernorm", "norm", "rms_norm") if hasattr(base, n))
    hooks.append(last.register_forward_hook(catch("norm")))
    with torch.no_grad():
        outputs = model(torch.tensor(images.transpose(0, 3, 1, 2)), **options)
    for hook in hooks:
        hook.remove()
    logits = getattr(outputs, "logits", None)
    if logits is None:
        pooler = getattr(base, "pooler", None)
        last = outputs.last_hidden_state
        first = last[:, 0] if hasattr(base.embeddings, "cls_token") else last.mean(dim=1)
        logits = outputs.pooler_output if pooler else first
    return found | {"logits": logits.numpy()}
