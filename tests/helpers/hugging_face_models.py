"""Tiny models of transformers with random weights, their folders, and what they make of images."""

import numpy as np
import torch
import tower_models
import transformers
from torch_hooks import caught

SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "patch_size": 4}
PLAIN = SIZES | {"intermediate_size": 40, "image_size": [16, 24], "layer_norm_eps": 1e-3}
DINO = SIZES | {"mlp_ratio": 2, "image_size": 20, "layer_norm_eps": 1e-5}
CLASSES = {"num_labels": 5}
ROTARY = PLAIN | {"image_size": 20, "num_register_tokens": 4, "layer_norm_eps": 1e-5}
VISION = SIZES | {"intermediate_size": 40, "image_size": 20, "projection_dim": 7}
TEXT = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 9}
TEXT |= {"num_attention_heads": 2, "max_position_embeddings": 5}
BEIT = SIZES | {"intermediate_size": 40, "image_size": 20, "layer_norm_eps": 1e-12}
SHARED = {"use_shared_relative_position_bias": True, "use_mask_token": True, "vocab_size": 9}
NAMES = {"id2label": {0: "crane", 1: "tabby, tabby cat", 2: "crane"}}
BIT = {"embedding_size": 32, "hidden_sizes": [128, 256], "depths": [1, 2]}
MAE = SIZES | {"intermediate_size": 40, "image_size": 20, "mask_ratio": 0.0}
MAE |= {"decoder_hidden_size": 16, "decoder_intermediate_size": 16, "layer_norm_eps": 1e-12}
MAE |= {"decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2}
WHOLE = {"text_config": TEXT, "vision_config": VISION, "projection_dim": 7}


def make(name):
    """A model of the table, of random weights and in evaluation."""
    if name.startswith("siglip"):
        return tower_models.siglip(name.partition("-")[2] or "vision")
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
MODELS |= {
    "clip": ("CLIPModel", "CLIPConfig", WHOLE),
    "clip-vision": ("CLIPVisionModel", "CLIPVisionConfig", VISION | {"hidden_act": "gelu"}),
    "clip-projected": ("CLIPVisionModelWithProjection", "CLIPVisionConfig", VISION),
    "beit": (
        *("BeitForImageClassification", "BeitConfig"),
        BEIT | {"use_relative_position_bias": True} | NAMES,
    ),
    "beit-plain": (
        *("BeitModel", "BeitConfig"),
        BEIT | {"use_relative_position_bias": True, "layer_scale_init_value": 0},
    ),
    "beit-shared": ("BeitForMaskedImageModeling", "BeitConfig", BEIT | SHARED),
    "bit": ("BitForImageClassification", "BitConfig", BIT | NAMES),
    "bit-bare": ("BitModel", "BitConfig", BIT),
    "metaclip2": ("MetaClip2Model", "MetaClip2Config", WHOLE),
    "metaclip2-vision": (
        *("MetaClip2VisionModel", "MetaClip2VisionConfig"),
        VISION | {"hidden_act": "gelu"},
    ),
    "metaclip2-projected": (
        *("MetaClip2VisionModelWithProjection", "MetaClip2VisionConfig"),
        VISION,
    ),
    "mae": ("ViTMAEForPreTraining", "ViTMAEConfig", MAE),
}
ENCODERS = ("clip", "beit", "bit", "mae", "metaclip2")  # what their names begin with


def write(model, folder, processor=None, **options):
    """The folder that `save_pretrained` writes, with a processor's file where there is one."""
    model.save_pretrained(folder, **options)
    if processor is not None:
        processor.save_pretrained(folder)
    return folder


def processor(name, side=20):
    """The image processor that goes with a model of the table; `side` is that of an encoder's."""
    if name.startswith("siglip"):
        return None  # its family has one
    if name.startswith(ENCODERS):
        return _processor_of_encoder(name, side)
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


def _processor_of_encoder(name, size):
    square, values = {"height": size, "width": size}, {"image_mean": [0.4] * 3}
    if "clip" in name:
        edge = {"shortest_edge": size}
        return transformers.CLIPImageProcessor(size=edge, crop_size=square, **values)
    if name.startswith("beit"):
        larger = {"height": size + 4, "width": size + 4}
        return transformers.BeitImageProcessor(size=larger, crop_size=square, **values)
    if name.startswith("bit"):
        edge = {"shortest_edge": size + 4}
        return transformers.BitImageProcessor(size=edge, crop_size=square, **values)
    return transformers.ViTImageProcessor(size=square, **values)


def taps(model, images, **options):
    """dict from tap to what transformers makes of images (example, height, width, channel)."""
    if type(model).__name__.startswith("Siglip"):
        return tower_models.siglip_taps(model, images)
    if type(model).__name__.startswith(("CLIP", "MetaClip2", "Beit", "Bit", "ViTMAE")):
        return _taps_of_encoder(model, images)
    base = getattr(model, model.base_model_prefix, model)
    layers = base.encoder if hasattr(base, "encoder") else base
    layers = layers.layers if hasattr(layers, "layers") else layers.layer
    modules = {f"block{i:02d}/mlp/sum": layer for i, layer in enumerate(layers)}
    last = next(getattr(base, n) for n in ("layernorm", "norm", "rms_norm") if hasattr(base, n))
    modules |= {"embedding": base.embeddings, "norm": last}
    values, outputs = caught(model, modules, images, **options)
    logits = getattr(outputs, "logits", None)
    if logits is None:
        last = outputs.last_hidden_state
        first = last[:, 0] if hasattr(base.embeddings, "cls_token") else last.mean(dim=1)
        logits = outputs.pooler_output if getattr(base, "pooler", None) else first
    return values | {"logits": logits.numpy()}


def _modules(model):
    """dict from tap to the module of transformers' that makes it."""
    inner = getattr(model, model.base_model_prefix, model)
    if hasattr(model, "vision_model"):
        inner = model.vision_model
        values = {"pre_norm": inner.pre_layrnorm, "pooled": inner.post_layernorm}
        layers = inner.encoder.layers
    elif hasattr(inner, "embedder"):
        units = {
            f"stage{s + 1}/unit{u + 1:02d}/sum": unit
            for s, stage in enumerate(inner.encoder.stages)
            for u, unit in enumerate(stage.layers)
        }
        # Its normalisation applies the ReLU too.
        return units | {"pooled": inner.pooler}
    else:
        values, layers = {"embedding": inner.embeddings}, inner.encoder.layer
        if isinstance(model, transformers.BeitForMaskedImageModeling):
            values["norm"] = model.layernorm
        elif isinstance(inner, transformers.BeitModel):
            values["fc_norm"] = inner.pooler.layernorm
        else:
            values["norm"] = inner.layernorm
    return values | {f"block{i:02d}/mlp/sum": layer for i, layer in enumerate(layers)}


def _taps_of_encoder(model, images):
    options = {}
    if isinstance(model, transformers.ViTMAEForPreTraining):
        # In their own order, of which none is left out.
        patch = model.config.patch_size
        patches = (images.shape[1] // patch) * (images.shape[2] // patch)
        options["noise"] = torch.arange(patches).repeat(len(images), 1) / patches
    paired = isinstance(model, transformers.CLIPModel | transformers.MetaClip2Model)
    run = model.get_image_features if paired else model
    values, outputs = caught(run, _modules(model), images, **options)
    # Maps with their channels last, and what is pooled of them flat.
    values = {tap: np.moveaxis(x, 1, -1) if x.ndim == 4 else x for tap, x in values.items()}
    if "pooled" in values:
        values["pooled"] = values["pooled"].reshape(len(images), -1)
    if paired:
        values["projected"] = outputs.numpy()
    elif hasattr(outputs, "image_embeds"):
        values["projected"] = outputs.image_embeds.numpy()
    elif hasattr(model, "vision_model"):
        values["projected"] = outputs.pooler_output.numpy()
    elif "ForImageClassification" in type(model).__name__:
        values["logits"] = outputs.logits.numpy()
    return values
